package prep

import (
	"bytes"
	"encoding/json"
	"iter"
	"unicode/utf8"
)

// RawRequest makes a request of an encoded image, which it aliases, and of fields
// as a query string holds them: names and texts. The text of slide_name,
// model_name and mode is taken as it is, that of the others as JSON. All that an
// answer repeats have to be there, or none of them. They are held to the same rules
// as in a document: unknown ones are passed over, the last of repeated ones counts,
// but for model_name and mode, which can come from several places: those must agree.
// Its error is an [*Error].
func RawRequest(image []byte, fields iter.Seq2[string, string]) (*Request, error) {
	r := &Request{isRaw: true, image: image}
	for name, text := range fields {
		switch f := fieldOf(name); f {
		case fieldCount: // unknown
		case imageData:
			return nil, r.name(refuse(InvalidRequest, name, "must be left out: the body is the image"))
		case slideName, modelName, modeField:
			if !utf8.ValidString(text) {
				return nil, r.name(refuse(InvalidRequest, name, "not valid UTF-8"))
			}
			given := quoted(text)
			if before := r.fields[f]; f != slideName && before.kind != missing && !bytes.Equal(before.raw, given.raw) {
				return nil, r.name(refuse(InvalidRequest, name, "both %s and %s are given; send one of them", quote(before.text()), quote(text)))
			}
			r.fields[f] = given
		default:
			r.fields[f] = valueOf(text)
		}
	}
	return r, nil
}

// IsBare tells of a raw request without any of the fields that an answer repeats.
func (r *Request) IsBare() bool {
	for _, f := range echoed() {
		if r.fields[f].kind != missing {
			return false
		}
	}
	return r.isRaw
}

// IsRaw tells whether the request is an image by itself.
func (r *Request) IsRaw() bool { return r.isRaw }

// valueOf is the JSON value that a text is. One that is none is a string, which
// no field takes that is not text.
func valueOf(text string) token {
	s := scanner{data: []byte(text)}
	value, err := s.value(0)
	if err != nil || s.pos < len(text) {
		return quoted(text)
	}
	return value
}

// quoted is a text as a JSON string.
func quoted(text string) token {
	raw, _ := json.Marshal(text) // a string can always be written
	return token{kind: stringKind, escaped: bytes.IndexByte(raw, '\\') >= 0, raw: raw}
}
