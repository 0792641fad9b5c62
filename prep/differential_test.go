package prep

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// compareWithEncodingJSON holds what ParseRequest and validate make of a
// document against encoding/json and the contract's rules for fields, written
// down a second time. The differences on purpose are those of reference.
func compareWithEncodingJSON(t *testing.T, document []byte) (taken bool) {
	t.Helper()
	sent := bytes.Clone(document)
	want, ok := reference(document)
	got, err := ParseRequest(document)
	if !bytes.Equal(document, sent) {
		t.Fatalf("the body was changed: %q", sent)
	}
	if ok != (err == nil) {
		t.Fatalf("%q: taken by encoding/json %t, ours: %v", document, ok, err)
	}
	if !ok {
		return false
	}
	for f := range fieldCount {
		raw, present := want[f.String()]
		token := got.fields[f]
		if present != (token.kind != missing) || !bytes.Equal(token.raw, raw) {
			t.Fatalf("%q: %s is %q, want %q", document, f, token.raw, raw)
		}
		if token.kind == stringKind {
			var text string
			if err := json.Unmarshal(raw, &text); err != nil || token.text() != text {
				t.Fatalf("%q: %s is the text %q, want %q (%v)", document, f, token.text(), text, err)
			}
		}
	}
	valid := referenceFields(want)
	if err := got.validate(); valid != (err == nil) {
		t.Fatalf("%q: valid fields %t, ours: %v", document, valid, err)
	}
	if valid {
		compareEcho(t, got, want)
	}
	return true
}

// reference parses a document with encoding/json and refuses what ours does
// besides: what is no object, invalid UTF-8, lone surrogates, deep nesting. Keys
// of a map are compared as they are, without folding case.
func reference(document []byte) (map[string]json.RawMessage, bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(document, &members) != nil || members == nil {
		return nil, false // nil: the document null
	}
	return members, utf8.Valid(document) && !loneSurrogate(document) && depth(document) <= maxDepth
}

var escapes = regexp.MustCompile(`\\(?:u([0-9a-fA-F]{4})|.)`)

// loneSurrogate looks for half of a pair in a valid document, where a backslash
// stands in strings only.
func loneSurrogate(document []byte) bool {
	high := -1 // where the escape after a high surrogate must begin
	for _, at := range escapes.FindAllSubmatchIndex(document, -1) {
		unit := uint64(0)
		if at[2] >= 0 {
			unit, _ = strconv.ParseUint(string(document[at[2]:at[3]]), 16, 16)
		}
		low := unit >= 0xdc00 && unit <= 0xdfff
		if low != (high == at[0]) || high >= 0 && high != at[0] {
			return true
		}
		high = -1
		if unit >= 0xd800 && unit <= 0xdbff {
			high = at[1]
		}
	}
	return high >= 0
}

// depth is how deeply a valid document nests.
func depth(document []byte) int {
	deepest, now := 0, 0
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber() // 1e999 is valid JSON
	for {
		token, err := decoder.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			now++
			deepest = max(deepest, now)
		case json.Delim('}'), json.Delim(']'):
			now--
		}
	}
}

// referenceFields is the contract's table of fields.
func referenceFields(members map[string]json.RawMessage) bool {
	starts := func(name, with string) bool {
		raw := members[name]
		return raw != nil && strings.IndexByte(with, raw[0]) >= 0
	}
	optional := func(name, with string) bool { return members[name] == nil || starts(name, with+"n") }
	if !starts("image_data", `"`) || !starts("slide_name", `"`) {
		return false
	}
	for _, name := range []string{"x", "y", "width", "height", "patch_idx"} {
		if !starts(name, "-0123456789") {
			return false
		}
		if _, ok := referenceInteger(string(members[name])); !ok {
			return false
		}
	}
	for _, name := range []string{"tissue_ratio", "resolution"} {
		if !optional(name, "-0123456789") {
			return false
		}
		if starts(name, "-0123456789") {
			if f, _ := strconv.ParseFloat(string(members[name]), 64); math.IsInf(f, 0) {
				return false
			}
		}
	}
	return true
}

// referenceInteger evaluates a JSON number by rational arithmetic, unless its
// exponent would fill the memory: then the number is zero or no 64-bit integer.
func referenceInteger(number string) (int64, bool) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	if digits := strings.TrimLeft(strings.TrimLeft(exponent, "+-"), "0"); len(digits) > 4 {
		return 0, strings.Trim(mantissa, "-0.") == ""
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok || !value.IsInt() || !value.Num().IsInt64() {
		return 0, false
	}
	return value.Num().Int64(), true
}

// compareEcho checks that an echo is JSON and repeats what was sent.
func compareEcho(t *testing.T, r *Request, sent map[string]json.RawMessage) {
	t.Helper()
	echo := "{" + string(r.AppendEcho(nil)) + "}"
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(echo), &members); err != nil || len(members) != 8 {
		t.Fatalf("the echo %s has %d members (%v)", echo, len(members), err)
	}
	for name, got := range members {
		want := string(sent[name])
		switch name {
		case "x", "y", "width", "height", "patch_idx":
			if strings.ContainsAny(want, ".eE") {
				n, _ := referenceInteger(want)
				want = strconv.FormatInt(n, 10)
			}
		case "tissue_ratio", "resolution":
			if sent[name] == nil {
				want = "null"
			}
		}
		if string(got) != want {
			t.Fatalf("%s echoed as %s, want %s", name, got, want)
		}
	}
}

func TestParseRequestEqualsEncodingJSON(t *testing.T) {
	const documents, mutants = 2_000, 20
	random := rand.New(rand.NewPCG(3, 4))
	g := generator{random}
	taken, valid := 0, 0
	for range documents {
		document := g.request()
		if compareWithEncodingJSON(t, document) {
			valid++
		}
		for range mutants {
			if compareWithEncodingJSON(t, g.mutate(document)) {
				taken++
			}
		}
	}
	// A generator that makes nothing but good or nothing but bad documents
	// compares little.
	if valid < documents*8/10 || valid == documents {
		t.Errorf("%d of %d documents are valid", valid, documents)
	}
	if share := float64(taken) / (documents * mutants); share < 0.2 || share > 0.8 {
		t.Errorf("%.2f of the mutants are valid", share)
	}
}

func TestIntegersEqualRationalArithmetic(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	g := generator{random}
	integers := 0
	check := func(number string) {
		want, ok := referenceInteger(number)
		got, err := parseInteger([]byte(number))
		if ok != (err == nil) || got != want {
			t.Fatalf("%s is %d (%v), want %d (%t)", number, got, err, want, ok)
		}
		if ok {
			integers++
		}
	}
	for range 100_000 {
		check(g.number())
		// Around the bounds, with the point moved about.
		n := strconv.FormatUint(math.MaxInt64+uint64(random.IntN(5))-2, 10)
		cut := random.IntN(len(n) + 1)
		sign := []string{"", "-"}[random.IntN(2)]
		zeros := strings.Repeat("0", random.IntN(4))
		check(sign + "0." + zeros + n + "e" + strconv.Itoa(len(n)+len(zeros)))
		check(sign + n[:max(cut, 1)] + "." + n[max(cut, 1):] + zeros + "E+" + strconv.Itoa(len(n)-max(cut, 1)))
	}
	if integers < 100_000 {
		t.Errorf("only %d of the numbers are integers", integers)
	}
}
