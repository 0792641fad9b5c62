//go:build goexperiment.jsonv2

package prep

import (
	"bytes"
	"encoding/json/jsontext"
	"testing"
)

// The scanner that would be used here if it were part of Go without an
// experiment: it checks UTF-8 and says where a document is wrong. Its fastest
// form, which reads from the body itself and looks at each member's raw value.
func BenchmarkParseRequestWithJSONText(b *testing.B) {
	body := tileBody(benchImage(b), "S1", 7)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		decoder := jsontext.NewDecoder(bytes.NewBuffer(body))
		if _, err := decoder.ReadToken(); err != nil {
			b.Fatal(err)
		}
		found := 0
		for decoder.PeekKind() == '"' {
			key, err := decoder.ReadValue()
			if err != nil {
				b.Fatal(err)
			}
			if fieldOf(string(key[1:len(key)-1])) < fieldCount {
				found++
			}
			if _, err := decoder.ReadValue(); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := decoder.ReadToken(); err != nil || found != 10 {
			b.Fatalf("%d fields found (%v)", found, err)
		}
	}
}
