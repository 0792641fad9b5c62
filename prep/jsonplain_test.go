package prep

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// scans says whether the scanner takes a document.
func scans(document []byte) bool {
	s := scanner{data: document}
	return s.document(nil) == nil
}

// Arrays of what may and may not stand in a number, at any length and place.
func TestNumbersInArrays(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	const odd = "0123456789.,-+eE \n[]\"x"
	taken := 0
	for range 200_000 {
		array := []byte(`{"bulk_rna":[`)
		for i := range 1 + r.IntN(12) {
			if i > 0 {
				array = append(array, ',')
			}
			array = append(array, []string{"0", "-1", "17", "0.25", " 3", "\n 4.50", "12345678.5", "-0.0", "6 ", "1e5", "2E-7", "null"}[r.IntN(12)]...)
		}
		array = append(array, "]}"...)
		if r.IntN(2) == 0 {
			array[13+r.IntN(len(array)-13)] = odd[r.IntN(len(odd))]
		}
		want := json.Valid(array)
		if got := scans(array); got != want {
			t.Fatalf("%s: taken %t, want %t", array, got, want)
		}
		if want {
			taken++
		}
	}
	if taken < 80_000 || taken > 160_000 {
		t.Errorf("%d of 200,000 are valid: the test has lost its balance", taken)
	}
}

// What is passed over is whole elements, and all of those that may be.
func TestPlainNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"1, 2.5, -3, 4]":       "1, 2.5, -3,",
		"1234567890123456]":    "",
		"1,2,3,4,5,6,7,8,":     "1,2,3,4,5,6,7,8,",
		"1,2,3,4,5,6e7,8,9,0]": "1,2,3,4,5,",
		"1,02,3]":              "1,",
		"1,2.,3]":              "1,",
		"1,-,3]":               "1,",
		"1,,3]":                "1,",
		"1 ,3]":                "",
		"":                     "",
	} {
		if got := text[:plainNumbers([]byte(text))]; got != want {
			t.Errorf("of %q %q is passed over, want %q", text, got, want)
		}
	}
}

// Of long texts, looked at in several places at a time, the same is passed over as of short
// ones, whatever byte of them is another.
func TestManyPlainNumbers(t *testing.T) {
	pattern := regexp.MustCompile(`^(?:[ \t\n\r]*-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?,)*`)
	rng := rand.New(rand.NewPCG(1, 1))
	stopped := 0
	for range 3000 {
		var text []byte
		for wanted := rng.IntN(12 * laneBytes); len(text) < wanted; {
			text = append(text, []string{"", " ", "\n\t"}[rng.IntN(3)]...)
			if rng.IntN(500) == 0 {
				text = append(text, bytes.Repeat([]byte("7"), 1+rng.IntN(6*laneBytes))...)
			} else {
				text = strconv.AppendFloat(text, rng.NormFloat64()*1000, 'f', rng.IntN(9), 32)
			}
			text = append(text, ',')
		}
		if len(text) > 0 && rng.IntN(4) > 0 {
			text[rng.IntN(len(text))] = "0123456789.,- \n]e+\"x\x00\xff"[rng.IntN(22)]
		}
		text = append(text, "1]"...)
		want := len(pattern.Find(text))
		if want < len(text)-2 {
			stopped++
		}
		if got := plainNumbers(text); got != want {
			t.Fatalf("%d bytes are passed over, want %d, of %q", got, want, text)
		}
	}
	if stopped < 500 || stopped > 2500 {
		t.Errorf("%d of 3,000 texts hold something else: the test has lost its balance", stopped)
	}
}

// A byte of each kind at each place of a long string: the string ends where the
// standard library says, or is refused.
func TestLongStrings(t *testing.T) {
	text := slices.Concat([]byte(`{"a":"`), bytes.Repeat([]byte("QUJD+/ \x7f"), 40), []byte(`"}`))
	if !scans(text) {
		t.Fatal("the document is not taken as it is")
	}
	for at := 6; at < len(text)-2; at++ {
		for _, c := range []byte{0, 0x1f, ' ', '"', '\\', 0x7f, 0x80, 0xff} {
			document := bytes.Clone(text)
			document[at] = c
			// The standard library takes what is not UTF-8.
			if got, want := scans(document), json.Valid(document) && c < 0x80; got != want {
				t.Fatalf("byte 0x%02x at %d: taken %t, want %t", c, at, got, want)
			}
		}
	}
}

// Long arrays are passed over in lanes, also where all numbers are negative. None of it can
// be seen in what is passed over, only in its time: in one lane it is more than twice as
// much, and number by number, as the scanner does it, twelve times.
func TestLongArraysArePassedOverQuickly(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's own work is most of the time")
	}
	numbers := bytes.Repeat([]byte("-1,-20.5,-0,-3.25,-4,"), 10_000)
	if n := numbersInLanes(numbers); n <= lanesBytes-4*len("-3.25,") || n > lanesBytes {
		t.Errorf("%d bytes in four lanes, want nearly %d", n, lanesBytes)
	}
	if n := numbersInLanes(slices.Concat(numbers[:lanesBytes/2], []byte("null,"), numbers)); n != 0 {
		t.Errorf("%d bytes in four lanes that hold a null as well, want 0", n)
	}
	array := slices.Concat([]byte("["), numbers, []byte("1]"))
	least := func(runs int, body func()) time.Duration {
		least := time.Hour
		for range runs {
			start := time.Now()
			body()
			least = min(least, time.Since(start))
		}
		return least
	}
	var lanes, lane, scanned time.Duration
	for range 10 { // whoever takes the processor away can only take it so often
		lanes = least(20, func() { plainNumbers(numbers) })
		lane = least(20, func() { numbersInALane(numbers) })
		scanned = least(20, func() {
			s := scanner{data: array}
			if _, err := s.value(0); err != nil {
				t.Fatal(err)
			}
		})
		if 4*lane > 5*lanes && scanned < 2*lanes {
			return
		}
	}
	t.Errorf("%s in lanes, %s in one, %s as an array: want lanes to take well below one, and an array as much as lanes", lanes, lane, scanned)
}
