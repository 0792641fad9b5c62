package prep

import (
	"fmt"
	"runtime/debug"
	"strings"
	"unicode"
)

// Code says in one word what a caller has to change. The set is closed.
type Code string

// The codes of stage 1. Each of them is the failure of one request alone.
const (
	InvalidRequest  Code = "invalid_request"
	InvalidImage    Code = "invalid_image"
	WrongShape      Code = "wrong_shape"
	InvalidRNA      Code = "invalid_rna"
	UnsupportedMode Code = "unsupported_mode"
)

// Error is the one error type of this package. Its text is meant for the caller
// of the request: it names the field, the slide and the patch, says what is
// wrong, and repeats at most 40 characters of any value that was sent.
type Error struct {
	Code   Code
	Field  string // empty when the document as a whole is meant
	Slide  string // slide_name as far as it is known, decoded and clipped
	Patch  string // patch_idx as far as it is known, as it was sent, clipped
	Detail string
	// Stack is a panic that was recovered and where; nil for every other failure.
	Stack []byte
}

func (e *Error) Error() string {
	var s strings.Builder
	if e.Field != "" {
		s.WriteString(e.Field + ": ")
	}
	s.WriteString(e.Detail)
	s.WriteString(naming(e.Slide, e.Patch))
	return s.String()
}

// naming is the end of a sentence about a tile that says which it is, as far as that is
// known: ` (slide_name "S1", patch_idx 7)`.
func naming(slide, patch string) string {
	var where []string
	if slide != "" {
		where = append(where, "slide_name "+quote(slide))
	}
	if patch != "" {
		where = append(where, "patch_idx "+clip(patch))
	}
	if where == nil {
		return ""
	}
	return " (" + strings.Join(where, ", ") + ")"
}

func refuse(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// recovered is the failure of a request whose processing panicked with cause. It
// must be made where the panic is recovered.
func recovered(cause any) *Error {
	failure := refuse(InvalidRequest, "", "the request cannot be processed")
	failure.Stack = fmt.Appendf(nil, "panic: %v\n\n%s", cause, debug.Stack())
	return failure
}

// mostQuoted is how many characters of a caller's value an error repeats.
const mostQuoted = 40

// clip bounds a value that was sent, for use in an error.
func clip(s string) string {
	n := 0
	for i := range s {
		if n == mostQuoted {
			return s[:i] + "..."
		}
		n++
	}
	return s
}

// quote clips a value and makes what cannot be printed visible.
func quote(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, clip(s))
	return `"` + s + `"`
}
