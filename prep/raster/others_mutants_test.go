package raster

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// mutate changes a copy of a file in one to four places.
func mutate(r *rand.Rand, seed []byte) []byte {
	data := bytes.Clone(seed)
	for range 1 + r.IntN(4) {
		if len(data) < 2 {
			break
		}
		at := r.IntN(len(data))
		switch r.IntN(4) {
		case 0: // near the start, where headers are
			at = r.IntN(min(len(data), 64))
		case 1: // near the end, where Pillow's directories are
			at = len(data) - 1 - r.IntN(min(len(data), 250))
		}
		switch r.IntN(16) {
		case 0:
			data = data[:at]
		case 1:
			data = append(data[:at:at], data[at+1:]...)
		case 2:
			data = append(data[:at:at], append([]byte{byte(r.Uint32())}, data[at:]...)...)
		case 3, 4, 5:
			data[at] ^= 1 << r.IntN(8)
		case 6, 7, 8:
			data[at] = []byte{0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 127, 128, 254, 255}[r.IntN(14)]
		case 9, 10:
			data[at]++
		case 11:
			data[at]--
		default:
			data[at] = byte(r.Uint32())
		}
	}
	return data
}

// TestMutantsAgainstPillow: never other pixels than Pillow's, never a picture
// where Pillow refuses. OTHERS_MUTANTS sets the number of mutants.
func TestMutantsAgainstPillow(t *testing.T) {
	count, seed := 4000, uint64(1)
	if v := os.Getenv("OTHERS_MUTANTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		count, seed = n, uint64(time.Now().UnixNano())
	}
	t.Logf("%d mutants, seed %d", count, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	oracle := startPillow(t)
	type file struct {
		name          string
		data, rgb     []byte
		width, height int
	}
	byFormat := make(map[Format][]file)
	seeds := smallSeeds(t)
	for _, name := range slices.Sorted(maps.Keys(seeds)) {
		data := seeds[name]
		f := file{name: name, data: data}
		f.width, f.height, f.rgb = oracle.decode(t, data)
		for _, d := range decoders {
			if d.matches(data) {
				byFormat[d.format] = append(byFormat[d.format], f)
			}
		}
	}
	for _, format := range []Format{TIFF, GIF, BMP} {
		files := byFormat[format]
		both, changed, pillowOnly, wrong := 0, 0, 0, 0
		for n := range count / 3 {
			f := files[r.IntN(len(files))]
			data := mutate(r, f.data)
			width, height, want := oracle.decode(t, data)
			if width == 0 {
				width, height, want = f.width, f.height, nil
			}
			got := make([]byte, 3*width*height)
			err := Decode(data, width, height, []Format{format}, got)
			switch {
			case err == nil && !bytes.Equal(got, want):
				wrong++
				kept := filepath.Join(os.TempDir(), fmt.Sprintf("disagreement-%d-%d-%s", seed, n, f.name))
				t.Errorf("a mutant of %s is taken; Pillow refuses it: %t; it is kept in %s (%v)",
					f.name, want == nil, kept, os.WriteFile(kept, data, 0o600))
			case err == nil:
				both++
				if !bytes.Equal(want, f.rgb) {
					changed++
				}
			case want != nil:
				pillowOnly++
			}
		}
		share := func(n int) float64 { return 100 * float64(n) / float64(count/3) }
		t.Logf("%s: %d mutants; taken by both %.1f %%, of them with other pixels than the seed's %.1f %%; "+
			"refused here alone %.1f %%; disagreements %d", format, count/3, share(both), share(changed), share(pillowOnly), wrong)
		if both == 0 || changed == 0 {
			t.Errorf("no mutant of a %s is taken by both: nothing was tested", format)
		}
	}
}

func fuzzOther(f *testing.F, format Format) {
	for _, data := range smallSeeds(f) {
		for _, d := range decoders {
			if d.format == format && d.matches(data) {
				f.Add(data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, size := range [][2]int{{21, 18}, {18, 21}} {
			err := Decode(data, size[0], size[1], []Format{format}, make([]byte, 3*21*18))
			if err != nil && !errors.As(err, new(*Error)) {
				t.Errorf("%T: %v", err, err)
			}
		}
	})
}

func FuzzTIFF(f *testing.F) { fuzzOther(f, TIFF) }
func FuzzGIF(f *testing.F)  { fuzzOther(f, GIF) }
func FuzzBMP(f *testing.F)  { fuzzOther(f, BMP) }
