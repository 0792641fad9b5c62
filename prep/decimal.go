package prep

import (
	"math"
	"strconv"
)

// exactPowers are the powers of ten that float64 holds without rounding.
var exactPowers = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// parseFloat32 reads the valid JSON number that text begins with, and tells its
// length. The value is the float32 nearest to the decimal, as
// [strconv.ParseFloat] has it, and infinite for a number out of range.
//
// It is quick for what counts and their like look like: at most 19 digits and a
// small exponent. These digits as an integer, and one multiplication or division
// by an exact power of ten, are each rounded once in float64, so that the result
// is at most two units in float64's last place from the decimal. Unless a point
// half-way between two float32 values is as near as that, both have the same
// nearest float32. That is worth it: strconv takes three times as long.
func parseFloat32(text []byte) (value float32, length int) {
	i := 0
	negative := text[0] == '-'
	if negative {
		i++
	}
	var mantissa uint64
	start := i
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		mantissa = mantissa*10 + uint64(text[i]-'0')
	}
	digits, exponent := i-start, 0
	if i < len(text) && text[i] == '.' {
		i++
		start = i
		for ; i < len(text) && text[i]-'0' <= 9; i++ {
			mantissa = mantissa*10 + uint64(text[i]-'0')
		}
		digits += i - start
		exponent = start - i
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		i++
		start = i
		if text[i] == '-' || text[i] == '+' {
			i++
		}
		for i < len(text) && text[i]-'0' <= 9 {
			i++
		}
		exponent += clampedAtoi(text[start:i])
	}
	const largest = len(exactPowers) - 1
	if digits > 19 || exponent < -largest || exponent > largest { // 10^19 fits uint64
		return slowFloat32(text[:i]), i
	}
	v := float64(mantissa)
	if exponent < 0 {
		v /= exactPowers[-exponent]
	} else {
		v *= exactPowers[exponent]
	}
	// float64 has 29 bits more than float32: half-way is the first of them alone.
	// No v but zero is so small that float32 would be subnormal.
	const extra, half, margin = 1<<29 - 1, 1 << 28, 4
	if distance := math.Float64bits(v)&extra - half; distance+margin <= 2*margin {
		return slowFloat32(text[:i]), i
	}
	if negative {
		v = -v
	}
	return float32(v), i
}

func slowFloat32(number []byte) float32 {
	v, _ := strconv.ParseFloat(string(number), 32) // out of range: infinite, and an error
	return float32(v)
}
