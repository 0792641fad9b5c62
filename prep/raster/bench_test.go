package raster

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// encoded writes the benchmark's tile in a format, by Pillow.
func encoded(b *testing.B, format, options string) []byte {
	b.Helper()
	python, err := filepath.Abs("../../build/tools/bin/python")
	if err != nil {
		b.Fatal(err)
	}
	script := "import sys; from PIL import Image; Image.open(sys.argv[1]).save(sys.stdout.buffer, '" + format + "', " + options + ")"
	out, err := exec.Command(python, "-c", script, benchTile).Output()
	if err != nil {
		b.Fatalf("no Pillow to encode with; deploy/setup installs it: %v", err)
	}
	return out
}

const benchTile = "../../tests/testdata/tiles/cmu1_x1120_y2464.png"

// benchmark goes from a file to the values of its samples.
func benchmark(b *testing.B, data []byte) {
	rgb, dst, table := make([]byte, 3*224*224), make([]byte, 3*224*224*4), NewTable(mean, std)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Decode(data, 224, 224, Formats(), rgb); err != nil {
			b.Fatal(err)
		}
		table.Write(dst, Float32, rgb)
	}
}

func BenchmarkPNG(b *testing.B) {
	data, err := os.ReadFile(benchTile)
	if err != nil {
		b.Fatal(err)
	}
	benchmark(b, data)
}

func BenchmarkJPEG(b *testing.B)         { benchmark(b, encoded(b, "JPEG", "quality=90")) }
func BenchmarkWebP(b *testing.B)         { benchmark(b, encoded(b, "WEBP", "quality=80")) }
func BenchmarkWebPLossless(b *testing.B) { benchmark(b, encoded(b, "WEBP", "lossless=True")) }
