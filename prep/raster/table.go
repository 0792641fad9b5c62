package raster

// #include "table.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// Layout says how the values of a tile's samples lie in memory: a plane for each
// channel, 3 x H x W, little-endian.
type Layout int

const (
	Float32 Layout = iota
	Float16        // IEEE binary16
)

// Size is the number of bytes of one value.
func (l Layout) Size() int {
	if l == Float16 {
		return 2
	}
	return 4
}

// Table holds, for each channel, the normalised value of each of the 256
// possible samples: (v/255 - mean)/std with every step rounded to float32,
// which is what a float32 tensor library computes in that order.
type Table struct {
	// F32 is indexed by channel (R, G, B) and sample.
	F32 [3][256]float32
	// F16 is F32 rounded to IEEE binary16, half to even.
	F16 [3][256]uint16

	// What C computes the values from instead, where that gives the same bits.
	mean, std, inverse [3]float32
	computable         int32
}

// C reads a Table as the hg_table of table.h.
var _ [unsafe.Sizeof(Table{})]byte = [C.sizeof_hg_table]byte{}

// NewTable computes the table for a mean and a standard deviation per channel.
func NewTable(mean, std [3]float32) *Table {
	t := &Table{mean: mean, std: std}
	for c := range 3 {
		t.inverse[c] = 1 / std[c]
		for v := range 256 {
			// No product here, so no compiler may fuse two roundings into one.
			x := (float32(v)/255 - mean[c]) / std[c]
			t.F32[c][v] = x
			t.F16[c][v] = Float16Bits(x)
		}
	}
	if agrees(t) {
		t.computable = 1
	}
	return t
}

// agrees says whether C computes just the values of a table.
func agrees(t *Table) bool {
	return C.hg_table_computable((*C.hg_table)(unsafe.Pointer(t))) != 0
}

// Write writes the values of the samples of a tile, which are in the order that
// Decode gives them in, to dst. It panics unless dst has room for just those.
func (t *Table) Write(dst []byte, layout Layout, rgb []byte) {
	if len(rgb) == 0 || len(rgb)%3 != 0 || len(dst) != len(rgb)*layout.Size() {
		panic(fmt.Sprintf("raster: destination of %d bytes for %d samples of %d", len(dst), len(rgb), layout.Size()))
	}
	pixels := C.size_t(len(rgb) / 3)
	C.hg_table_write((*C.hg_table)(unsafe.Pointer(t)), C.int(layout), (*C.uint8_t)(unsafe.SliceData(rgb)), pixels, pixels, unsafe.Pointer(unsafe.SliceData(dst)))
}

// Float16Bits rounds x to IEEE binary16, half to even.
func Float16Bits(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b>>16) & 0x8000
	exp := int(b>>23&0xff) - 127
	mant := b & 0x7fffff
	switch {
	case exp == 128 && mant != 0: // NaN
		return sign | 0x7e00
	case exp > 15: // infinite, or too large
		return sign | 0x7c00
	case exp >= -14: // normal
		h := uint32(exp+15)<<10 | mant>>13
		return sign | uint16(h+roundUp(h, mant, 13))
	case exp >= -25: // subnormal
		mant |= 0x800000
		shift := uint(-exp - 1)
		h := mant >> shift
		return sign | uint16(h+roundUp(h, mant, shift))
	default: // underflow
		return sign
	}
}

// roundUp is 1 when dropping the low bits of mant must round h, whose lowest
// bit is the last one kept, to the next value.
func roundUp(h, mant uint32, dropped uint) uint32 {
	rest := mant & (1<<dropped - 1)
	half := uint32(1) << (dropped - 1)
	if rest > half || rest == half && h&1 == 1 {
		return 1
	}
	return 0
}
