package prep

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/segmentio/asm/base64"
)

// decodeBase64 decodes the text of a scanned JSON string into dst, which it
// returns grown to the size of the data. The alphabet is the standard one,
// padding is required, white space is passed over, and bits left over in the
// last character are ignored. The text is not changed.
func decodeBase64(dst []byte, t token) ([]byte, error) {
	text := t.inner()
	if !t.escaped {
		if data, err := decodeCompact(dst, text); err == nil {
			return data, nil
		}
	} else {
		text = unescape(make([]byte, 0, len(text)), text)
	}
	// Rare: a text with white space or escapes in it, or one that is wrong.
	text, err := compact(text)
	if err != nil {
		return dst, err
	}
	return decodeCompact(dst, text)
}

var errEmpty = errors.New("empty; the tile is expected as an encoded image in base64")

// decodeCompact decodes what holds nothing but the alphabet and padding.
func decodeCompact(dst, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return dst, errEmpty
	}
	size := base64.StdEncoding.DecodedLen(len(text))
	if cap(dst) < size {
		dst = make([]byte, size)
	}
	n, err := base64.StdEncoding.Decode(dst[:size], text)
	return dst[:n], err
}

// compact copies a text without its white space, or says what is wrong with it.
// The positions in its errors are those of the text with its white space.
func compact(text []byte) ([]byte, error) {
	const (
		scheme = "data:"
		wanted = "; base64 with the standard alphabet and padding is expected"
	)
	start := bytes.TrimLeft(text, " \t\r\n")
	if len(start) >= len(scheme) && bytes.EqualFold(start[:len(scheme)], []byte(scheme)) {
		return nil, errors.New("a data: URL; send only what follows its comma")
	}
	out := make([]byte, 0, len(text))
	padded := false
	for i, c := range text {
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			continue
		case c == '=':
			if len(out)%4 < 2 {
				return nil, fmt.Errorf("padding at an impossible place, character %d"+wanted, i)
			}
			padded = true
		case padded:
			return nil, fmt.Errorf("more text after the padding, at character %d"+wanted, i)
		case c == '-' || c == '_':
			return nil, fmt.Errorf("character %q at %d belongs to the URL-safe alphabet"+wanted, c, i)
		case !isBase64(c):
			r, _ := utf8.DecodeRune(text[i:])
			return nil, fmt.Errorf("character %s at %d"+wanted, quote(string(r)), i)
		}
		out = append(out, c)
	}
	if len(out)%4 != 0 {
		return nil, fmt.Errorf("%d characters, not a multiple of four: padding or the end is missing"+wanted, len(out))
	}
	return out, nil
}

func isBase64(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '/'
}
