package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"histogate/tests/stack"
)

// checked runs `gateway check`, and returns its exit code and what it wrote.
func checked(t *testing.T, env ...string) (code int, text string) {
	t.Helper()
	binary, err := stack.Build(false)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "check")
	cmd.Env = append([]string{"HOST=127.0.0.1", "PORT=0", "METRICS_PORT=0", "PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// `gateway check` finds nothing wrong with the stack that the other tests run, from the
// files alone and from what its Triton has loaded, changes nothing there, and finds a
// spec that is not that of a loaded model.
func TestCheck(t *testing.T) {
	s := start(t, stack.Options{Env: []string{"MODELS=h1,tissue-seg"}})
	before := count(t, s, "h1")
	models := "MODEL_REPOSITORY=" + filepath.Join(stack.Root(), "model_repository")
	triton := filepath.Join(stack.Root(), "build", "triton")
	if code, text := checked(t, models, "TRITON_SERVER="+filepath.Join(triton, "tritonserver"), "TRITON_BACKENDS="+filepath.Join(triton, "backends")); code != 0 || !strings.Contains(text, "mistakes: 0") {
		t.Errorf("by its files: exit code %d: %s", code, text)
	}
	if code, text := checked(t, models, "TRITON_ADDRESS="+s.TritonAddress()); code != 0 || !strings.Contains(text, "Triton 2.") || !strings.Contains(text, "has 2 of the models loaded") {
		t.Errorf("by its Triton: exit code %d: %s", code, text)
	}
	other := t.TempDir()
	copyModel(t, other, "h1", "h1", "1536", "768")
	code, text := checked(t, "MODEL_REPOSITORY="+other, "TRITON_ADDRESS="+s.TritonAddress())
	for _, want := range []string{"mistakes: 2", "Triton's metadata: shape of output embedding is [1536], spec.yaml says [768]", "Triton's configuration of the model: shape of output"} {
		if code != 1 || !strings.Contains(text, want) {
			t.Errorf("another spec: exit code %d, %q is not in: %s", code, want, text)
		}
	}
	if after := count(t, s, "h1"); after.failed != before.failed || after.inferences != before.inferences {
		t.Errorf("Triton counted %+v before and %+v afterwards", before, after)
	}
}

// /diagnostics tells of a real stack what there is to tell.
func TestDiagnostics(t *testing.T) {
	s := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	if a := post(t, s, "/invocations", tileRequest("h1", 0, 0).Body()); a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Raw)
	}
	text, err := s.Admin("/diagnostics")
	if err != nil {
		t.Fatal(err)
	}
	type stage struct {
		Stage string
		P50   float64 `json:"p50_ms"`
	}
	var d struct {
		Versions struct{ Triton string }
		Changed  map[string]struct{ Value string } `json:"settings_changed"`
		Triton   struct {
			PID    int
			Starts float64
		}
		Models []struct {
			Name      string
			Ready     bool
			Transport string
		}
		Failures, Events []any
		Stages           []stage
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(d.Versions.Triton, "2.") || d.Changed["MODELS"].Value != "h1" || d.Triton.PID != s.TritonPID() || d.Triton.Starts != 1 ||
		len(d.Models) != 1 || !d.Models[0].Ready || d.Models[0].Transport != "shared memory" || len(d.Failures) != 0 {
		t.Errorf("%+v", d)
	}
	if !slices.ContainsFunc(d.Stages, func(s stage) bool { return s.Stage == "triton" && s.P50 > 0 }) {
		t.Errorf("stages: %+v", d.Stages)
	}
}
