package prep

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// members are a request's members by name, as raw JSON.
type members map[string]string

func goodMembers() members {
	return members{
		"image_data": `"QQ=="`, "slide_name": `"S1"`, "x": "1", "y": "2", "width": "224", "height": "224", "patch_idx": "9",
		"tissue_ratio": "0.5", "resolution": "0.5", "bulk_rna": "null", "model_name": `"m"`, "mode": `"embedding"`,
	}
}

func (m members) parse(t *testing.T) *Request {
	t.Helper()
	var s strings.Builder
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			s.WriteString(",")
		}
		s.WriteString(`"` + name + `":` + m[name])
	}
	r, err := ParseRequest([]byte("{" + s.String() + "}"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Values of each type, and which of the fields take them.
func TestFieldTypes(t *testing.T) {
	const (
		text     = "image_data slide_name"
		integer  = "x y width height patch_idx"
		fraction = "tissue_ratio resolution"
	)
	for value, takers := range map[string]string{
		`"7"`: text, `""`: text, `"\u0037"`: text,
		"7": integer + fraction, "7.0": integer + fraction, "-0": integer + fraction, "-0.0": integer + fraction,
		"1e3": integer + fraction, "0.7e1": integer + fraction, "70e-1": integer + fraction, "0e999999999999": integer + fraction,
		"9223372036854775807": integer + fraction, "-9223372036854775808": integer + fraction,
		"9223372036854775807.000": integer + fraction, "922337203685477580.7e1": integer + fraction,
		"9223372036854775808": fraction, "-9223372036854775809": fraction, "1e19": fraction,
		"92233720368547758070": fraction, "18446744073709551617": fraction, "1e308": fraction, "-1.7976931348623157e308": fraction,
		"7.5": fraction, "1e-3": fraction, "5e-324": fraction, "1e-999999999999": fraction,
		"1e9223372036854775807": "", "10e9223372036854775807": "", "-1.5e9223372036854775807": "",
		"0e-9223372036854775808": integer + fraction, "0.0e-9223372036854775808": integer + fraction, "1.5e-9223372036854775808": fraction,
		"1e309": "", "-1e309": "", "1.7976931348623159e308": "", "1e999999999999": "", "-1e99999999999999999999999": "",
		"true": "", "false": "", "{}": "", `{"x":7}`: "",
		"null": fraction, "[]": "", "[7]": "",
	} {
		for name := range goodMembers() {
			if name == "model_name" || name == "mode" || name == "bulk_rna" { // not for every model
				continue
			}
			m := goodMembers()
			m[name] = value
			err := m.parse(t).validate()
			if strings.Contains(takers, name) != (err == nil) {
				t.Errorf("%s: %s: %v", name, value, err)
			}
			if err == nil {
				continue
			}
			var refused *Error
			if !errors.As(err, &refused) || refused.Code != InvalidRequest || refused.Field != name {
				t.Errorf("%s: %s: the error is %#v", name, value, err)
			}
		}
	}
}

func TestFieldErrorsAreMadeForTheCaller(t *testing.T) {
	const where = ` (slide_name "S1", patch_idx 9)`
	nines := strings.Repeat("9", 60)
	for name, test := range map[string]struct{ field, value, want string }{
		"text for an integer":   {"x", `"7"`, `x: must be an integer, not a string` + where},
		"null for an integer":   {"y", `null`, `y: must be an integer, not null` + where},
		"true for an integer":   {"width", `true`, `width: must be an integer, not true` + where},
		"array for an integer":  {"height", `[7]`, `height: must be an integer, not an array` + where},
		"object for an integer": {"height", `{}`, `height: must be an integer, not an object` + where},
		"fraction":              {"x", `7.5`, `x: must be an integer, and 7.5 has a fraction` + where},
		"tiny":                  {"x", `1e-99999999999999999999`, `x: must be an integer, and 1e-99999999999999999999 has a fraction` + where},
		"tiny, 64-bit exponent": {"x", `1.5e-9223372036854775808`, `x: must be an integer, and 1.5e-9223372036854775808 has a fraction` + where},
		"vast":                  {"x", `10e9223372036854775807`, `x: 10e9223372036854775807 does not fit a 64-bit integer` + where},
		"too large":             {"x", nines, `x: ` + nines[:40] + `... does not fit a 64-bit integer` + where},
		"number for text":       {"image_data", `7`, `image_data: must be a string` + where},
		"null for text":         {"slide_name", `null`, `slide_name: must be a string (patch_idx 9)`},
		"text for a number":     {"resolution", `"0.5"`, `resolution: must be a number or null` + where},
		"infinite":              {"tissue_ratio", `1e999`, `tissue_ratio: 1e999 does not fit a 64-bit float` + where},
		"patch is no number":    {"patch_idx", `"9"`, `patch_idx: must be an integer, not a string (slide_name "S1")`},
		"patch is no integer":   {"patch_idx", `9.5`, `patch_idx: must be an integer, and 9.5 has a fraction (slide_name "S1", patch_idx 9.5)`},
	} {
		t.Run(name, func(t *testing.T) {
			m := goodMembers()
			m[test.field] = test.value
			if err := m.parse(t).validate(); err == nil || err.Error() != test.want {
				t.Errorf("the error is\n%v, want\n%s", err, test.want)
			}
		})
	}
}

func TestMissingFieldsAreNamedAtOnce(t *testing.T) {
	required := []string{"image_data", "slide_name", "x", "y", "width", "height", "patch_idx"}
	for missing := range 1 << len(required) {
		m := goodMembers()
		var want []string
		for i, name := range required {
			if missing>>i&1 == 1 {
				delete(m, name)
				want = append(want, name)
			}
		}
		err := m.parse(t).validate()
		if want == nil {
			if err != nil {
				t.Errorf("nothing is missing, yet: %v", err)
			}
			continue
		}
		if prefix := strings.Join(want, ", ") + ": missing; "; err == nil || !strings.HasPrefix(err.Error(), prefix) {
			t.Errorf("the error %v does not begin with %q", err, prefix)
		}
	}
	for _, name := range []string{"tissue_ratio", "resolution", "bulk_rna", "model_name", "mode"} {
		m := goodMembers()
		delete(m, name)
		if err := m.parse(t).validate(); err != nil {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestModelNameAndMode(t *testing.T) {
	for value, want := range map[string]string{`"h1"`: "h1", `"\u0068\/"`: "h/", `""`: ""} {
		r := members{"model_name": value, "mode": value}.parse(t)
		model, modelErr := r.ModelName()
		mode, modeErr := r.Mode()
		if model != want || mode != want || modelErr != nil || modeErr != nil {
			t.Errorf("%s is read as %q (%v) and %q (%v)", value, model, modelErr, mode, modeErr)
		}
	}
	r := members{}.parse(t)
	model, modelErr := r.ModelName()
	mode, modeErr := r.Mode()
	if model != "" || mode != "" || modelErr != nil || modeErr != nil {
		t.Errorf("absent: %q (%v) and %q (%v)", model, modelErr, mode, modeErr)
	}
	if r := (members{"model_name": "null", "mode": "null"}).parse(t); r.fields[modelName].kind == missing {
		t.Error("null is not found")
	} else if model, err := r.ModelName(); model != "" || err != nil {
		t.Errorf("null: %q (%v)", model, err) // as if it were absent
	}
	for _, value := range []string{"7", "true", "[]", "{}"} {
		r := members{"model_name": value, "mode": value, "patch_idx": "3"}.parse(t)
		_, modelErr := r.ModelName()
		_, modeErr := r.Mode()
		if modelErr == nil || modelErr.Error() != "model_name: must be a string (patch_idx 3)" {
			t.Errorf("model_name %s: %v", value, modelErr)
		}
		if modeErr == nil || modeErr.Error() != "mode: must be a string (patch_idx 3)" {
			t.Errorf("mode %s: %v", value, modeErr)
		}
	}
}

// An error repeats at most 40 characters of each value that was sent, with what
// could forge a line of a log or of a terminal made visible.
func TestErrorsBoundWhatTheyRepeat(t *testing.T) {
	long := strings.Repeat("é", 30) + strings.Repeat("#", 1000)
	clipped := strings.Repeat("é", 30) + strings.Repeat("#", 10) + "..."
	digits := strings.Repeat("1", 1000)
	m := goodMembers()
	m["slide_name"], m["patch_idx"], m["x"] = `"`+long+`"`, digits, digits+".5"
	want := "x: must be an integer, and " + digits[:40] + `... has a fraction (slide_name "` + clipped + `", patch_idx ` + digits[:40] + "...)"
	err := m.parse(t).validate()
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v, want\n%s", err, want)
	}
	var refused *Error
	if errors.As(err, &refused) && (len(refused.Slide) > 100 || len(refused.Patch) > 50) {
		t.Errorf("the error holds on to %d and %d bytes of what was sent", len(refused.Slide), len(refused.Patch))
	}

	m = goodMembers()
	m["slide_name"] = `"a\n\r\u0000\u001b[31m\u202e\u2028\u00a0\u007fb c"`
	delete(m, "x")
	const visible = "\"a\ufffd\ufffd\ufffd\ufffd[31m\ufffd\ufffd\ufffd\ufffdb c\""
	if err := m.parse(t).validate(); err == nil || !strings.Contains(err.Error(), visible) {
		t.Errorf("%q does not hold %q", err, visible)
	}

	// Whatever is wrong with it, an image's text is not repeated.
	m = goodMembers()
	m["image_data"] = `"` + strings.Repeat("secret!", 1000) + `"`
	_, err = NewPreparer(testSpec()).Prepare(m.parse(t))
	if err == nil || strings.Contains(err.Error(), "secret") || len(err.Error()) > 200 {
		t.Errorf("the error is %v", err)
	}
}

func TestCheckMode(t *testing.T) {
	spec := &Spec{Name: "m", Modes: []Mode{Embedding, Prediction}}
	if err := spec.CheckMode(Embedding); err != nil {
		t.Error(err)
	}
	const want = `mode: "` + "embed\ufffd" + `" is not offered by m; its modes are: embedding, prediction`
	var refused *Error
	if err := spec.CheckMode("embed\n"); !errors.As(err, &refused) || refused.Code != UnsupportedMode || err.Error() != want {
		t.Errorf("the error is\n%v, want\n%s", err, want)
	}
	if err := spec.CheckMode(""); err == nil {
		t.Error("the empty mode was taken")
	}
}

func TestAppendEcho(t *testing.T) {
	for name, test := range map[string]struct {
		change members
		want   string
	}{
		"as sent": {nil, `"slide_name":"S1","x":1,"y":2,"width":224,"height":224,"tissue_ratio":0.5,"patch_idx":9,"resolution":0.5`},
		"integers in other forms": {
			members{"x": "7.0", "y": "1e3", "width": "-0.0", "height": "-9223372036854775808.0", "patch_idx": "0.9223372036854775807E+19"},
			`"slide_name":"S1","x":7,"y":1000,"width":0,"height":-9223372036854775808,"tissue_ratio":0.5,"patch_idx":9223372036854775807,"resolution":0.5`,
		},
		"raw tokens": {
			members{"slide_name": `"S\u0031\/\"é\ud83d\ude00"`, "x": "-0", "tissue_ratio": "0.50", "resolution": "1E-0"},
			`"slide_name":"S\u0031\/\"é\ud83d\ude00","x":-0,"y":2,"width":224,"height":224,"tissue_ratio":0.50,"patch_idx":9,"resolution":1E-0`,
		},
		"more digits than a float holds": {
			members{"tissue_ratio": "0.12345678901234567890123", "resolution": "7.0"},
			`"slide_name":"S1","x":1,"y":2,"width":224,"height":224,"tissue_ratio":0.12345678901234567890123,"patch_idx":9,"resolution":7.0`,
		},
		"null": {
			members{"tissue_ratio": "null", "resolution": "null"},
			`"slide_name":"S1","x":1,"y":2,"width":224,"height":224,"tissue_ratio":null,"patch_idx":9,"resolution":null`,
		},
		"absent": {
			members{"tissue_ratio": "", "resolution": ""},
			`"slide_name":"S1","x":1,"y":2,"width":224,"height":224,"tissue_ratio":null,"patch_idx":9,"resolution":null`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := goodMembers()
			for key, value := range test.change {
				m[key] = value
				if value == "" {
					delete(m, key)
				}
			}
			r := m.parse(t)
			if err := r.validate(); err != nil {
				t.Fatal(err)
			}
			got := string(r.AppendEcho([]byte("[1],")))
			if want := "[1]," + test.want; got != want {
				t.Errorf("the echo is\n%s, want\n%s", got, want)
			}
			if !json.Valid([]byte("{" + test.want + "}")) {
				t.Error("the echo is not JSON")
			}
		})
	}
}

// A request that has let go of its body has all that an answer needs.
func TestDetach(t *testing.T) {
	p := NewPreparer(testSpec())
	image := readTile(t, tileFiles(t)[0])
	raw, err := RawRequest(image, pairs("slide_name", "S", "x", "7.0", "y", "8", "width", "224", "height", "224", "patch_idx", "1"))
	if err != nil {
		t.Fatal(err)
	}
	body := tileBody(image, "S 1", 7)
	requests := map[string]*Request{"document": parse(t, body), "raw": raw}
	for _, name := range []string{"document", "raw"} { // the first aliases the body, which is spoilt then
		r := requests[name]
		sample, err := p.Prepare(r)
		if err != nil {
			t.Fatal(err)
		}
		sample.Release()
		slide, echo, most := string(r.SlideName()), string(r.AppendEcho(nil)), r.MostEcho()
		if r.Detach(len(slide)) {
			t.Errorf("%s: more is kept than was allowed", name)
		}
		if !r.Detach(200) {
			t.Errorf("%s: the body is kept", name)
		}
		for i := range body {
			body[i] = poison
		}
		if string(r.SlideName()) != slide || string(r.AppendEcho(nil)) != echo || r.MostEcho() != most || r.IsRaw() != (name == "raw") || r.IsBare() {
			t.Errorf("%s: slide %s, echo %s, want %s", name, r.SlideName(), r.AppendEcho(nil), echo)
		}
		if r.image != nil || r.fields[imageData].raw != nil {
			t.Errorf("%s: the image is kept", name)
		}
	}
}
