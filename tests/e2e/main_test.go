// Package e2e holds what callers are promised against the real thing: a gateway
// process, a real Triton, real H&E tiles, and Pillow, numpy and onnxruntime as
// the reference.
package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"histogate/prep"
	"histogate/tests/stack"
	"histogate/tritonclient"
)

// start starts a stack that ends with the test. Where the tests run under the
// race detector the gateway does too.
func start(t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	o.Race = raceEnabled
	return startAsIs(t, o)
}

// startAsIs starts a stack of the build that the options say.
func startAsIs(t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if code := s.Stop(); code != 0 {
			t.Errorf("the gateway ended with exit code %d", code)
		}
		if t.Failed() {
			t.Logf("what the stack wrote:\n%s", s.Output())
		}
	})
	return s
}

// tileRequest is a sound request for a committed tile.
func tileRequest(model string, tile, patch int) stack.Tile {
	paths := stack.TilePaths()
	return stack.Tile{
		ImageData: stack.ReadTile(paths[tile%len(paths)]),
		SlideName: "slide-" + strconv.Itoa(tile), X: 224 * patch, Y: 7, Width: 224, Height: 224,
		Ratio: 0.75, PatchIdx: patch, ModelName: model, Mode: "embedding",
	}
}

func post(t *testing.T, s *stack.Stack, path string, body []byte) *stack.Answer {
	t.Helper()
	a, err := s.Post(path, body)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// together sends bodies to /invocations, all at once, and returns the answers in
// their order.
func together(t *testing.T, s *stack.Stack, bodies [][]byte) []*stack.Answer {
	t.Helper()
	answers := make([]*stack.Answer, len(bodies))
	errs := make([]error, len(bodies))
	gate := make(chan struct{})
	done := make(chan int)
	for i, body := range bodies {
		go func() {
			<-gate
			answers[i], errs[i] = s.Post("/invocations", body)
			done <- i
		}()
	}
	close(gate)
	for range bodies {
		<-done
	}
	for i, err := range errs {
		if err != nil {
			t.Fatalf("request %d got no answer: %v", i, err)
		}
	}
	return answers
}

// sameBits compares to the bit, so that -0 and 0 differ.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// counted is what Triton counted for a model, less the gateway's own probes.
type counted struct{ inferences, executions, failed int }

func (a counted) minus(b counted) counted {
	return counted{a.inferences - b.inferences, a.executions - b.executions, a.failed - b.failed}
}

// count reads Triton's own counters. Probes that run meanwhile are waited out:
// their number must be the same before and after.
func count(t *testing.T, s *stack.Stack, model string) counted {
	t.Helper()
	client, err := tritonclient.New(s.Triton, tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	probes := func() int {
		ok, err := s.Metric(fmt.Sprintf(`histogate_canary_inferences_total{model=%q,result="ok"}`, model))
		if err != nil {
			t.Fatal(err)
		}
		return int(ok)
	}
	for range 50 {
		before := probes()
		time.Sleep(50 * time.Millisecond)
		stats, err := client.ModelStatistics(t.Context(), model)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if probes() == before {
			return counted{int(stats.InferenceCount) - before, int(stats.ExecutionCount) - before, int(stats.InferenceStats.GetFail().GetCount())}
		}
	}
	t.Fatal("the gateway probes without a pause")
	return counted{}
}

// reference is what tests/reference/embed.py prints.
type reference struct {
	Versions map[string]string
	Tiles    map[string]struct {
		Outputs map[string][]byte
	}
}

// embeddings has the reference compute the embedding of each tile, by path.
func embeddings(t *testing.T, model string) map[string][]float32 {
	t.Helper()
	folder := filepath.Join(stack.Root(), "model_repository", model)
	spec, err := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	list := func(values [3]float64) string { return fmt.Sprintf("%v,%v,%v", values[0], values[1], values[2]) }
	args := append([]string{
		filepath.Join(stack.Root(), "tests", "reference", "embed.py"), filepath.Join(folder, "1", "model.onnx"),
		list(spec.Tile.Mean), list(spec.Tile.Std),
	}, stack.TilePaths()...)
	cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Root(), "build", "tools", "bin", "python"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the reference could not be computed (run deploy/setup): %v", err)
	}
	var r reference
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	t.Logf("reference by %v", r.Versions)
	all := map[string][]float32{}
	for path, tile := range r.Tiles {
		data := tile.Outputs["embedding"]
		values := make([]float32, len(data)/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		all[path] = values
	}
	return all
}

// faultyModel makes a repository with the one model "faulty": h1's contract, a
// long queue delay so that requests meet in one batch, and the test's own backend.
func faultyModel(t *testing.T) (repository, backends string) {
	t.Helper()
	repository, backends = t.TempDir(), t.TempDir()
	source := filepath.Join(stack.Root(), "model_repository", "h1")
	folder := filepath.Join(repository, "faulty")
	if err := os.MkdirAll(filepath.Join(folder, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	rewrite := func(name string, replacements ...string) {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(replacements); i += 2 {
			if !strings.Contains(string(text), replacements[i]) {
				t.Fatalf("%s does not hold %q", name, replacements[i])
			}
		}
		changed := strings.NewReplacer(replacements...).Replace(string(text))
		if err := os.WriteFile(filepath.Join(folder, name), []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("config.pbtxt", `name: "h1"`, `name: "faulty"`, `"histogate"`, `"faulty"`, "microseconds: 5000", "microseconds: 300000")
	rewrite("spec.yaml", "name: h1", "name: faulty", "max_queue_delay_ms: 5", "max_queue_delay_ms: 300")
	for from, to := range map[string]string{
		filepath.Join(source, "1", "model.onnx"):                             filepath.Join(folder, "1", "model.onnx"),
		filepath.Join(stack.Root(), "build", "triton", "backends", "python"): filepath.Join(backends, "python"),
		filepath.Join(stack.Root(), "deploy/triton/backends/histogate"):      filepath.Join(backends, "histogate"),
		filepath.Join(stack.Root(), "tests/e2e/testdata/faulty"):             filepath.Join(backends, "faulty"),
	} {
		if err := os.Symlink(from, to); err != nil {
			t.Fatal(err)
		}
	}
	return repository, backends
}

// wantFailure holds a failure against what a caller is promised.
func wantFailure(t *testing.T, a *stack.Answer, status int, code string, named ...string) {
	t.Helper()
	if a.Status != status || a.Code != code {
		t.Errorf("status %d, code %q; want %d, %q (%s)", a.Status, a.Code, status, code, a.Raw)
	}
	for _, name := range named {
		if !strings.Contains(a.Detail, name) {
			t.Errorf("%q does not name %q", a.Detail, name)
		}
	}
	var body map[string]any
	if err := json.Unmarshal(a.Raw, &body); err != nil {
		t.Fatal(err)
	}
	if body["message"] != body["detail"] || body["request_id"] != a.Header.Get("X-Request-Id") || a.RequestID == "" {
		t.Errorf("body %s with request id %q in the header", a.Raw, a.Header.Get("X-Request-Id"))
	}
	if hint := a.Header.Get("Retry-After"); (status == http.StatusServiceUnavailable) != (hint != "") {
		t.Errorf("status %d with Retry-After %q", status, hint)
	}
}
