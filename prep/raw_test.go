package prep

import (
	"encoding/base64"
	"fmt"
	"iter"
	"strings"
	"testing"
)

// pairs are names and texts in turn.
func pairs(list ...string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := 0; i < len(list) && yield(list[i], list[i+1]); i += 2 {
		}
	}
}

// A raw request becomes the tensor that the same image gives in base64, and its
// answer repeats what was given of the fields, null for the others.
func TestRawRequestIsTheSameTile(t *testing.T) {
	p := NewPreparer(testSpec())
	image := readTile(t, tileFiles(t)[0])
	document, err := ParseRequest(fmt.Appendf(nil, `{"image_data":%q,"slide_name":"S\"<1>é","x":7.0,"y":-2,"width":224,"height":224,"patch_idx":1e3,"resolution":0.50}`,
		base64.StdEncoding.EncodeToString(image)))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := RawRequest(image, pairs("x", "1", "slide_name", `S"<1>é`, "x", "7.0", "y", "-2", "other", "\xff", "width", "224", "height", "224",
		"patch_idx", "1e3", "resolution", "0.50", "mode", "embedding", "model_name", "m"))
	if err != nil {
		t.Fatal(err)
	}
	var tensors [2]string
	for i, r := range []*Request{document, raw} {
		sample, err := p.Prepare(r)
		if err != nil {
			t.Fatal(err)
		}
		tensors[i] = string(tensorOf(sample, 0))
		sample.Release()
	}
	if tensors[0] != tensors[1] {
		t.Error("the tensors differ")
	}
	const want = `"slide_name":"S\"\u003c1\u003eé","x":7,"y":-2,"width":224,"height":224,"tissue_ratio":null,"patch_idx":1000,"resolution":0.50`
	if got := string(raw.AppendEcho(nil)); got != want {
		t.Errorf("the echo is %s, not %s", got, want)
	}
	mode, _ := raw.Mode()
	model, _ := raw.ModelName()
	if mode != "embedding" || model != "m" || raw.IsBare() || !raw.IsRaw() || document.IsRaw() || document.IsBare() {
		t.Errorf("mode %q, model %q, bare %v", mode, model, raw.IsBare())
	}
}

// An image alone is a request, and only the fields of an answer make it more.
func TestBareImage(t *testing.T) {
	p := NewPreparer(testSpec())
	for name, test := range map[string]struct {
		fields []string
		bare   bool
	}{
		"nothing":        {nil, true},
		"model and mode": {[]string{"model_name", "m", "mode", "embedding", "unknown", "1"}, true},
		"bulk RNA":       {[]string{"bulk_rna", "null"}, true},
		"all":            {[]string{"slide_name", "", "x", "0", "y", "0", "width", "0", "height", "0", "patch_idx", "0"}, false},
	} {
		r, err := RawRequest(readTile(t, tileFiles(t)[0]), pairs(test.fields...))
		if err != nil {
			t.Fatal(err)
		}
		sample, err := p.Prepare(r)
		if err != nil || r.IsBare() != test.bare {
			t.Errorf("%s: %v, bare %v", name, err, r.IsBare())
			continue
		}
		sample.Release()
	}
}

// Some of the fields without the others are a mistake, named as in a document.
func TestRawRequestWantsAllFieldsOrNone(t *testing.T) {
	p := NewPreparer(testSpec())
	const advice = ": missing; give all fields of the tile, or none for an answer of numbers alone"
	for missing, fields := range map[string][]string{
		"x, y, width, height, patch_idx":             {"slide_name", "S"},
		"slide_name, y, width, height, patch_idx":    {"x", "1", "mode", "embedding"},
		"slide_name, x, y, width, height, patch_idx": {"resolution", "null"},
		"slide_name, x, y, width, patch_idx":         {"height", "224", "tissue_ratio", "0.5"},
		"patch_idx":                                  {"slide_name", "S", "x", "1", "y", "2", "width", "224", "height", "224"},
	} {
		r, err := RawRequest(readTile(t, tileFiles(t)[0]), pairs(fields...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = p.Prepare(r); err == nil || !strings.HasPrefix(err.Error(), missing+advice) {
			t.Errorf("%q: %v", fields, err)
		}
	}
	r, _ := RawRequest(nil, pairs())
	if _, err := p.Prepare(r); err == nil || err.Error() != "body: empty; send the encoded image in it" {
		t.Errorf("no image: %v", err)
	}
}

// Model and mode may be named in several places, which must agree.
func TestRawRequestNamedTwice(t *testing.T) {
	if _, err := RawRequest(nil, pairs("model_name", "h1", "mode", "a", "x", "1", "mode", "a", "x", "2", "model_name", "h1")); err != nil {
		t.Error(err)
	}
	for want, fields := range map[string][]string{
		`model_name: both "h1" and "h0" are given; send one of them`: {"model_name", "h1", "model_name", "h0"},
		`mode: both "a" and "" are given; send one of them`:          {"mode", "a", "model_name", "h1", "mode", ""},
	} {
		if _, err := RawRequest(nil, pairs(fields...)); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", fields, err, want)
		}
	}
}

// Fields of a query are held to the rules of those of a document.
func TestRawRequestErrors(t *testing.T) {
	p := NewPreparer(testSpec())
	for _, test := range []struct {
		field, text string
		image       string
		code        Code
		want        string
	}{
		{"x", "1.5", "", InvalidRequest, `x: must be an integer, and 1.5 has a fraction`},
		{"x", "seven", "", InvalidRequest, `x: must be an integer, and "seven" is none`},
		{"x", "", "", InvalidRequest, `x: must be an integer, and "" is none`},
		{"y", "7 8", "", InvalidRequest, `y: must be an integer, and "7 8" is none`},
		{"y", "+7", "", InvalidRequest, `y: must be an integer, and "+7" is none`},
		{"patch_idx", "null", "", InvalidRequest, `patch_idx: must be an integer, not null`},
		{"resolution", "NaN", "", InvalidRequest, `resolution: must be a number or null`},
		{"tissue_ratio", "1e999", "", InvalidRequest, `tissue_ratio: 1e999 does not fit a 64-bit float`},
		{"slide_name", "\xff", "", InvalidRequest, `slide_name: not valid UTF-8`},
		{"image_data", "QQ==", "", InvalidRequest, `image_data: must be left out: the body is the image`},
		{"slide_name", "S1", "GIF8", InvalidImage, `body: `},
	} {
		image := []byte(test.image)
		if test.image == "" {
			image = readTile(t, tileFiles(t)[0])
		}
		r, err := RawRequest(image, pairs("slide_name", "S", "x", "1", "y", "2", "width", "224", "height", "224", "patch_idx", "7", test.field, test.text))
		if err == nil {
			_, err = p.Prepare(r)
		}
		refused, ok := err.(*Error) //nolint:errorlint // it is to be this very type, unwrapped
		if !ok || refused.Code != test.code || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s=%q: %v, want %s", test.field, test.text, err, test.want)
		}
	}
}
