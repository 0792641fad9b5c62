package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"histogate/prep"
	"histogate/tests/stack"
)

// python runs a script of tests, with tests/reference on its path, and returns what
// it wrote.
func python(t *testing.T, input []byte, script string, args ...string) []byte {
	t.Helper()
	tests := filepath.Join(stack.Root(), "tests")
	cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Root(), "build", "tools", "bin", "python"),
		append([]string{filepath.Join(tests, script)}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(tests, "reference"))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tests/%s failed (run deploy/setup): %v", script, err)
	}
	return out
}

func readSpec(t *testing.T, folder string) *prep.Spec {
	t.Helper()
	spec, err := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// expect has the reference, tests/reference/infer.py, compute what the model in the
// folder must answer to each request: its outputs by role, after their transforms.
func expect(t *testing.T, folder string, requests []stack.Tile) []map[prep.Role][]float32 {
	t.Helper()
	type sample struct {
		Tile    string    `json:"tile"`
		BulkRNA []float64 `json:"bulk_rna"`
	}
	job := struct {
		Spec    *prep.Spec `json:"spec"`
		Samples []sample   `json:"samples"`
	}{Spec: readSpec(t, folder)}
	dir := t.TempDir()
	for i, request := range requests {
		path := filepath.Join(dir, fmt.Sprintf("%d.png", i))
		if err := os.WriteFile(path, request.ImageData, 0o644); err != nil {
			t.Fatal(err)
		}
		job.Samples = append(job.Samples, sample{path, request.BulkRNA})
	}
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Versions map[string]string
		Samples  []struct{ Outputs map[string][]byte }
	}
	if err := json.Unmarshal(python(t, text, "reference/infer.py", folder), &answer); err != nil {
		t.Fatal(err)
	}
	t.Logf("reference for %s by %v", job.Spec.Name, answer.Versions)
	all := make([]map[prep.Role][]float32, len(requests))
	for i := range requests {
		all[i] = map[prep.Role][]float32{}
		for _, out := range job.Spec.Outputs {
			data := answer.Samples[i].Outputs[out.Name]
			values := make([]float32, len(data)/4)
			for j := range values {
				values[j] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*j:]))
			}
			if len(values) != prep.Elements(out.Shape) {
				t.Fatalf("the reference gave %d values for %s of %s", len(values), out.Name, job.Spec.Name)
			}
			all[i][out.Role] = values
		}
	}
	return all
}
