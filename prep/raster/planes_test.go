package raster

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Each sample is at its place in its channel's plane, for any number of pixels and at
// any address, and nothing beyond them is written.
func TestWritePlanes(t *testing.T) {
	const unaligned, beyond = 1, 0xee
	r := rand.New(rand.NewPCG(7, 8))
	for pixels := 1; pixels < 200; pixels++ {
		rgb := make([]byte, 3*pixels+unaligned)[unaligned:]
		for i := range rgb {
			rgb[i] = byte(r.Uint32())
		}
		memory := bytes.Repeat([]byte{beyond}, len(rgb)+2*unaligned)
		WritePlanes(memory[unaligned:][:len(rgb)], rgb)
		want := []byte{beyond}
		for c := range 3 {
			for i := c; i < len(rgb); i += 3 {
				want = append(want, rgb[i])
			}
		}
		if want = append(want, beyond); !bytes.Equal(memory, want) {
			t.Fatalf("%d pixels: % x, want % x", pixels, memory, want)
		}
	}
	for _, sizes := range [][2]int{{0, 0}, {4, 4}, {3, 6}, {6, 3}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d bytes take %d samples", sizes[0], sizes[1])
				}
			}()
			WritePlanes(make([]byte, sizes[0]), make([]byte, sizes[1]))
		}()
	}
}

func BenchmarkWritePlanes(b *testing.B) {
	rgb, dst := make([]byte, 3*224*224), make([]byte, 3*224*224)
	b.SetBytes(int64(len(rgb)))
	for b.Loop() {
		WritePlanes(dst, rgb)
	}
}
