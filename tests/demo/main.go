// Command demo sends real H&E tiles through a real stack and shows what comes back:
// an embedding, a gene expression and a tissue mask. The models behind it are
// stand-ins: their numbers mean nothing.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"histogate/tests/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := demo(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1) //nolint:gocritic // the signals need no restoring when the process ends
	}
}

func demo(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	fmt.Println("starting the gateway and its Triton ...")
	began := time.Now()
	s, err := stack.Start(ctx, stack.Options{Env: []string{
		"PORT=" + cmp.Or(os.Getenv("PORT"), "0"),
		"METRICS_PORT=" + cmp.Or(os.Getenv("METRICS_PORT"), "0"),
	}})
	if err != nil {
		return err
	}
	defer func() {
		if code := s.Stop(); code != 0 && err == nil {
			err = fmt.Errorf("the gateway ended with exit code %d:\n%s", code, s.Output())
		}
	}()
	version, err := s.TritonVersion()
	if err != nil {
		return err
	}
	fmt.Printf("ready after %.1f s at %s, Triton %s\n\n", time.Since(began).Seconds(), s.URL, version)

	return errors.Join(embedding(s), expression(s), mask(s))
}

// tile is a request for a committed tile.
func tile(model, mode string) stack.Tile {
	return stack.Tile{
		ImageData: stack.ReadTile(stack.TilePaths()[0]), SlideName: "CMU-1-Small-Region", Width: 224, Height: 224,
		Ratio: 1, ModelName: model, Mode: mode,
	}
}

func embedding(s *stack.Stack) error {
	request := tile("h1", "embedding")
	fmt.Printf("POST /invocations  model h1 (a stand-in, not the published weights), tile %s, %d bytes\n",
		filepath.Base(stack.TilePaths()[0]), len(request.ImageData))
	// The first request opens connections and fills caches; the second shows the times.
	for range 2 {
		answer, err := send(s, request, 1536)
		if err != nil {
			return err
		}
		fmt.Printf("  embedding of %d finite values: %v ...\n  time per stage in ms: %s\n",
			len(answer.Output), answer.Output[:6], stages(answer.Header.Get("Server-Timing")))
	}
	return nil
}

// expression shows the ten genes of which m-optimus predicts the most.
func expression(s *stack.Stack) error {
	answer, err := s.Get("/api/metadata/m-optimus")
	if err != nil {
		return err
	}
	var metadata struct {
		InputGenes  []string `json:"input_genes"`
		OutputGenes []string `json:"output_genes"`
	}
	if err := json.Unmarshal(answer.Raw, &metadata); err != nil {
		return err
	}
	request := tile("m-optimus", "prediction")
	for i := range metadata.InputGenes { // made up
		request.BulkRNA = append(request.BulkRNA, float64(i*7919%1000))
	}
	fmt.Printf("\nPOST /invocations  model m-optimus (a stand-in), the same tile, bulk RNA of %d genes\n", len(request.BulkRNA))
	if answer, err = send(s, request, len(metadata.OutputGenes)); err != nil {
		return err
	}
	genes := make([]int, len(answer.Output))
	for i := range genes {
		genes[i] = i
	}
	slices.SortFunc(genes, func(a, b int) int { return cmp.Compare(answer.Output[b], answer.Output[a]) })
	fmt.Printf("  the ten largest of %d counts:\n", len(genes))
	for _, i := range genes[:10] {
		fmt.Printf("    %s %6.0f\n", metadata.OutputGenes[i], answer.Output[i])
	}
	fmt.Printf("  time per stage in ms: %s\n", stages(answer.Header.Get("Server-Timing")))
	return nil
}

// mask writes a picture and its tissue mask to build/demo-mask.
func mask(s *stack.Stack) error {
	const side = 512
	request := tile("tissue-seg", "prediction")
	request.ImageData, request.Width, request.Height = stack.Mosaic(side, side, 0), side, side
	fmt.Printf("\nPOST /invocations  model tissue-seg (a stand-in), the tiles with glass around them, %d bytes\n", len(request.ImageData))
	answer, err := send(s, request, side*side)
	if err != nil {
		return err
	}
	picture, tissue := image.NewGray(image.Rect(0, 0, side, side)), 0
	for i, v := range answer.Output {
		tissue += int(v)
		picture.Pix[i] = uint8(v) * 255
	}
	var encoded bytes.Buffer
	if err := png.Encode(&encoded, picture); err != nil {
		return err
	}
	folder := filepath.Join(stack.Root(), "build", "demo-mask")
	if err := errors.Join(os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, "tile.png"), request.ImageData, 0o644),
		os.WriteFile(filepath.Join(folder, "mask.png"), encoded.Bytes(), 0o644)); err != nil {
		return err
	}
	fmt.Printf("  %.1f %% of it is tissue: build/demo-mask/tile.png and mask.png\n  time per stage in ms: %s\n",
		100*float64(tissue)/(side*side), stages(answer.Header.Get("Server-Timing")))
	return nil
}

// send posts a request whose answer must have so many values, all of them finite.
func send(s *stack.Stack, request stack.Tile, values int) (*stack.Answer, error) {
	answer, err := s.Post("/invocations", request.Body())
	switch {
	case err != nil:
		return nil, err
	case answer.Status != http.StatusOK:
		return nil, fmt.Errorf("status %d: %s", answer.Status, answer.Detail)
	case len(answer.Output) != values:
		return nil, fmt.Errorf("%d values, not %d", len(answer.Output), values)
	}
	for _, v := range answer.Output {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, errors.New("a value that is not finite")
		}
	}
	return answer, nil
}

// stages makes "read;dur=0.1, prep;dur=2" more pleasant to read.
func stages(header string) string {
	return strings.NewReplacer(";dur=", " ", ", ", ",  ").Replace(header)
}
