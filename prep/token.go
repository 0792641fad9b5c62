package prep

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// kind is the type of a JSON value, told by its first byte.
type kind byte

const (
	missing kind = iota // no such value in the document
	stringKind
	numberKind
	literalKind // true, false, null
	arrayKind
	objectKind
)

// token is one JSON value, uninterpreted. It aliases the document.
type token struct {
	kind kind
	// escaped tells whether a string has a backslash in it.
	escaped bool
	// raw is the value as it was sent; a string's includes its quotes.
	raw []byte
}

// inner is the text between a string's quotes.
func (t token) inner() []byte { return t.raw[1 : len(t.raw)-1] }

func (t token) isNull() bool { return t.kind == literalKind && t.raw[0] == 'n' }

// describe names the type of a value for an error.
func (t token) describe() string {
	switch t.kind {
	case stringKind:
		return "a string"
	case numberKind:
		return "a number"
	case arrayKind:
		return "an array"
	case objectKind:
		return "an object"
	default:
		return string(t.raw) // true, false or null
	}
}

// text is the string that a token stands for.
func (t token) text() string {
	if !t.escaped {
		return string(t.inner())
	}
	return string(unescape(nil, t.inner()))
}

// hex4 reads an escape of the form \uXXXX.
func hex4(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	for _, c := range data[2:6] {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(string(data[2:6]), 16, 32)
	return rune(n), err == nil
}

// unescape appends what the inside of a scanned string stands for.
func unescape(dst, inner []byte) []byte {
	for {
		i := bytes.IndexByte(inner, '\\')
		if i < 0 {
			return append(dst, inner...)
		}
		dst = append(dst, inner[:i]...)
		inner = inner[i:]
		size := 2
		switch c := inner[1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, _ := hex4(inner)
			size = 6
			if utf16.IsSurrogate(r) {
				second, _ := hex4(inner[6:])
				r = utf16.DecodeRune(r, second)
				size = 12
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, c)
		}
		inner = inner[size:]
	}
}
