package prep

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Each tile of a batch is what it is as a request of its own, whatever its
// neighbours are.
func TestBatchTilesAreRequests(t *testing.T) {
	good := string(tileBody(readTile(t, tileFiles(t)[0]), "S1", 7))
	elements := []string{good, `7`, strings.Replace(good, `"x": 1120`, `"x": 0.5`, 1), `null`, strings.Replace(good, "slide_name", `slide\u005fname`, 1), `[]`, `{}`}
	wants := []string{"", "must be a tile request, an object, not a number", `x: must be an integer, and 0.5 has a fraction (slide_name "S1", patch_idx 7)`,
		"must be a tile request, an object, not null", "", "must be a tile request, an object, not an array", "image_data, slide_name,"}
	b, err := ParseBatch([]byte(`{"mode":"embed\u0064ing", "requests":[], "other":[[{}]], "requests": [`+strings.Join(elements, " , ")+"]}\n"), len(elements))
	if err != nil {
		t.Fatal(err)
	}
	if b.Mode != "embedding" || len(b.Tiles) != len(elements) {
		t.Fatalf("mode %q, %d tiles", b.Mode, len(b.Tiles))
	}
	for _, none := range []string{`{"requests":[]}`, `{"requests":[],"mode":null}`} { // as for one tile
		if b, err := ParseBatch([]byte(none), 1); err != nil || b.Mode != "" {
			t.Errorf("%s: %+v, %v", none, b, err)
		}
	}
	p := NewPreparer(testSpec())
	for i, tile := range b.Tiles {
		sample, err := p.Prepare(tile)
		switch {
		case wants[i] == "" && err == nil:
			echo := tile.AppendEcho(nil)
			if want := parse(t, []byte(good)).AppendEcho(nil); string(echo) != string(want) {
				t.Errorf("tile %d: the echo is %s", i, echo)
			}
			if len(echo) > tile.MostEcho() {
				t.Errorf("tile %d: the echo of %d bytes passes its bound of %d", i, len(echo), tile.MostEcho())
			}
			sample.Release()
		case wants[i] == "" || err == nil || !strings.HasPrefix(err.Error(), wants[i]):
			t.Errorf("tile %d: %v, want %q", i, err, wants[i])
		}
	}
}

func TestBatchErrors(t *testing.T) {
	for body, want := range map[string]string{
		``:                                   "the body is not valid JSON",
		`[]`:                                 "the body is not valid JSON",
		`{"requests":[{"x":]}`:               "the body is not valid JSON at byte 18",
		`{"requests":[]`:                     "the body is not valid JSON",
		`{}`:                                 "requests: missing, or no array",
		`{"requests":{}}`:                    "requests: missing, or no array",
		`{"requests":null}`:                  "requests: missing, or no array",
		`{"requests":[],"mode":7}`:           "mode: must be a string",
		`{"requests":[{},{},{},{}]}`:         "requests: 4 tiles, and one call takes 3; send them in several calls",
		`{"requests":[1,[2,3,4,5],"6,7,8"]}`: "",
		`{"requests":[]}`:                    "",
	} {
		_, err := ParseBatch([]byte(body), 3)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// What Python's json writes of floats that are not finite fails the tile that it is
// in, and anywhere else the call.
func TestBatchNonFinite(t *testing.T) {
	good := string(tileBody(readTile(t, tileFiles(t)[0]), "S1", 7))
	with := func(more string) string { return good[:len(good)-1] + more + "}" }
	const notJSON = " is not JSON; send a number or null"
	elements := []string{good, with(`,"resolution":NaN`), with(`,"bulk_rna":[1,2,-Infinity,3]`), `NaN`, good, `[Infinity]`, with(`,"other":{"a":[Infinity]}`), `-Infinity`, with(`,"other":"NaN"`)}
	wants := []string{"", `NaN in "resolution"` + notJSON + ` (slide_name "S1", patch_idx 7)`, `-Infinity in "bulk_rna", at index 2, is not JSON`, "not NaN", "", "not an array", `Infinity in "other"` + notJSON, "not a number", ""}
	requests := `"requests": [` + strings.Join(elements, " , ") + "]"
	b, err := ParseBatch([]byte("{"+requests+"}"), len(elements))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPreparer(testSpec())
	for i, tile := range b.Tiles {
		sample, err := p.Prepare(tile)
		if (wants[i] == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), wants[i]) {
			t.Errorf("tile %d: %v, want %q", i, err, wants[i])
		}
		if err == nil {
			sample.Release()
		}
	}
	for body, want := range map[string]string{
		`{"mode":NaN,` + requests + `}`:             "the body is not valid JSON at byte 8: NaN" + notJSON,
		`{` + requests + `,"other":[-Infinity]}`:    "-Infinity" + notJSON,
		`{"requests":[{"x":NaN}],` + requests + `}`: "the body is not valid JSON at byte 18: NaN" + notJSON,
		`{"requests":NaN}`:                          "requests: missing, or no array",
		`{"other":NaN}`:                             "the body is not valid JSON at byte 9: NaN" + notJSON,
		`{"requests":[{"x":nan}]}`:                  "the body is not valid JSON at byte 18: nan in \"requests\"" + notJSON,
		`{"requests":[{"x":-inf}]}`:                 "the body is not valid JSON at byte 18: -inf in \"requests\"" + notJSON,
		`{"requests":[{"x":NaNs}]}`:                 "the body is not valid JSON at byte 21: 's'",
		`{"requests":[{"x":+Infinity}]}`:            "the body is not valid JSON at byte 18: '+'",
		`{"requests":[{NaN:1}]}`:                    "the body is not valid JSON at byte 14: 'N'",
		`{"requests":[{"x":NaN},{"x":]}`:            "the body is not valid JSON at byte 28: ']'",
	} {
		if _, err := ParseBatch([]byte(body), len(elements)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", clip(body), err, want)
		}
	}
}

// What is written of an answer stays within the bounds that are told beforehand.
func TestBoundsOnAnswers(t *testing.T) {
	out := Output{Name: "o", DType: Float32, Shape: []int64{8}}
	for _, v := range []float32{-math.MaxFloat32, -math.SmallestNonzeroFloat32, -1.17549435e-38, -9.9999994e20, -1.0000001e-6, -1.2345678e-10, -0.123456789, float32(math.Copysign(0, -1))} {
		data := make([]byte, 32)
		for i := range 8 {
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
		}
		text, err := out.AppendJSON(nil, data)
		if err != nil || len(text) > out.MostJSON() {
			t.Errorf("%v: %d bytes, more than %d: %v", v, len(text), out.MostJSON(), err)
		}
	}
	if text, _ := AppendFloats(nil, binary.LittleEndian.AppendUint32(nil, math.Float32bits(-9.9999994e20))); len(text) != mostFloat {
		t.Errorf("the longest number is %q", text)
	}
	out.Transforms = []Transform{{Name: Mask}}
	if text, _ := out.AppendJSON(nil, make([]byte, 32)); len(text)+1 != out.MostJSON() {
		t.Errorf("a mask of %d bytes, bounded by %d", len(text), out.MostJSON())
	}
	r := parse(t, fmt.Appendf(nil, `{"x":1e18,"y":-1e18,"width":-9223372036854775808,"height":1,"patch_idx":7.0,"tissue_ratio":%s,"slide_name":"%s"}`,
		"0."+strings.Repeat("1", 100), strings.Repeat("é", 100)))
	if echo := r.AppendEcho(nil); len(echo) > r.MostEcho() {
		t.Errorf("the echo of %d bytes passes its bound of %d", len(echo), r.MostEcho())
	}
}
