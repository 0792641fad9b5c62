package prep

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// encodedTile is a tile in another format, by Pillow.
func encodedTile(t *testing.T, options string) []byte {
	t.Helper()
	const script = "import sys; from PIL import Image; Image.open(sys.argv[1]).save(sys.stdout.buffer, "
	python := filepath.Join("..", "build", "tools", "bin", "python")
	out, err := exec.Command(python, "-c", script+options+")", tileFiles(t)[0]).Output()
	if err != nil {
		t.Fatalf("no Pillow in build/tools to encode with; deploy/setup installs it: %v", err)
	}
	return out
}

// A request costs few allocations, and small ones: those of ParseRequest and of
// what the decoders note down. Tensors and images come from pools.
func TestAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("under the race detector pools drop some of what they are given")
	}
	for name, c := range map[string]struct {
		image []byte
		most  float64
	}{
		"PNG":  {readTile(t, tileFiles(t)[0]), 13},
		"JPEG": {encodedTile(t, "'JPEG', quality=90"), 2},
		"WebP": {encodedTile(t, "'WEBP', quality=80"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPreparer(testSpec())
			body := tileBody(c.image, "S1", 7)
			tensor := make([]byte, testSpec().SentBytes(0))
			run := func() {
				sample, err := p.Prepare(parse(t, body))
				if err != nil {
					t.Fatal(err)
				}
				sample.Write(0, tensor)
				sample.Release()
			}
			run()
			// The collector may empty the pools in between: then two are added once.
			if allocs := testing.AllocsPerRun(200, run); allocs > c.most {
				t.Errorf("%v allocations, want at most %v", allocs, c.most)
			}
			result := testing.Benchmark(func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					run()
				}
			})
			if size := result.AllocedBytesPerOp(); size > 16<<10 {
				t.Errorf("%d bytes allocated for a request: a tensor or an image is among them", size)
			}
			t.Log(result.AllocsPerOp(), "allocations,", result.AllocedBytesPerOp(), "bytes")
		})
	}
}
