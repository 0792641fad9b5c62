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
		"x":              {[]string{"x", "0"}, false},
		"resolution":     {[]string{"resolution", "null"}, false},
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
	if r, _ := RawRequest(nil, pairs("x", "0")); string(r.AppendEcho(nil)) != `"slide_name":null,"x":0,"y":null,"width":null,"height":null,"tissue_ratio":null,"patch_idx":null,"resolution":null` {
		t.Errorf("the echo is %s", r.AppendEcho(nil))
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
		{"x", "seven", "", InvalidRequest, `x: must be an integer, not a string`},
		{"x", "", "", InvalidRequest, `x: must be an integer, not a string`},
		{"y", "7 8", "", InvalidRequest, `y: must be an integer, not a string`},
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
		r, err := RawRequest(image, pairs(test.field, test.text))
		if err == nil {
			_, err = p.Prepare(r)
		}
		refused, ok := err.(*Error) //nolint:errorlint // it is to be this very type, unwrapped
		if !ok || refused.Code != test.code || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s=%q: %v, want %s", test.field, test.text, err, test.want)
		}
	}
}
