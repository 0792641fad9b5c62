package prep

import (
	"bytes"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
)

func stringToken(t *testing.T, inner string) token {
	t.Helper()
	r, err := ParseRequest([]byte(`{"image_data":"` + inner + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	return r.fields[imageData]
}

func TestDecodeBase64(t *testing.T) {
	long := strings.Repeat("QUJD", 20)
	for inner, want := range map[string]string{
		"QQ==": "A", "QUI=": "AB", "QUJD": "ABC", "+/+/": "\xfb\xff\xbf",
		"QR==": "A", "QUK=": "AB", // bits left over are ignored
		" Q Q = = ":          "A", //nolint:gocritic // the white space is what is tested
		`\nQUJD\r\n\tQUI=\n`: "ABCAB", `Q\u0055JD`: "ABC", `+\/+\/`: "\xfb\xff\xbf", `QQ=\u003d`: "A",
		long: strings.Repeat("ABC", 20), long + " " + long: strings.Repeat("ABC", 40), long + `\n` + long: strings.Repeat("ABC", 40),
	} {
		if got, err := decodeBase64(nil, stringToken(t, inner)); err != nil || string(got) != want {
			t.Errorf("%s: %q (%v), want %q", inner, got, err, want)
		}
	}
}

func TestDecodeBase64Refuses(t *testing.T) {
	long := strings.Repeat("QUJD", 20) // 80 characters: enough for the vector code
	for inner, want := range map[string]string{
		"":                            "empty; the tile is expected as an encoded image",
		` \t\n`:                       "empty; the tile is expected as an encoded image",
		"data:image/png;base64,QQ==":  "a data: URL; send only what follows its comma",
		" Data:image/png;base64,QQ==": "a data: URL; send only what follows its comma",
		"QUJ_":                        "character '_' at 3 belongs to the URL-safe alphabet",
		long + "Q-==":                 "character '-' at 81 belongs to the URL-safe alphabet",
		"QQ":                          "2 characters, not a multiple of four",
		"QQ=":                         "3 characters, not a multiple of four",
		long + "Q":                    "81 characters, not a multiple of four",
		"=":                           "padding at an impossible place, character 0",
		"Q===":                        "padding at an impossible place, character 1",
		"QUI==":                       "padding at an impossible place, character 4",
		"====":                        "padding at an impossible place, character 0",
		"QQ==QQ==":                    "more text after the padding, at character 4",
		"QQ== Q":                      "more text after the padding, at character 5",
		"QQ=Q":                        "more text after the padding, at character 3",
		"QQ==!":                       "more text after the padding, at character 4",
		"QU D!":                       `character "!" at 4;`,
		long + "QUé=":                 `character "é" at 82;`,
		`QU\u0000=`:                   `character "\x00" at 2;`,
		"QQ\u00a0==":                  `character "\u00a0" at 2;`, // a no-break space is not white space here
		"😀":                           `character "😀" at 0;`,
		`QU\fJ`:                       `character "\f" at 2;`,
	} {
		_, err := decodeBase64(nil, stringToken(t, inner))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error %v does not say %q", inner, err, want)
		}
	}
}

// Every length, every place of a wrong byte: the vector code and its tail.
func TestDecodeBase64EqualsTheStandardLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for size := 1; size <= 300; size++ {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		text := base64.StdEncoding.EncodeToString(data)
		compareBase64(t, stringToken(t, text))
		for range 20 {
			spoiled := []byte(text)
			at := random.IntN(len(spoiled))
			switch random.IntN(4) {
			case 0:
				spoiled[at] = byte(' ' + random.IntN(0x60))
				if spoiled[at] == '"' || spoiled[at] == '\\' || spoiled[at] == 0x7f {
					continue
				}
			case 1:
				spoiled = append(spoiled[:at], spoiled[at+1:]...)
			case 2:
				spoiled = append(spoiled[:at], append([]byte{" =-_/A"[random.IntN(6)]}, spoiled[at:]...)...)
			default:
				spoiled = append(spoiled[:at], append([]byte([]string{`\n`, `\r\n`, `\/`, "é"}[random.IntN(4)]), spoiled[at:]...)...)
			}
			compareBase64(t, stringToken(t, string(spoiled)))
		}
	}
}

// The buffer is used when it is large enough and grown when it is not.
func TestDecodeBase64ReusesItsBuffer(t *testing.T) {
	buffer := make([]byte, 0, 64)
	short := stringToken(t, "QUJD")
	got, err := decodeBase64(buffer, short)
	if err != nil || &got[0] != &buffer[:1][0] {
		t.Errorf("a buffer of 64 bytes was not used for 3 (%v)", err)
	}
	long := stringToken(t, strings.Repeat("QUJD", 100))
	if got, err = decodeBase64(buffer, long); err != nil || !bytes.Equal(got, bytes.Repeat([]byte("ABC"), 100)) {
		t.Errorf("300 bytes into a buffer of 64: %d bytes (%v)", len(got), err)
	}
	if allocs := testing.AllocsPerRun(100, func() { _, _ = decodeBase64(buffer, short) }); allocs != 0 {
		t.Errorf("%v allocations with a buffer that is large enough", allocs)
	}
}
