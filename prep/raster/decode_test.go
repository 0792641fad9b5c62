package raster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var (
	mean = [3]float32{0.485, 0.456, 0.406}
	std  = [3]float32{0.229, 0.224, 0.225}
)

// randomPNG is a picture of noise: random filters, random bytes.
func randomPNG(t testing.TB, r *rand.Rand, depth, colour, interlaced byte) (data []byte, width, height int) {
	width, height = 1+r.IntN(70), 1+r.IntN(20)
	bits := int(depth) * []int{1, 0, 3, 1, 2, 0, 4}[colour]
	passes := [][4]int{{0, 0, 1, 1}}
	if interlaced == 1 {
		passes = [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}
	}
	var rows []byte
	for _, p := range passes {
		for y := p[1]; y < height && p[0] < width; y += p[3] {
			rows = append(rows, byte(r.IntN(5)))
			for range ((width-p[0]+p[2]-1)/p[2]*bits + 7) / 8 {
				rows = append(rows, byte(r.IntN(256)))
			}
		}
	}
	palette := make([]byte, 768)
	for i := range palette {
		palette[i] = byte(r.IntN(256))
	}
	return pngOf(ihdr(width, height, depth, colour, interlaced), [2]string{"PLTE", string(palette)},
		[2]string{"IDAT", compressed(t, rows)}, [2]string{"IEND"}), width, height
}

var pngKinds = []pngKind{{1, 0}, {2, 0}, {4, 0}, {8, 0}, {8, 2}, {16, 2}, {1, 3}, {2, 3}, {4, 3}, {8, 3}, {8, 4}, {16, 4}, {8, 6}, {16, 6}}

// TestUnfilterVariants: both ways to undo the filters give the same picture.
func TestUnfilterVariants(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, kind := range pngKinds {
		for i := range 60 {
			data, width, height := randomPNG(t, r, kind.depth, kind.colour, byte(i%2))
			fast, portable := make([]byte, 3*width*height), make([]byte, 3*width*height)
			errFast := readPNG(data, width, height, fast, false)
			errPortable := readPNG(data, width, height, portable, true)
			if errFast != nil || errPortable != nil {
				t.Fatalf("%v: %v, %v", kind, errFast, errPortable)
			}
			if !bytes.Equal(fast, portable) {
				t.Fatalf("%v at %dx%d: other pixels", kind, width, height)
			}
		}
	}
}

// TestPortableImages runs TestImages' PNGs through the portable code as well.
func TestPortableImages(t *testing.T) {
	for _, i := range manifest(t, "../../tests/testdata/images/manifest-png-jpeg-webp.tsv", "png") {
		if i.width == 0 || refusedAnyway[i.class] != "" {
			continue
		}
		dst := make([]byte, 3*i.width*i.height)
		if err := readPNG(testImage(t, i.file), i.width, i.height, dst, true); err != nil || sum(dst) != i.sum {
			t.Errorf("%s: other pixels than Pillow's (%v)", i.file, err)
		}
	}
}

func TestDecodeRefusals(t *testing.T) {
	tile := testImage(t, "png_text_ok.png")
	lossless := testImage(t, "jpeg_420.jpg")
	lossless[bytes.Index(lossless, []byte{0xff, 0xc0})+1] = 0xc3
	for name, c := range map[string]struct {
		data    []byte
		width   int
		formats []Format
		kind    Kind
		says    string
	}{
		"another size":     {tile, 225, Formats(), WrongSize, "the PNG is 224x224 pixels; the model takes 225x224"},
		"format not taken": {tile, 224, []Format{JPEG, WebP}, UnknownFormat, "JPEG, WebP"},
		"no image":         {[]byte("<svg/>"), 224, Formats(), UnknownFormat, "PNG, JPEG, WebP"},
		"nothing":          {nil, 224, Formats(), UnknownFormat, "PNG"},
		"signature alone":  {tile[:8], 224, Formats(), Damaged, "PNG is truncated"},
		"half":             {tile[:len(tile)/2], 224, Formats(), Damaged, "PNG is truncated"},
		"16-bit grey":      {pngOf(ihdr(224, 224, 16, 0, 0), [2]string{"IDAT", "x"}), 224, Formats(), Unsupported, "send 8-bit RGB"},
		"lossless JPEG":    {lossless, 224, Formats(), Unsupported, "lossless"},
	} {
		err := Decode(c.data, c.width, 224, c.formats, make([]byte, 3*c.width*224))
		var refused *Error
		if !errors.As(err, &refused) || refused.Kind != c.kind || !strings.Contains(refused.Detail, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodePanicsAtTheCallersMistakes(t *testing.T) {
	for name, call := range map[string]func(){
		"short destination": func() { _ = Decode(nil, 2, 2, nil, make([]byte, 11)) },
		"no size":           func() { _ = Decode(nil, 0, 2, nil, nil) },
		"short values":      func() { NewTable(mean, std).Write(make([]byte, 11), Float32, make([]byte, 3)) },
		"no samples":        func() { NewTable(mean, std).Write(nil, Float32, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
}

// fuzzFormat looks for a crash, and for pixels that depend on anything but the
// file: what was in the destination before, or the code that was chosen.
func fuzzFormat(f *testing.F, class string, format Format) {
	// Small ones: the time is to go into mutants, not into shortening them (for
	// which -fuzzminimizetime 10x is enough).
	for _, i := range manifest(f, "../../tests/testdata/images/manifest-png-jpeg-webp.tsv", class) {
		if data := testImage(f, i.file); len(data) < 11_000 {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		decode := func(poison byte, width, height int) ([]byte, error) {
			dst := slices.Repeat([]byte{poison}, 3*width*height)
			return dst, Decode(data, width, height, []Format{format}, dst)
		}
		width, height := 224, 224
		a, errA := decode(0, width, height)
		if w, h := declaredSize(data, format); w > 0 && h > 0 && w < 500 && h < 500 {
			width, height = w, h
			a, errA = decode(0, width, height)
		}
		b, errB := decode(0xff, width, height)
		if (errA == nil) != (errB == nil) || errA == nil && !bytes.Equal(a, b) {
			t.Errorf("%v, then %v; equal %v", errA, errB, bytes.Equal(a, b))
		}
		if errA == nil && format == PNG {
			if err := readPNG(data, width, height, b, true); err != nil || !bytes.Equal(a, b) {
				t.Errorf("the portable code gives other pixels (%v)", err)
			}
		}
	})
}

// declaredSize is where each format mostly has its size.
func declaredSize(data []byte, format Format) (width, height int) {
	switch format {
	case PNG:
		if len(data) > 24 {
			return int(binary.BigEndian.Uint32(data[16:])), int(binary.BigEndian.Uint32(data[20:]))
		}
	case JPEG:
		j := jpegReader{data: data, pos: min(2, len(data))}
		j.open()
		return j.width, j.height
	case WebP:
		width, height, _ = webpSize(data)
	}
	return width, height
}

func FuzzPNG(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, kind := range pngKinds {
		for interlaced := range byte(2) {
			data, _, _ := randomPNG(f, r, kind.depth, kind.colour, interlaced)
			f.Add(data)
		}
	}
	fuzzFormat(f, "png", PNG)
}

func FuzzJPEG(f *testing.F) { fuzzFormat(f, "jpeg", JPEG) }
func FuzzWebP(f *testing.F) { fuzzFormat(f, "webp", WebP) }
