package raster

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
)

// The constants that the published models were trained with.
var (
	tissueMean = [3]float32{0.707223, 0.578729, 0.703617}
	tissueStd  = [3]float32{0.211883, 0.230117, 0.177517}
)

// numpy runs the reference script with the given arguments and input.
func numpy(t *testing.T, stdin []byte, args ...string) []byte {
	t.Helper()
	root := filepath.Join("..", "..")
	script := filepath.Join(root, "tests", "reference", "normalise.py")
	cmd := exec.Command(filepath.Join(root, "build", "tools", "bin", "python"), append([]string{script}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the reference needs Python with numpy and Pillow in build/tools, which deploy/setup makes: %v\n%s", err, &complaint)
	}
	return out
}

func TestTableEqualsNumpy(t *testing.T) {
	for name, test := range map[string]struct {
		mean, std         [3]float32
		meanText, stdText string
	}{
		"tissue":          {tissueMean, tissueStd, "0.707223,0.578729,0.703617", "0.211883,0.230117,0.177517"},
		"division by 255": {[3]float32{}, [3]float32{1, 1, 1}, "0,0,0", "1,1,1"},
	} {
		t.Run(name, func(t *testing.T) {
			want := numpy(t, nil, "table", test.meanText, test.stdText)
			if len(want) != 768*(4+2) {
				t.Fatalf("the reference is %d bytes", len(want))
			}
			table := NewTable(test.mean, test.std)
			for c := range 3 {
				for v := range 256 {
					i := 256*c + v
					single := binary.LittleEndian.Uint32(want[4*i:])
					half := binary.LittleEndian.Uint16(want[4*768+2*i:])
					if got := math.Float32bits(table.F32[c][v]); got != single {
						t.Errorf("channel %d, sample %d is %08x, want %08x", c, v, got, single)
					}
					if got := table.F16[c][v]; got != half {
						t.Errorf("channel %d, sample %d is %04x as float16, want %04x", c, v, got, half)
					}
				}
			}
		})
	}
}

// Every float16, the midpoint between each two, the float32 on both sides of
// each of them, and random patterns.
func TestFloat16EqualsNumpy(t *testing.T) {
	var patterns []uint32
	add := func(v float32) {
		b := math.Float32bits(v)
		for _, bits := range []uint32{b - 1, b, b + 1} {
			patterns = append(patterns, bits&^(1<<31), bits|1<<31)
		}
	}
	value := func(half uint32) float64 { // of a positive, finite float16, or of 2^16
		exponent, mantissa := int(half>>10), float64(half&0x3ff)
		if exponent == 0 {
			return math.Ldexp(mantissa, -24)
		}
		return math.Ldexp(1024+mantissa, exponent-25)
	}
	for half := range uint32(0x7c00) {
		add(float32(value(half)))
		add(float32((value(half) + value(half+1)) / 2))
	}
	random := rand.New(rand.NewPCG(13, 14))
	for range 500_000 {
		patterns = append(patterns, random.Uint32())
		// Of an exponent that float16 has, or nearly.
		patterns = append(patterns, uint32(127-27+random.IntN(45))<<23|random.Uint32()&0x807fffff)
	}
	for exponent := range uint32(256) {
		patterns = append(patterns, exponent<<23, exponent<<23|0x7fffff, 1<<31|exponent<<23|1)
	}
	raw := make([]byte, 0, 4*len(patterns))
	for _, bits := range patterns {
		raw = binary.LittleEndian.AppendUint32(raw, bits)
	}
	want := numpy(t, raw, "float16")
	for i, bits := range patterns {
		got, want := Float16Bits(math.Float32frombits(bits)), binary.LittleEndian.Uint16(want[2*i:])
		isNaN := bits&0x7fffffff > 0x7f800000
		if isNaN && got&0x7c00 == 0x7c00 && got&0x3ff != 0 {
			continue // any NaN will do
		}
		if got != want {
			t.Fatalf("%08x is %04x, want %04x", bits, got, want)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	const side = 224
	rgb := make([]byte, 3*side*side)
	for i := range rgb {
		rgb[i] = byte(i * 7)
	}
	table := NewTable(tissueMean, tissueStd)
	for layout, name := range map[Layout]string{Float32: "Float32", Float16: "Float16"} {
		b.Run(name, func(b *testing.B) {
			dst := make([]byte, len(rgb)*layout.Size())
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				table.Write(dst, layout, rgb)
			}
		})
	}
}
