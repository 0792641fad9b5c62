package e2e

import (
	"syscall"
	"testing"

	"histogate/tests/stack"
	"histogate/tritonclient"
)

// The backend takes no table but the one that its hash is of, and applies it to the bit.
func TestBackendsTileTable(t *testing.T) {
	if out := python(t, nil, "e2e/testdata/tiletable.py"); string(out) != "ok\n" {
		t.Errorf("it says %q", out)
	}
}

// holdTile checks that a model's tile has gone to Triton as bytes, or as floats.
func holdTile(t *testing.T, s *stack.Stack, model string, asBytes bool) {
	t.Helper()
	client, err := tritonclient.New(s.TritonAddress(), tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	metadata, err := client.ModelMetadata(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	want := tritonclient.Float32
	if asBytes {
		want = tritonclient.Uint8
	}
	if got := metadata.Inputs[0].Datatype; got != string(want) {
		t.Errorf("Triton takes the tile as %s, want %s", got, want)
	}
}

// holdSegments checks that tensors have gone through shared memory, of so many models.
func holdSegments(t *testing.T, s *stack.Stack, models int) {
	t.Helper()
	segments := s.Segments()
	if len(segments) != models {
		t.Errorf("Triton has mapped %v, want a segment for each of %d models", segments, models)
	}
	for _, path := range segments {
		var file syscall.Stat_t
		if err := syscall.Stat(path, &file); err != nil || file.Blocks == 0 {
			t.Errorf("%s: %d blocks, %v: no tensor was ever in it", path, file.Blocks, err)
		}
	}
}
