// Package e2e holds what callers are promised against the real thing: a gateway
// process, a real Triton, real H&E tiles, and Pillow, numpy and onnxruntime as
// the reference.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// counted is what Triton counted for a model, less the gateway's own probes, and how
// many those were. A probe that shares an execution is taken off the executions all
// the same: there were at most executions + probes.
type counted struct{ inferences, executions, failed, probes int }

func (a counted) minus(b counted) counted {
	return counted{a.inferences - b.inferences, a.executions - b.executions, a.failed - b.failed, a.probes - b.probes}
}

// count reads Triton's own counters. Probes that run meanwhile are waited out:
// their number must be the same before and after.
func count(t *testing.T, s *stack.Stack, model string) counted {
	t.Helper()
	client, err := tritonclient.New(s.TritonAddress(), tritonclient.Options{})
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
			return counted{int(stats.InferenceCount) - before, int(stats.ExecutionCount) - before, int(stats.InferenceStats.GetFail().GetCount()), before}
		}
	}
	t.Fatal("the gateway probes without a pause")
	return counted{}
}

// faultyModel makes what a stack needs that serves h1 on the tests' own backend, with a
// long queue delay so that requests meet in one batch; and the model's folder.
func faultyModel(t *testing.T) (o stack.Options, folder string) {
	t.Helper()
	o, folder, err := stack.Variant(t.TempDir(), "h1", filepath.Join(stack.Root(), "tests/e2e/testdata/faulty"),
		"microseconds: 0", "microseconds: 300000", "max_queue_delay_ms: 0", "max_queue_delay_ms: 300")
	if err != nil {
		t.Fatal(err)
	}
	return o, folder
}

// copyModel copies one of the repository's models under another name, with texts of
// its spec.yaml and config.pbtxt replaced, each by the one that follows it. What else
// it has is linked.
func copyModel(t *testing.T, repository, model, name string, replacements ...string) {
	t.Helper()
	source, folder := filepath.Join(stack.Root(), "model_repository", model), filepath.Join(repository, name)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	replacements = append([]string{"name: " + model + "\n", "name: " + name + "\n", fmt.Sprintf("name: %q", model), fmt.Sprintf("name: %q", name)}, replacements...)
	entries, err := os.ReadDir(source)
	if err != nil {
		t.Fatal(err)
	}
	before := ""
	for _, entry := range entries {
		from, to := filepath.Join(source, entry.Name()), filepath.Join(folder, entry.Name())
		if entry.Name() != "spec.yaml" && entry.Name() != "config.pbtxt" {
			if err := os.Symlink(from, to); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		before += string(text)
		if err := os.WriteFile(to, []byte(strings.NewReplacer(replacements...).Replace(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(before, replacements[i]) {
			t.Fatalf("neither spec.yaml nor config.pbtxt of %s holds %q", model, replacements[i])
		}
	}
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
