package prep

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func FuzzParseRequest(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(7, 8))}
	for range 20 {
		f.Add(g.request())
	}
	for _, document := range []string{
		"", "{}", "null", "[{}]", "{}{}", "\ufeff{}", `{"x":NaN}`, `{"x":01}`, `{"x":1,}`, `{"X":1,"\u0078":2,"x":3}`, `{"x":-0.0e-1}`,
		`{"mode":"\ud83d\ude00"}`, `{"mode":"\ud83d"}`, `{"\udc00":1}`, "{\"mode\":\"\xff\"}", "{\"mode\":\"a\nb\"}", `{"a":[{"b":[null,true,false]}]}`,
		`{"image_data":"","slide_name":"","x":1e3,"y":7.0,"width":9223372036854775807,"height":-9223372036854775808,"patch_idx":0.7e1}`,
		nest(maxDepth), nest(maxDepth + 1),
	} {
		f.Add([]byte(document))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		if taken := compareWithEncodingJSON(t, document); taken && depth(document) <= maxDepth-2 {
			compareInBatch(t, document)
		}
	})
}

// compareInBatch holds the tile of a batch against the request that its document
// is, beside one that is spoilt.
func compareInBatch(t *testing.T, document []byte) {
	t.Helper()
	alone, err := ParseRequest(document)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseBatch(slices.Concat([]byte(`{"requests":[{"x":NaN},`), document, []byte(`,{"x":-Infinity}]}`)), 3)
	if err != nil || len(b.Tiles) != 3 || b.Tiles[0].broken == nil || b.Tiles[1].broken != nil || b.Tiles[2].broken == nil {
		t.Fatalf("%q in a batch: %v", document, err)
	}
	for f, token := range alone.fields {
		if !bytes.Equal(b.Tiles[1].fields[f].raw, token.raw) {
			t.Fatalf("%q: %s is %q in a batch, %q alone", document, field(f), b.Tiles[1].fields[f].raw, token.raw)
		}
	}
}

// FuzzBase64 takes the content of a string as it stands in a document.
func FuzzBase64(f *testing.F) {
	for _, text := range []string{
		"", "QQ==", "QUI=", "QUJD", "QR==", " QQ = = ", `Q\nQ\r\n=\t=`, `\/+\/+`, `QQ=\u003d`, "QQ", "QQ=", "Q===", "QQ==QQ==",
		"QQ==A", "data:image/png;base64,QQ==", "Q_-Q", "Qé==", strings.Repeat("QUJD", 40) + "QQ==", strings.Repeat(`QUJD\/+aB `, 20),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, inner []byte) {
		document := append(append([]byte(`{"image_data":"`), inner...), `"}`...)
		r, err := ParseRequest(document)
		if err != nil || len(r.fields[imageData].inner()) != len(inner) {
			return // not the content of one string
		}
		compareBase64(t, r.fields[imageData])
	})
}

// compareBase64 holds decodeBase64 against the rules of the contract, written
// down with the standard library.
func compareBase64(t *testing.T, sent token) {
	t.Helper()
	before := bytes.Clone(sent.raw)
	var text string
	if err := json.Unmarshal(sent.raw, &text); err != nil {
		t.Fatal(err)
	}
	text = strings.NewReplacer(" ", "", "\t", "", "\r", "", "\n", "").Replace(text)
	// StdEncoding without Strict ignores the bits left over.
	want, err := base64.StdEncoding.DecodeString(text)
	ok := err == nil && text != ""

	// Room for more than the data and marks around it: nothing else is written.
	arena := bytes.Repeat([]byte{0xa5}, len(text)+64)
	dst := arena[32 : 32 : len(arena)-32]
	got, err := decodeBase64(dst, sent)
	if ok != (err == nil) || ok && !bytes.Equal(got, want) {
		t.Fatalf("%q is %x (%v), want %x (%t)", before, got, err, want, ok)
	}
	if !bytes.Equal(sent.raw, before) {
		t.Fatalf("the text was changed: %q", before)
	}
	size := base64.StdEncoding.DecodedLen(len(sent.inner()))
	for i, b := range arena {
		if (i < 32 || i >= 32+size) && b != 0xa5 {
			t.Fatalf("%q: byte %d of the buffer was written, beyond the %d there are", before, i-32, size)
		}
	}
}
