package prep

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/segmentio/asm/base64"
)

// decodeBase64 decodes the text of a scanned JSON string into dst, which it
// returns grown to the size of the data. The alphabet is the standard one,
// padding is required, white space inside is passed over, and bits left over in
// the last character are ignored.
func decodeBase64(dst []byte, t token) ([]byte, error) {
	text := t.inner()
	if !t.escaped {
		if data, err := decodePlain(dst, text); err == nil {
			return data, nil
		}
	}
	// Rare: a text with white space or escapes in it, or one that is wrong.
	if t.escaped {
		text = unescape(make([]byte, 0, len(text)), text)
	}
	compact := bytes.Map(func(r rune) rune {
		switch r {
		case ' ', '\t', '\r', '\n':
			return -1
		default:
			return r
		}
	}, text)
	if err := diagnose(compact); err != nil {
		return dst, err
	}
	return decodePlain(dst, compact)
}

// decodePlain decodes what holds nothing but the alphabet and padding.
func decodePlain(dst, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return dst, errors.New("empty")
	}
	size := base64.StdEncoding.DecodedLen(len(text))
	if cap(dst) < size {
		dst = make([]byte, size)
	}
	n, err := base64.StdEncoding.Decode(dst[:size], text)
	return dst[:n], err
}

// diagnose says what is wrong with a text that has no white space left, or nil.
func diagnose(text []byte) error {
	const (
		hint = "; base64 with the standard alphabet and padding is expected"
		data = "data:"
	)
	if len(text) == 0 {
		return errors.New("empty; the tile is expected as an encoded image in base64")
	}
	if bytes.HasPrefix(text, []byte(data)) {
		return errors.New("a data: URL; send only what follows its comma")
	}
	padding := 0
	for i, c := range text {
		switch {
		case c == '=':
			padding++
			if i%4 < 2 || padding > 2 {
				return fmt.Errorf("padding at an impossible place, character %d"+hint, i)
			}
		case padding > 0:
			return fmt.Errorf("more text after the padding, at character %d"+hint, i)
		case c == '-' || c == '_':
			return fmt.Errorf("character %q at %d belongs to the URL-safe alphabet"+hint, c, i)
		case !isBase64(c):
			return fmt.Errorf("character %s at %d"+hint, quote(string(rune(c))), i)
		}
	}
	if len(text)%4 != 0 {
		return fmt.Errorf("%d characters, not a multiple of four: the padding or the end is missing"+hint, len(text))
	}
	return nil
}

func isBase64(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '/'
}
