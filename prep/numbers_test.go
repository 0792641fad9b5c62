package prep

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func appendFloat32s(values ...float32) []byte {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return raw
}

func TestAppendFloats(t *testing.T) {
	for want, values := range map[string][]float32{
		"":                             nil,
		"0":                            {0},
		"1,-2,0.5":                     {1, -2, 0.5},
		"-0.0,0":                       {float32(math.Copysign(0, -1)), 0},
		"0.1,0.3,16777216":             {0.1, 0.3, 1 << 24},
		"0.000001,9.999999e-07":        {1e-6, math.Nextafter32(1e-6, 0)},
		"3.4028235e+38,-3.4028235e+38": {math.MaxFloat32, -math.MaxFloat32},
		"1e-45,-1e-45":                 {math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32},
		"1e+21,999999950000000000000":  {1e21, math.Nextafter32(1e21, 0)},
	} {
		got, err := AppendFloats(nil, appendFloat32s(values...))
		if err != nil {
			t.Error(err)
		}
		if string(got) != want {
			t.Errorf("%v is written %s, want %s", values, got, want)
		}
	}
	if got, err := AppendFloats([]byte(`{"output":[`), appendFloat32s(1, 2)); err != nil || string(got) != `{"output":[1,2` {
		t.Errorf("appended: %s (%v)", got, err)
	}
}

func TestAppendFloatsRefusesWhatJSONCannotHold(t *testing.T) {
	for want, bad := range map[string]float32{
		"value 2 is NaN":  float32(math.NaN()),
		"value 2 is +Inf": float32(math.Inf(1)),
		"value 2 is -Inf": float32(math.Inf(-1)),
	} {
		if _, err := AppendFloats(nil, appendFloat32s(1, 2, bad, 4)); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000} {
		if text, err := AppendFloats(nil, binary.LittleEndian.AppendUint32(nil, bits)); err == nil {
			t.Errorf("the NaN %08x is written %s", bits, text)
		}
	}
}

// Every exponent, subnormals and random patterns: valid JSON, the same bits when
// read back, and no shorter decimal does that.
func TestAppendFloatsReadsBackToTheSameBits(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	var patterns []uint32
	add := func(bits uint32) {
		if bits>>23&0xff != 0xff {
			patterns = append(patterns, bits)
		}
	}
	for exponent := range uint32(255) {
		for _, mantissa := range []uint32{0, 1, 2, 0x3fffff, 0x400000, 0x400001, 0x7ffffe, 0x7fffff, random.Uint32() & 0x7fffff} {
			add(exponent<<23 | mantissa)
			add(1<<31 | exponent<<23 | mantissa)
		}
	}
	for range 200_000 {
		add(random.Uint32())
		add(random.Uint32() & 0x807fffff) // subnormal
		add(math.Float32bits(float32(random.NormFloat64())))
	}
	for _, v := range []float32{1e-6, 1e21, 1e-7, 1e20, 1e22, 9.999999e20, 9.9999997e-7} {
		for _, near := range []float32{math.Nextafter32(v, 0), v, math.Nextafter32(v, math.MaxFloat32)} {
			add(math.Float32bits(near))
			add(math.Float32bits(-near))
		}
	}
	var raw []byte
	for _, bits := range patterns {
		raw = binary.LittleEndian.AppendUint32(raw, bits)
	}
	text, err := AppendFloats([]byte("["), raw)
	if err != nil {
		t.Fatal(err)
	}
	var back []float32
	if err := json.Unmarshal(append(text, ']'), &back); err != nil || len(back) != len(patterns) {
		t.Fatalf("%d of %d values read back (%v)", len(back), len(patterns), err)
	}
	for i, number := range strings.Split(string(text[1:]), ",") {
		if math.Float32bits(back[i]) != patterns[i] {
			t.Fatalf("%08x is written %s and read back as %08x", patterns[i], number, math.Float32bits(back[i]))
		}
		// One significant digit less is another number.
		mantissa, _, _ := strings.Cut(strings.TrimLeft(strings.Replace(number, ".", "", 1), "-0"), "e")
		digits := len(strings.TrimRight(mantissa, "0"))
		if digits > 1 {
			shorter := strconv.FormatFloat(float64(back[i]), 'e', digits-2, 32)
			if v, err := strconv.ParseFloat(shorter, 32); err == nil && float32(v) == back[i] {
				t.Fatalf("%s could be written %s", number, shorter)
			}
		}
	}
}
