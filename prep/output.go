package prep

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// maskThreshold is the bits of the largest float32 x whose sigmoid
// 1/(1 + exp(-x)) is not above 0.5 when each step is rounded to float32:
// 1.5 x 2^-24, about 8.94e-8.
//
// Up to it exp(-x) rounds to 1 or to 1 - 2^-24, which added to 1 both make 2,
// and 1/2 is 0.5. From the next float32 on exp(-x) rounds to at most 1 - 2^-23,
// the sum is below 2 and its reciprocal above 0.5. That takes an exp that rounds
// correctly this near to 1. The C library's does, and SLEEF's, on which tensor
// libraries build; numpy's with AVX2 or AVX-512 is one unit off up to 1.232e-7.
const maskThreshold = 0x33c00000

// Transform applies the output's transforms, in place, to what the model gave
// for one sample: little-endian float32 values. A value that is not finite and
// that no transform makes finite is an error: it is no answer.
func (o Output) Transform(data []byte) error {
	if want := Elements(o.Shape) * o.DType.Size(); len(data) != want {
		return fmt.Errorf("output %s has %d bytes, not %d", o.Name, len(data), want)
	}
	for _, t := range o.Transforms {
		switch t.Name {
		case Expm1:
			each(data, expm1)
		case NonFiniteToZero:
			each(data, func(v float32) float32 {
				if nonFinite(float64(v)) {
					return 0
				}
				return v
			})
		case Round:
			each(data, func(v float32) float32 { return float32(math.RoundToEven(float64(v))) })
		case Mask: // nothing follows it, and 0 and 1 are finite
			return o.checkFinite(data, maskLogits(data))
		}
	}
	return o.checkFinite(data, 0)
}

// maskLogits makes logits 1 above the threshold and else 0, up to the first that is not
// finite, and tells how many bytes it did. What it decides has no branch, for at the
// edges of a tissue none can be predicted.
func maskLogits(data []byte) int {
	// Floats of which one is positive are in the order of their bits as signed
	// integers: the difference is negative above the threshold.
	const one, threshold = 0x3f800000, int64(maskThreshold)
	i := 0
	for ; i+8 <= len(data); i += 8 {
		pair := binary.LittleEndian.Uint64(data[i:])
		if !finitePair(pair) {
			return i
		}
		first, second := uint64(threshold-int64(int32(pair)))>>63, uint64(threshold-int64(pair)>>32)>>63
		binary.LittleEndian.PutUint64(data[i:], (second<<32|first)*one)
	}
	if i+4 <= len(data) {
		last := binary.LittleEndian.Uint32(data[i:])
		if !finitePair(uint64(last)) {
			return i
		}
		binary.LittleEndian.PutUint32(data[i:], uint32(uint64(threshold-int64(int32(last)))>>63*one))
		i += 4
	}
	return i
}

// AppendJSON appends transformed values as the inside of a JSON array, in the
// form of [AppendFloats].
func (o Output) AppendJSON(dst, data []byte) ([]byte, error) {
	if o.IsMask() {
		return appendMask(dst, data), nil
	}
	return AppendFloats(dst, data)
}

// MostJSON bounds what [Output.AppendJSON] appends, in bytes. For a mask it is
// what is appended, and a byte.
func (o Output) MostJSON() int {
	if o.IsMask() {
		return Elements(o.Shape) * len("0,")
	}
	return Elements(o.Shape) * (mostFloat + len(","))
}

// IsMask tells whether its values are 0 and 1.
func (o Output) IsMask() bool {
	n := len(o.Transforms)
	return n > 0 && o.Transforms[n-1].Name == Mask
}

// appendMask appends float32 values that are 0 or 1 as "0,1,...".
func appendMask(dst, data []byte) []byte {
	if len(data) == 0 {
		return dst
	}
	start, size := len(dst), len(data)/2 // four bytes become a digit and a comma
	dst = slices.Grow(dst, size)[:start+size]
	text := dst[start:]
	// 1 is 0x3f800000 as a float32: its bit 24 is the digit's lowest.
	for ; len(data) >= 16; data, text = data[16:], text[8:] {
		a, b := binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
		digits := a>>24&1 | a>>56&1<<16 | b>>24&1<<32 | b>>56&1<<48
		binary.LittleEndian.PutUint64(text, digits|0x2c302c302c302c30) // "0,0,0,0,"
	}
	for ; len(data) >= 4; data, text = data[4:], text[2:] {
		text[0], text[1] = '0'+data[3]&1, ','
	}
	return dst[:start+size-1]
}

// checkFinite looks at the values from a byte on.
func (o Output) checkFinite(data []byte, from int) error {
	i := from
	for i+8 <= len(data) && finitePair(binary.LittleEndian.Uint64(data[i:])) {
		i += 8
	}
	for ; i+4 <= len(data); i += 4 {
		if bits := binary.LittleEndian.Uint32(data[i:]); !finitePair(uint64(bits)) {
			return fmt.Errorf("output %s: value %d is %v", o.Name, i/4, math.Float32frombits(bits))
		}
	}
	return nil
}

// finitePair tells whether both of two float32 values are finite: an exponent that is
// all ones is not, and one more carries into the sign's place.
func finitePair(pair uint64) bool {
	const exponent, one, sign = 0x7f800000, 0x00800000, 1 << 31
	return (pair&(exponent<<32|exponent)+(one<<32|one))&(sign<<32|sign) == 0
}

// each replaces every little-endian float32 value.
func each(data []byte, f func(float32) float32) {
	for ; len(data) >= 4; data = data[4:] {
		v := math.Float32frombits(binary.LittleEndian.Uint32(data))
		binary.LittleEndian.PutUint32(data, math.Float32bits(f(v)))
	}
}
