package prep

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// checkFloat32 holds parseFloat32 against strconv for a valid JSON number.
func checkFloat32(t *testing.T, number string) {
	t.Helper()
	want, _ := strconv.ParseFloat(number, 32)
	for _, text := range []string{number, number + "]", number + ",7", number + " "} {
		got, length := parseFloat32([]byte(text))
		if math.Float32bits(got) != math.Float32bits(float32(want)) || length != len(number) {
			t.Fatalf("%q: %v, %d characters; strconv has %v of %d", text, got, length, float32(want), len(number))
		}
	}
}

func TestParseFloat32(t *testing.T) {
	for _, number := range []string{
		"0", "-0", "0.0", "-0.0e5", "1", "-1", "-1.0", "-1e0", "-10e-1", "7E+2", "7e-2", "0e99999999999999999999",
		"1e-99999999999999999999", "1e99999999999999999999", "-1e39", "3.4028235e38", "3.4028236e38", "3.40282357e38",
		// Half-way between two float32 values, just below and just above.
		"16777217", "16777216.99999999999", "16777217.00000000001", "16777219", "33554434", "1.00000005960464477539",
		"1.000000059604644775390625", "1.0000000596046447753906250000000000000000001", "1.00000005960464477539062499999",
		"340282356779733661637539395458142568447", "340282356779733661637539395458142568448",
		"1.1754943e-38", "1.4e-45", "7e-46", "7.1e-46", "1e-22", "1e-23", "9999999999999999999", "18446744073709551616",
		"99999999999999999999", "0." + strings.Repeat("0", 40) + "1", strings.Repeat("9", 400), "1e22", "9999999999999999999e22", "1e23",
	} {
		checkFloat32(t, number)
	}
}

// Random decimals of the kinds that are met, and ones made to be as hard as they
// can be: at and beside the half-way points between float32 values.
func TestParseFloat32IsStrconvs(t *testing.T) {
	n := 50_000
	if testing.Short() {
		n = 5_000
	}
	r := rand.New(rand.NewPCG(7, 7))
	for range n {
		v := float32(math.Exp(r.Float64()*60 - 30))
		next := math.Nextafter32(v, inf)
		half := (float64(v) + float64(next)) / 2
		for _, f := range []float64{r.Float64() * 1e5, float64(v), half, math.Nextafter(half, 0), math.Nextafter(half, 1e300)} {
			checkFloat32(t, strconv.FormatFloat(f, 'f', -1, 64))
			checkFloat32(t, strconv.FormatFloat(-f, 'e', -1, 64))
			checkFloat32(t, strconv.FormatFloat(f, 'f', r.IntN(12), 64))
			checkFloat32(t, strconv.FormatFloat(f, 'e', r.IntN(22), 64))
		}
		checkFloat32(t, strconv.Itoa(r.IntN(1<<r.IntN(62)+1)))
		checkFloat32(t, strconv.FormatFloat(float64(math.Float32frombits(r.Uint32()&0x7f7fffff)), 'e', 17, 64))
	}
}
