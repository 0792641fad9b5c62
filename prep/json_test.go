package prep

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nest is a document with an array that makes it depth levels deep.
func nest(depth int) string {
	return `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

func TestParseRequestTakes(t *testing.T) {
	for name, test := range map[string]struct {
		document string
		want     map[field]string // the raw tokens of the fields that are found
	}{
		"empty object":           {`{}`, nil},
		"white space everywhere": {" \t\r\n{ \n\"x\"\t:\r7 , \"y\" : 8\n} \n", map[field]string{xField: "7", yField: "8"}},
		"every field": {
			`{"image_data":"i","bulk_rna":[1],"slide_name":"s","x":1,"y":2,"width":3,"height":4,` +
				`"tissue_ratio":5,"patch_idx":6,"resolution":7,"model_name":"m","mode":"p"}`,
			map[field]string{
				imageData: `"i"`, bulkRNA: "[1]", slideName: `"s"`, xField: "1", yField: "2", widthField: "3", heightField: "4",
				tissueRatio: "5", patchIdx: "6", resolution: "7", modelName: `"m"`, modeField: `"p"`,
			},
		},
		"last of repeated keys counts":    {`{"x":1,"y":3,"x":"two"}`, map[field]string{xField: `"two"`, yField: "3"}},
		"key written with escapes":        {`{"\u0078":1,"slide\u005Fname":"S","\u0079\u0079":2}`, map[field]string{xField: "1", slideName: `"S"`}},
		"repeated key, once escaped":      {`{"x":1,"\u0078":2}`, map[field]string{xField: "2"}},
		"case of keys is not folded":      {`{"X":1,"Slide_Name":"s","IMAGE_DATA":"i"}`, nil},
		"keys of a nested object are not": {`{"a":{"x":1},"b":[{"x":2}]}`, nil},
		"unknown values of every type": {
			`{"a":null,"b":true,"c":false,"d":-0.5e-7,"e":"e","f":[[],[{}],{"g":[1,"]}",null]}],"h":{"i":{"j":[]}},"x":1}`,
			map[field]string{xField: "1"},
		},
		"every escape":         {`{"slide_name":"\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00"}`, map[field]string{slideName: `"\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00"`}},
		"any UTF-8":            {"{\"slide_name\":\"é漢😀\u2028\x7f\ufeff\"}", map[field]string{slideName: "\"é漢😀\u2028\x7f\ufeff\""}},
		"replacement char":     {"{\"slide_name\":\"\ufffd\\ufffd\"}", map[field]string{slideName: "\"\ufffd\\ufffd\""}},
		"noncharacters":        {`{"slide_name":"\uffff\uFDD0\u0000"}`, map[field]string{slideName: `"\uffff\uFDD0\u0000"`}},
		"empty key and string": {`{"":"","x":""}`, map[field]string{xField: `""`}},
		"nested to the limit":  {nest(maxDepth), nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ParseRequest([]byte(test.document))
			if err != nil {
				t.Fatal(err)
			}
			for f := range fieldCount {
				if got := string(r.fields[f].raw); got != test.want[f] {
					t.Errorf("%s is %q, want %q", f, got, test.want[f])
				}
			}
		})
	}
}

func TestParseRequestTakesEveryNumber(t *testing.T) {
	for _, number := range []string{
		"0", "-0", "7", "-7", "10", "0.0", "0.10", "-0.5", "1e3", "1E3", "1e+3", "1e-3", "0e0", "0E+00", "1.5e10",
		"123456789012345678901234567890", "1e999999999999999999999", "-1.7976931348623157e308",
	} {
		r, err := ParseRequest([]byte(`{"x":` + number + `,"y":[` + number + `]}`))
		if err != nil {
			t.Errorf("%s: %v", number, err)
			continue
		}
		if got := r.fields[xField]; got.kind != numberKind || string(got.raw) != number {
			t.Errorf("%s is read as %q", number, got.raw)
		}
	}
}

func TestTextOfStrings(t *testing.T) {
	for raw, want := range map[string]string{
		`""`: "", `"a"`: "a", `"é"`: "é",
		`"\"\\\/\b\f\n\r\t"`:         "\"\\/\b\f\n\r\t",
		`"a\u00e9b\u00E9"`:           "aébé",
		`"\ud83d\ude00\uD83D\uDE00"`: "😀😀",
		`"\u0000\u001f\u007F"`:       "\x00\x1f\x7f",
		`"\\u0041\\"`:                `\u0041\`,
		`"\ud7ff\ue000\uffff"`:       "\ud7ff\ue000\uffff",
		`"\udbff\udfff\ud800\udc00"`: "\U0010ffff\U00010000",
	} {
		r, err := ParseRequest([]byte(`{"mode":` + raw + `}`))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if got, err := r.Mode(); got != want || err != nil {
			t.Errorf("%s is read as %q (%v), want %q", raw, got, err, want)
		}
	}
}

func TestParseRequestRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		document string
		offset   int
		reason   string
	}{
		"nothing":                   {"", 0, "it is empty"},
		"white space":               {" \n ", 3, "it is empty"},
		"byte order mark":           {"\ufeff{}", 0, "a byte order mark where a JSON object is expected"},
		"UTF-16":                    {"\xff\xfe{\x00}\x00", 0, "byte 0xff where a JSON object"},
		"array":                     {`[{}]`, 0, `'[' where a JSON object`},
		"string":                    {`"x"`, 0, `'"' where a JSON object`},
		"null":                      {`null`, 0, `'n' where a JSON object`},
		"open object":               {`{`, 1, "the document ends where a key in quotes"},
		"open after key":            {`{"x"`, 4, "the document ends where a colon"},
		"open after colon":          {`{"x":`, 5, "the document ends where a value"},
		"open after value":          {`{"x":1`, 6, "the document ends where a comma or a closing brace"},
		"open after comma":          {`{"x":1,`, 7, "the document ends where a key in quotes"},
		"open array":                {`{"x":[1`, 7, "the document ends where a comma or a closing bracket"},
		"cut inside a string":       {`{"x":"abcdefghijkl`, 5, "a string that is never closed"},
		"cut at a backslash":        {`{"x":"ab\`, 8, "a string that is never closed"},
		"cut inside an escape":      {`{"x":"ab\u12`, 8, `an escape \u without four`},
		"trailing value":            {`{} {}`, 3, "'{' where the end of the document"},
		"trailing brace":            {`{}}`, 2, "'}' where the end of the document"},
		"trailing NUL":              {"{}\x00", 2, "byte 0x00 where the end of the document"},
		"trailing form feed":        {"{}\f", 2, "byte 0x0c where the end of the document"},
		"trailing no-break space":   {"{}\u00a0", 2, "byte 0xc2 where the end"},
		"comma before the brace":    {`{"x":1,}`, 7, "'}' where a key in quotes"},
		"comma first":               {`{,}`, 1, "',' where a key"},
		"comma before the bracket":  {`{"x":[1,]}`, 8, "']' where a value"},
		"no comma":                  {`{"x":1 "y":2}`, 7, `'"' where a comma or a closing brace`},
		"no comma in an array":      {`{"x":[1 2]}`, 8, "'2' where a comma or a closing bracket"},
		"brackets crossed":          {`{"x":[1}}`, 7, "'}' where a comma or a closing bracket"},
		"no colon":                  {`{"x" 1}`, 5, "'1' where a colon"},
		"bare key":                  {`{x:1}`, 1, "'x' where a key in quotes"},
		"single quotes":             {`{'x':1}`, 1, "'\\'' where a key in quotes"},
		"comment":                   {`{/**/"x":1}`, 1, "'/' where a key"},
		"-Infinity":                 {`{"x":-Infinity}`, 5, `-Infinity in "x" is not JSON; send a number or null`},
		"NaN":                       {`{"x":NaN}`, 5, `NaN in "x" is not JSON; send a number or null`},
		"NaN of the RNA":            {`{"bulk_\u0072na": [ 1,[2,"],"], {"bulk_rna":[3,4]} ,NaN]}`, 52, `NaN in "bulk_rna", at index 3, is not JSON; send a number, or -1 for a gene that was not measured`},
		"NaN deep in the RNA":       {`{"x":[0,0],"bulk_rna":[1.5,2,3,[4,-Infinity]]}`, 34, `-Infinity in "bulk_rna", at index 3, is not JSON`},
		"NaN as the RNA":            {`{"bulk_rna":NaN}`, 12, `NaN in "bulk_rna" is not JSON; send a number or null`},
		"Infinity":                  {`{"x":Infinity}`, 5, `Infinity in "x" is not JSON; send a number or null`},
		"True":                      {`{"x":True}`, 5, "'T' where a value"},
		"nul":                       {`{"x":nul}`, 5, "'n' where a value"},
		"nulls":                     {`{"x":nulls}`, 9, "'s' where a comma"},
		"plus":                      {`{"x":+1}`, 5, "'+' where a value"},
		"leading zero":              {`{"x":01}`, 6, "a number with a leading zero"},
		"negative leading zero":     {`{"x":-00}`, 7, "a number with a leading zero"},
		"minus alone":               {`{"x":-}`, 6, "'}' where a digit"},
		"point first":               {`{"x":.5}`, 5, "'.' where a value"},
		"point last":                {`{"x":5.}`, 7, "'}' where a digit"},
		"exponent without digits":   {`{"x":5e}`, 7, "'}' where a digit"},
		"exponent with a sign only": {`{"x":5e+}`, 8, "'}' where a digit"},
		"two signs":                 {`{"x":5e+-1}`, 8, "'-' where a digit"},
		"hexadecimal":               {`{"x":0x1}`, 6, "'x' where a comma"},
		"newline in a string":       {"{\"x\":\"a\nb\"}", 7, "control character 0x0a in a string"},
		"NUL in a key":              {"{\"x\x00\":1}", 3, "control character 0x00 in a string"},
		"unknown escape":            {`{"x":"a\x41"}`, 7, "an unknown escape"},
		"escaped quote alone":       {`{"x":"\'"}`, 6, "an unknown escape"},
		"escape not hexadecimal":    {`{"x":"\u12G4"}`, 6, `an escape \u without four`},
		"escape with a sign":        {`{"x":"\u+123"}`, 6, `an escape \u without four`},
		"escape in capitals":        {`{"x":"\U0041"}`, 6, "an unknown escape"},
		"high surrogate alone":      {`{"x":"a\ud83d"}`, 7, "half of a surrogate pair"},
		"high surrogate and text":   {`{"x":"\ud83dabcdef"}`, 6, "half of a surrogate pair"},
		"high and another escape":   {`{"x":"\ud83d\u0041"}`, 6, "half of a surrogate pair"},
		"two high surrogates":       {`{"x":"\ud83d\ud83d"}`, 6, "half of a surrogate pair"},
		"low surrogate alone":       {`{"x":"\ude00"}`, 6, "half of a surrogate pair"},
		"surrogates swapped":        {`{"x":"\ude00\ud83d"}`, 6, "half of a surrogate pair"},
		"lone surrogate in a key":   {`{"\udc00":1}`, 2, "half of a surrogate pair"},
		"lone surrogate, unknown":   {`{"a":[{"b":"\udc00"}]}`, 12, "half of a surrogate pair"},
		"invalid UTF-8":             {"{\"x\":\"abc\xff\"}", 9, "not valid UTF-8"},
		"invalid UTF-8 in a key":    {"{\"\x80\":1}", 2, "not valid UTF-8"},
		"UTF-8 cut short":           {"{\"x\":\"\xe6\xbc\"}", 6, "not valid UTF-8"},
		"UTF-8 overlong":            {"{\"x\":\"\xc0\x80\"}", 6, "not valid UTF-8"},
		"UTF-8 of a surrogate":      {"{\"x\":\"\xed\xa0\x80\"}", 6, "not valid UTF-8"},
		"UTF-8 past U+10FFFF":       {"{\"x\":\"\xf4\x90\x80\x80\"}", 6, "not valid UTF-8"},
		"nested past the limit":     {nest(maxDepth + 1), 4 + maxDepth, "nested deeper than 128 levels"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRequest([]byte(test.document))
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("the error is %v", err)
			}
			if refused.Code != InvalidRequest || refused.Field != "" {
				t.Errorf("code %s, field %q", refused.Code, refused.Field)
			}
			if !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%q does not say %q", err, test.reason)
			}
			if want := " at byte " + strconv.Itoa(test.offset) + ": "; !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		})
	}
}

// A document that is wrong after its slide and patch still names them.
func TestSyntaxErrorNamesTheTile(t *testing.T) {
	_, err := ParseRequest([]byte(`{"slide_name":"S\u0031","patch_idx":7,"x":NaN}`))
	const want = `the body is not valid JSON at byte 42: NaN in "x" is not JSON; send a number or null (slide_name "S1", patch_idx 7)`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v, want\n%s", err, want)
	}
}

// Ten megabytes made to exhaust a parser are refused at once, without memory.
func TestNestingBombs(t *testing.T) {
	const size = 10 << 20
	for name, document := range map[string][]byte{
		"arrays":             bytes.Repeat([]byte("["), size),
		"arrays in a member": append([]byte(`{"a":`), bytes.Repeat([]byte("["), size)...),
		"objects":            bytes.Repeat([]byte(`{"a":`), size/5),
		"both":               append([]byte(`{"a":`), bytes.Repeat([]byte(`[{"a":`), size/6)...),
	} {
		t.Run(name, func(t *testing.T) {
			const attempts = 10
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			took := time.Hour // the shortest: the machine may be busy with something else
			for range attempts {
				start := time.Now()
				if _, err := ParseRequest(document); err == nil {
					t.Fatal("taken")
				}
				took = min(took, time.Since(start))
			}
			runtime.ReadMemStats(&after)
			if took > 50*time.Millisecond*slowdown {
				t.Errorf("took %v", took)
			}
			if used := (after.TotalAlloc - before.TotalAlloc) / attempts; used > 64<<10 {
				t.Errorf("allocated %d bytes", used)
			}
		})
	}
}

// plain against the definition of what it counts.
func TestPlainEqualsItsDefinition(t *testing.T) {
	slow := func(data []byte) int {
		for i, c := range data {
			if c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
				return i
			}
		}
		return len(data)
	}
	check := func(data []byte) {
		if got, want := plain(data), slow(data); got != want {
			t.Fatalf("plain(%x) = %d, want %d", data, got, want)
		}
	}
	// Each pair of neighbours at each place of a word: a borrow goes from one
	// byte into the next.
	for first := range 256 {
		for second := range 256 {
			for at := range 7 {
				word := []byte("aaaaaaaaa")
				word[at], word[at+1] = byte(first), byte(second)
				check(word)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	edges := []byte{0, 0x1f, 0x20, 0x21, '"', '#', '[', '\\', ']', 0x7f, 0x80, 0x81, 0x9f, 0xa0, 0xa2, 0xdc, 0xff}
	for range 300_000 {
		data := make([]byte, random.IntN(40))
		for i := range data {
			switch random.IntN(8) {
			case 0:
				data[i] = edges[random.IntN(len(edges))]
			case 1:
				data[i] = byte(random.Uint32())
			default:
				data[i] = byte(0x23 + random.IntN(0x30))
			}
		}
		check(data)
	}
}
