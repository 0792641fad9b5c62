package prep

import (
	"bytes"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deeply arrays and objects may nest in a request: its own
// fields need two levels, the rest is for unknown ones.
const maxDepth = 128

// scanner walks over a JSON document (RFC 8259) and checks all of it, without
// copying any of it.
//
// The standard library is not used: encoding/json copies each string, takes
// invalid UTF-8 and lone surrogates, and needs some 80 times as long for the
// 119 KB body of a tile; encoding/json/jsontext would do, but is an experiment in
// Go 1.26 and needs 10 times as long. The benchmarks beside this file measure it.
type scanner struct {
	data []byte
	pos  int
	// passNonFinite lets NaN, Infinity and -Infinity through, which Python's json
	// writes for such floats; passed is then where the first and the last of them are.
	passNonFinite bool
	passed        []int
	// key and start are the document's member that is being scanned and where its value begins.
	key   token
	start int
}

func (s *scanner) fail(offset int, format string, args ...any) error {
	return fmt.Errorf("not valid JSON at byte %d: "+format, append([]any{offset}, args...)...)
}

// unexpected complains of the byte at the current position.
func (s *scanner) unexpected(wanted string) error {
	if s.pos >= len(s.data) {
		return s.fail(s.pos, "the document ends where %s is expected", wanted)
	}
	if bytes.HasPrefix(s.data[s.pos:], []byte("\ufeff")) {
		return s.fail(s.pos, "a byte order mark where %s is expected", wanted)
	}
	c := s.data[s.pos]
	if c >= 0x20 && c < 0x7f {
		return s.fail(s.pos, "%q where %s is expected", c, wanted)
	}
	return s.fail(s.pos, "byte 0x%02x where %s is expected", c, wanted)
}

func (s *scanner) space() {
	for s.pos < len(s.data) && s.data[s.pos] <= ' ' {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// next is the first byte behind white space, which stays to be read; zero, which
// nothing valid begins with, at the end of the document.
func (s *scanner) next() byte {
	s.space()
	if s.pos == len(s.data) {
		return 0
	}
	return s.data[s.pos]
}

func (s *scanner) take(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// document scans one object and nothing after it, calling member for each of
// the object's own members.
func (s *scanner) document(member func(key, value token)) error {
	s.space()
	if s.pos == len(s.data) {
		return s.fail(s.pos, "it is empty; a JSON object is expected")
	}
	if s.data[s.pos] != '{' {
		return s.unexpected("a JSON object")
	}
	if err := s.object(1, member); err != nil {
		return err
	}
	s.space()
	if s.pos < len(s.data) {
		return s.unexpected("the end of the document")
	}
	return nil
}

// object scans from the opening brace.
func (s *scanner) object(depth int, member func(key, value token)) error {
	if depth > maxDepth {
		return s.fail(s.pos, "nested deeper than %d levels", maxDepth)
	}
	s.pos++
	if s.next() == '}' {
		s.pos++
		return nil
	}
	for {
		if s.next() != '"' {
			return s.unexpected("a key in quotes")
		}
		key, err := s.string()
		if err != nil {
			return err
		}
		if s.next() != ':' {
			return s.unexpected("a colon")
		}
		s.pos++
		if depth == 1 {
			s.key, s.start = key, s.pos
		}
		value, err := s.value(depth)
		if err != nil {
			return err
		}
		if member != nil {
			member(key, value)
		}
		switch s.next() {
		case '}':
			s.pos++
			return nil
		case ',':
			s.pos++
		default:
			return s.unexpected("a comma or a closing brace")
		}
	}
}

// array scans from the opening bracket, calling element for each of the array's own.
func (s *scanner) array(depth int, element func(token)) error {
	if depth > maxDepth {
		return s.fail(s.pos, "nested deeper than %d levels", maxDepth)
	}
	s.pos++
	if s.next() == ']' {
		s.pos++
		return nil
	}
	for {
		if element == nil {
			if err := s.passOver(depth); err != nil {
				return err
			}
		} else {
			value, err := s.value(depth)
			if err != nil {
				return err
			}
			element(value)
		}
		switch s.next() {
		case ']':
			s.pos++
			return nil
		case ',':
			s.pos++
		default:
			return s.unexpected("a comma or a closing bracket")
		}
	}
}

// passOver scans an element of an array whose token nobody wants, and with it as
// many plain numbers as come before it.
func (s *scanner) passOver(depth int) error {
	if c := s.next(); c == '-' || c-'0' <= 9 {
		s.pos += plainNumbers(s.data[s.pos:])
	}
	switch s.next() {
	case '[':
		return s.array(depth+1, nil)
	case '{':
		return s.object(depth+1, nil)
	}
	_, err := s.value(depth)
	return err
}

// value scans any value that lies depth levels deep.
func (s *scanner) value(depth int) (token, error) {
	c := s.next()
	start := s.pos
	var k kind
	var err error
	switch {
	case c == '"':
		return s.string()
	case c == '{':
		k, err = objectKind, s.object(depth+1, nil)
	case c == '[':
		k, err = arrayKind, s.array(depth+1, nil)
	case c == '-' || c >= '0' && c <= '9':
		k, err = numberKind, s.number()
	default:
		k, err = literalKind, s.literal()
	}
	return token{kind: k, raw: s.data[start:s.pos]}, err
}

func (s *scanner) literal() error {
	for _, word := range [...]string{"null", "true", "false"} {
		if bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
			s.pos += len(word)
			return nil
		}
	}
	return s.nonFinite(s.pos, "a value")
}

// nonFinite scans a value that must be a float that is not finite, if anything.
func (s *scanner) nonFinite(start int, wanted string) error {
	for i, word := range [...]string{"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"} {
		if !bytes.HasPrefix(s.data[start:], []byte(word)) {
			continue
		}
		if !s.passNonFinite || i > 2 {
			return s.fail(start, "%s%s", word, s.notJSON(start))
		}
		s.passed = append(s.passed[:min(len(s.passed), 1)], start)
		s.pos = start + len(word)
		return nil
	}
	return s.unexpected(wanted)
}

// notJSON says of a value that is no number in which member it is, and what could be there.
func (s *scanner) notJSON(at int) string {
	if s.key.kind == missing {
		return " is not JSON; send a number or null"
	}
	key := s.key.text()
	before, index := scanner{data: s.data[:at], pos: s.start}, 0
	if key != bulkRNA.String() || before.next() != '[' {
		return fmt.Sprintf(" in %s is not JSON; send a number or null", quote(key))
	}
	_ = before.array(2, func(token) { index++ }) // it ends early
	return fmt.Sprintf(" in %s, at index %d, is not JSON; send a number, or %s", quote(key), index, unmeasured)
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) number() error {
	start := s.pos
	s.take('-')
	if s.take('0') {
		if s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
			return s.fail(s.pos, "a number with a leading zero")
		}
	} else if !s.digits() {
		return s.nonFinite(start, "a digit")
	}
	if s.take('.') && !s.digits() {
		return s.unexpected("a digit")
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	return nil
}

// string scans from the opening quote.
func (s *scanner) string() (token, error) {
	start := s.pos
	s.pos++
	s.pos += plainString(s.data[s.pos:])
	escaped := false
	for ; ; s.pos += plain(s.data[s.pos:]) {
		if s.pos >= len(s.data) {
			return token{}, s.fail(start, "a string that is never closed")
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return token{kind: stringKind, escaped: escaped, raw: s.data[start:s.pos]}, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return token{}, err
			}
		case c < 0x20:
			return token{}, s.fail(s.pos, "control character 0x%02x in a string", c)
		default:
			r, size := utf8.DecodeRune(s.data[s.pos:])
			if r == utf8.RuneError && size == 1 {
				return token{}, s.fail(s.pos, "not valid UTF-8")
			}
			s.pos += size
		}
	}
}

// escape scans from a backslash, and a surrogate pair as one.
func (s *scanner) escape() error {
	start := s.pos
	if start+1 >= len(s.data) {
		return s.fail(start, "a string that is never closed")
	}
	switch s.data[start+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return nil
	case 'u':
		first, ok := hex4(s.data[start:])
		if !ok {
			return s.fail(start, `an escape \u without four hexadecimal digits`)
		}
		s.pos += 6
		if utf16.IsSurrogate(first) {
			second, ok := hex4(s.data[s.pos:])
			if !ok || utf16.DecodeRune(first, second) == utf8.RuneError {
				return s.fail(start, "half of a surrogate pair")
			}
			s.pos += 6
		}
		return nil
	default:
		return s.fail(start, "an unknown escape")
	}
}
