//go:build pt2

// Package pt2 holds what is served from .pt2 checkpoints against torch itself: a
// gateway process with a model folder, a real Triton with torch in its backend
// processes, and tiny packages that tests/reference/aoti.py compiled.
package pt2

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"image"
	"image/draw"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"histogate/tests/stack"
)

const (
	h1File      = "h1_optimus_cls_token.pt2"
	optimusFile = "m_optimus_prediction.pt2"
	tissueFile  = "tissue_seg_aoti.pt2"
)

func root(path ...string) string { return filepath.Join(append([]string{stack.Root()}, path...)...) }

// modelFolder is a folder as a platform would mount it: checkpoints, and assets.
// change may replace the bytes of a checkpoint.
func modelFolder(t *testing.T, change func(file string, data []byte) []byte) string {
	t.Helper()
	folder := t.TempDir()
	for _, file := range []string{h1File, optimusFile, tissueFile} {
		data, err := os.ReadFile(root("build", "pt2-packages", file))
		if err != nil {
			t.Fatalf("no compiled checkpoint (run tests/pt2/run): %v", err)
		}
		if change != nil {
			data = change(file, data)
		}
		if err := os.WriteFile(filepath.Join(folder, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(folder, "assets"), os.DirFS(root("tests", "pt2", "testdata", "assets"))); err != nil {
		t.Fatal(err)
	}
	return folder
}

// options serve a model folder by the specs of these tests.
func options(folder string, env ...string) stack.Options {
	return stack.Options{
		Repository: root("tests", "pt2", "testdata", "specs"),
		Backends:   root("build", "triton-pt2", "backends"),
		Env: append([]string{
			"TRITON_SERVER=" + root("build", "triton-pt2", "tritonserver"), "MODEL_DIR=" + folder,
		}, env...),
	}
}

// stopped stops a stack with the test and shows what it wrote if that failed.
func stopped(t *testing.T, s *stack.Stack) {
	t.Helper()
	t.Cleanup(func() {
		if code := s.Stop(); code != 0 {
			t.Errorf("the gateway ended with exit code %d", code)
		}
		if t.Failed() {
			t.Logf("what the stack wrote:\n%s", s.Output())
		}
	})
}

func start(t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %.1f s", time.Since(began).Seconds())
	stopped(t, s)
	return s
}

// request is a tile request with bulk RNA.
type request struct {
	stack.Tile
	BulkRNA []float64 `json:"bulk_rna,omitempty"`
}

func (r request) body(t *testing.T) []byte {
	t.Helper()
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// newRequest is the i-th request of a model in a mode; each shows something else.
func newRequest(t *testing.T, model, mode string, i int) request {
	t.Helper()
	paths := stack.TilePaths()
	r := request{Tile: stack.Tile{
		ImageData: stack.ReadTile(paths[i%len(paths)]), SlideName: "slide", Width: 224, Height: 224, Ratio: 0.5,
		PatchIdx: i, ModelName: model, Mode: mode,
	}}
	switch model {
	case "tissue-seg":
		r.Width, r.Height, r.ImageData = 512, 512, picture(t, i)
	case "m-optimus":
		if i%3 != 0 { // every third has none
			r.BulkRNA = make([]float64, 64)
			for gene := range r.BulkRNA {
				r.BulkRNA[gene] = float64((gene*37+i*11)%50 - 1) // from -1: not measured
			}
		}
	}
	return r
}

// picture is 512x512 pixels of glass with four tiles of tissue, shifted by i.
func picture(t *testing.T, i int) []byte {
	t.Helper()
	canvas := image.NewRGBA(image.Rect(0, 0, 512, 512))
	draw.Draw(canvas, canvas.Bounds(), image.White, image.Point{}, draw.Src)
	for n, path := range stack.TilePaths() {
		tile, err := png.Decode(bytes.NewReader(stack.ReadTile(path)))
		if err != nil {
			t.Fatal(err)
		}
		draw.Draw(canvas, tile.Bounds().Add(image.Pt(5*i+256*(n%2), 7*i+256*(n/2))), tile, image.Point{}, draw.Src)
	}
	var data bytes.Buffer
	if err := png.Encode(&data, canvas); err != nil {
		t.Fatal(err)
	}
	return data.Bytes()
}

// expected is what torch gives for a request: elements, little-endian, of the
// tensors that the model takes, of those that it gives, and of the latter after
// the model's transforms.
type expected struct{ Inputs, Raw, Outputs [][]byte }

// reference asks torch, which runs each request alone.
func reference(t *testing.T, requests []request) []expected {
	t.Helper()
	type question struct {
		Model     string    `json:"model"`
		ImageData []byte    `json:"image_data"`
		BulkRNA   []float64 `json:"bulk_rna"`
	}
	questions := make([]question, len(requests))
	for i, r := range requests {
		questions[i] = question{r.ModelName, r.ImageData, r.BulkRNA}
	}
	stdin, err := json.Marshal(questions)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), root("build", "torch", "bin", "python"), root("tests", "reference", "aoti.py"), "answer")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the reference could not be computed (run tests/pt2/run): %v", err)
	}
	var answers []expected
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	if len(answers) != len(requests) {
		t.Fatalf("%d answers to %d requests", len(answers), len(requests))
	}
	return answers
}

func floats(data []byte) []float32 {
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values
}

// distance is the largest difference between two lists, infinite when one holds
// another number of values or one that is no number.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	largest := 0.0
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		largest = max(largest, d)
	}
	return largest
}
