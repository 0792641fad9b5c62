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
	compact := make([]byte, 0, len(text))
	for _, c := range text {
		if !isSpace(c) {
			compact = append(compact, c)
		}
	}
	data, err := decodeCompact(dst, compact)
	if err != nil {
		return dst, diagnose(text)
	}
	return data, nil
}

// decodeCompact decodes what holds nothing but the alphabet and padding.
func decodeCompact(dst, text []byte) ([]byte, error) {
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

// diagnose says what is wrong with a text that cannot be decoded. The positions
// in its errors count the white space that was sent.
func diagnose(text []byte) error {
	const (
		scheme = "data:"
		wanted = "; base64 with the standard alphabet and padding is expected"
	)
	start := bytes.TrimLeft(text, " \t\r\n")
	if len(start) >= len(scheme) && bytes.EqualFold(start[:len(scheme)], []byte(scheme)) {
		return errors.New("a data: URL; send only what follows its comma")
	}
	size, padded := 0, false
	for i, c := range text {
		switch {
		case isSpace(c):
			continue
		case c == '=':
			if size%4 < 2 {
				return fmt.Errorf("padding at an impossible place, character %d"+wanted, i)
			}
			padded = true
		case padded:
			return fmt.Errorf("more text after the padding, at character %d"+wanted, i)
		case c == '-' || c == '_':
			return fmt.Errorf("character %q at %d belongs to the URL-safe alphabet"+wanted, c, i)
		case !isBase64(c):
			r, _ := utf8.DecodeRune(text[i:])
			return fmt.Errorf("character %q at %d"+wanted, string(r), i)
		}
		size++
	}
	if size == 0 {
		return errors.New("empty; the tile is expected as an encoded image in base64")
	}
	return fmt.Errorf("%d characters, not a multiple of four: padding or the end is missing"+wanted, size)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func isBase64(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '/'
}
