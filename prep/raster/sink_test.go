package raster

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Rows of three and of four bytes a pixel, of any width, end up as three.
func TestRows(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for round := range 200 {
		width, height, step, colour := 1+r.IntN(70), 1+r.IntN(5), 3, byte(2)
		if round%2 == 1 {
			step, colour = 4, 6
		}
		var rows, want []byte // each row behind its filter: none
		for range height {
			rows = append(rows, 0)
			for range width {
				pixel := []byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}
				rows, want = append(rows, pixel[:step]...), append(want, pixel[:3]...)
			}
		}
		file := pngOf(ihdr(width, height, 8, colour, 0), [2]string{"IDAT", compressed(t, rows)}, [2]string{"IEND"})
		got := make([]byte, 3*width*height)
		if err := Decode(file, width, height, Formats(), got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%dx%d of %d bytes a pixel: other pixels", width, height, step)
		}
	}
}
