package raster

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// The values written are those of the table, bit for bit and each at its place, be
// they computed or looked up: for any number of pixels, for constants of models and
// for any, at any address.
func TestComputedValuesAreTheTables(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	computable := 0
	for round := range 200 {
		mean, std := tissueMean, tissueStd
		switch {
		case round == 1:
			mean, std = [3]float32{}, [3]float32{1, 1, 1}
		case round > 1:
			for c := range 3 {
				mean[c], std[c] = r.Float32(), float32(math.Exp(r.NormFloat64()*2-2))
			}
		}
		table := NewTable(mean, std)
		computable += int(table.computable)
		if round < 2 && table.computable == 0 && hasAVX2(t) {
			t.Errorf("the values of mean %v and std %v are not computed", mean, std)
		}
		rgb := make([]byte, 3*(1+r.IntN(3000)))
		for i := range rgb {
			rgb[i] = byte(r.Uint32())
		}
		for _, layout := range []Layout{Float32, Float16} {
			const unaligned = 1
			got := make([]byte, unaligned+len(rgb)*layout.Size())[unaligned:]
			table.Write(got, layout, rgb)
			var want []byte
			for c := range 3 {
				for i := c; i < len(rgb); i += 3 {
					if v := rgb[i]; layout == Float32 {
						want = binary.LittleEndian.AppendUint32(want, math.Float32bits(table.F32[c][v]))
					} else {
						want = binary.LittleEndian.AppendUint16(want, table.F16[c][v])
					}
				}
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("mean %v, std %v, %d samples, layout %v: other values than the table's", mean, std, len(rgb), layout)
			}
		}
	}
	t.Logf("%d of 200 tables computed", computable)
}

// What cannot be computed to the last bit is looked up.
func TestValuesThatCannotBeComputed(t *testing.T) {
	for _, std := range []float32{0, 1e-40, float32(math.Inf(1))} {
		if table := NewTable([3]float32{0.5, 0.5, 0.5}, [3]float32{1, std, 1}); table.computable != 0 {
			t.Errorf("a std of %v is computed with", std)
		}
	}
	table := NewTable(tissueMean, tissueStd)
	table.F32[2][255] = math.Float32frombits(math.Float32bits(table.F32[2][255]) ^ 1)
	if agrees(table) {
		t.Error("a value that is off by one bit is not seen")
	}
}

func hasAVX2(t *testing.T) bool {
	t.Helper()
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	flags := string(info)
	return strings.Contains(flags, " avx2") && strings.Contains(flags, " fma") && strings.Contains(flags, " f16c")
}
