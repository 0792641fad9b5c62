package prep

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// mostFloat is the length of the longest number of [AppendFloats]: the negative
// of one just below 1e21, whose digits are all written out.
const mostFloat = 22

// AppendFloats appends little-endian float32 values as the inside of a JSON
// array: each the shortest decimal that reads back to the same float32. A value
// that is not finite cannot be written in JSON and is an error.
func AppendFloats(dst, values []byte) ([]byte, error) {
	for i := 0; i+4 <= len(values); i += 4 {
		v := float64(math.Float32frombits(binary.LittleEndian.Uint32(values[i:])))
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return dst, fmt.Errorf("value %d is %v", i/4, v)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		if v == 0 && math.Signbit(v) {
			// Without a fraction some readers take it for an integer, which has no
			// negative zero.
			dst = append(dst, "-0.0"...)
			continue
		}
		// Exponents where ECMAScript, and so most JSON writers, has them.
		format := byte('f')
		if abs := math.Abs(v); abs != 0 && (float32(abs) < 1e-6 || float32(abs) >= 1e21) {
			format = 'e'
		}
		dst = strconv.AppendFloat(dst, v, format, -1, 32)
	}
	return dst, nil
}
