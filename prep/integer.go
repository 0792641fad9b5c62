package prep

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// checkInteger takes a number whose value is an integer that fits 64 bits,
// however it is written: 7, 7.0 and 0.7e1 are the same.
func checkInteger(t token) error {
	if t.kind != numberKind {
		return errors.New("must be an integer, not " + t.describe())
	}
	_, err := parseInteger(t.raw)
	return err
}

func appendInteger(dst, number []byte) []byte {
	if bytes.IndexByte(number, '.') < 0 && bytes.IndexByte(number, 'e') < 0 && bytes.IndexByte(number, 'E') < 0 {
		return append(dst, number...)
	}
	n, _ := parseInteger(number)
	return strconv.AppendInt(dst, n, 10)
}

// parseInteger evaluates a scanned JSON number exactly. Its cost does not
// depend on the size of the exponent.
func parseInteger(number []byte) (int64, error) {
	text := number
	negative := text[0] == '-'
	if negative {
		text = text[1:]
	}
	exponent := 0
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		exponent = clampedAtoi(text[i+1:])
		text = text[:i]
	}
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	exponent -= len(fraction)
	digits := append(append(make([]byte, 0, len(whole)+len(fraction)), whole...), fraction...)
	digits = bytes.TrimLeft(digits, "0")
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
		exponent++
	}
	switch {
	case len(digits) == 0:
		return 0, nil
	case exponent < 0:
		return 0, errors.New("must be an integer, and " + clip(string(number)) + " has a fraction")
	case len(digits)+exponent > 19: // 2^63 has 19 digits
		return 0, errInt64(number)
	}
	digits = append(digits, bytes.Repeat([]byte("0"), exponent)...)
	n, err := strconv.ParseUint(string(digits), 10, 64)
	switch {
	case err != nil || n > math.MaxInt64+1 || n == math.MaxInt64+1 && !negative:
		return 0, errInt64(number)
	case negative:
		return -int64(n), nil
	default:
		return int64(n), nil
	}
}

func errInt64(number []byte) error {
	return errors.New(clip(string(number)) + " does not fit a 64-bit integer")
}

// clampedAtoi reads an exponent. One that no body is long enough to make up for
// is cut off where it stands for "far too large".
func clampedAtoi(text []byte) int {
	const most = math.MaxInt32
	n, err := strconv.Atoi(string(text))
	switch {
	case err == nil:
		return max(-most, min(n, most))
	case text[0] == '-':
		return -most
	default:
		return most
	}
}
