package tritonclient

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a server moves to its backends must have room in a folder that can be written to.
func TestServerMemory(t *testing.T) {
	of := func(rows int64) []TensorSpec {
		return []TensorSpec{{Datatype: Float32, Shape: []int64{rows, 1 << 20}}, {Datatype: Float32, Shape: []int64{rows, 1}}}
	}
	folder := t.TempDir()
	if err := holds(folder, of(1)); err != nil {
		t.Errorf("4 MB: %v", err)
	}
	if err := holds(folder, of(1<<32)); err == nil || !strings.Contains(err.Error(), "make it at least as large") {
		t.Errorf("16 petabytes: %v", err)
	}
	if err := holds(filepath.Join(folder, "none"), of(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Chmod(folder, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := holds(folder, of(1)); os.Getuid() != 0 && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "mode 1777")) {
		t.Errorf("a folder that cannot be written to: %v", err)
	}
}
