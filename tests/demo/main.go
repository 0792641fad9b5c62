// Command demo sends one real H&E tile through a real stack and shows what comes
// back. The model behind it is a stand-in: the numbers mean nothing.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
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

	path := stack.TilePaths()[0]
	tile := stack.Tile{
		ImageData: stack.ReadTile(path), SlideName: "CMU-1-Small-Region", Width: 224, Height: 224,
		Ratio: 1, ModelName: "h1", Mode: "embedding",
	}
	fmt.Printf("POST /invocations  model h1 (a stand-in, not the published weights), tile %s, %d bytes\n",
		filepath.Base(path), len(tile.ImageData))
	// The first request opens connections and fills caches; the second shows the times.
	for range 2 {
		answer, err := s.Post("/invocations", tile.Body())
		if err != nil {
			return err
		}
		if err := check(answer); err != nil {
			return err
		}
		if _, err = fmt.Printf("  embedding of %d finite values: %v ...\n  time per stage in ms: %s\n",
			len(answer.Output), answer.Output[:6], stages(answer.Header.Get("Server-Timing"))); err != nil {
			return err
		}
	}
	return nil
}

func check(answer *stack.Answer) error {
	const want = 1536
	if answer.Status != http.StatusOK {
		return fmt.Errorf("status %d: %s", answer.Status, answer.Detail)
	}
	if len(answer.Output) != want {
		return fmt.Errorf("%d values, not %d", len(answer.Output), want)
	}
	for _, v := range answer.Output {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return errors.New("a value that is not finite")
		}
	}
	return nil
}

// stages makes "read;dur=0.1, prep;dur=2" more pleasant to read.
func stages(header string) string {
	return strings.NewReplacer(";dur=", " ", ", ", ",  ").Replace(header)
}
