//go:build pt2

package deploy

import (
	"os"
	"path/filepath"
	"testing"
)

// The start of SageMaker's container with .pt2 checkpoints in /opt/ml/model, tiny ones
// for the CPU (tests/pt2/run compiles them), with their specs.
func TestSageMakerCheckpoints(t *testing.T) {
	s := lay(t, "build/triton-pt2", "tests/pt2/testdata/specs")
	for _, folder := range []string{"build/pt2-packages", "tests/pt2/testdata/assets"} {
		to := s.models()
		if filepath.Base(folder) == "assets" {
			to = filepath.Join(to, "assets")
		}
		from, err := filepath.EvalSymlinks(absolute(t, folder))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	s.serves(t, s.run(t), "h1")
}
