package prep

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// Mode is what of a model's outputs a request asks for.
type Mode string

// The modes of an inference.
const (
	Prediction              Mode = "prediction"
	Embedding               Mode = "embedding"
	PredictionWithEmbedding Mode = "prediction_with_embedding"
)

// Request is a tile request: a valid JSON document that holds the tile, from
// [ParseRequest], or the tile itself, from [RawRequest]. It aliases the body that
// it was made of, which must stay as it is while the request is used or until
// [Request.Detach].
//
// The tile's fields are checked by [Preparer.Prepare] and not before: a request
// for a model's metadata carries them empty.
type Request struct {
	fields [fieldCount]token
	isRaw  bool
	image  []byte // the encoded tile of a raw request, whose other fields may be missing
	broken *Error // what makes it no request at all; the others of its batch may be
}

// field is one of the fields that a request may have.
type field int

const (
	imageData field = iota
	bulkRNA
	slideName
	xField
	yField
	widthField
	heightField
	tissueRatio
	patchIdx
	resolution
	modelName
	modeField
	fieldCount
)

func (f field) String() string {
	return [fieldCount]string{
		"image_data", "bulk_rna", "slide_name", "x", "y", "width", "height",
		"tissue_ratio", "patch_idx", "resolution", "model_name", "mode",
	}[f]
}

func fieldOf(key string) field {
	switch key {
	case "image_data":
		return imageData
	case "bulk_rna":
		return bulkRNA
	case "slide_name":
		return slideName
	case "x":
		return xField
	case "y":
		return yField
	case "width":
		return widthField
	case "height":
		return heightField
	case "tissue_ratio":
		return tissueRatio
	case "patch_idx":
		return patchIdx
	case "resolution":
		return resolution
	case "model_name":
		return modelName
	case "mode":
		return modeField
	default:
		return fieldCount
	}
}

// ParseRequest reads the JSON document of a request. Unknown fields are passed
// over, the last of repeated fields counts. Its error is an [*Error], even when
// the code for it panics.
func ParseRequest(body []byte) (_ *Request, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = recovered(cause)
		}
	}()
	r := new(Request)
	s := scanner{data: body}
	if err = s.document(r.member); err != nil {
		if bytes.HasPrefix(body, []byte("\x89PNG")) || bytes.HasPrefix(body, []byte("\xff\xd8")) {
			return nil, refuse(InvalidRequest, "", "the body is an image and no JSON; send it with its Content-Type, such as image/png")
		}
		return nil, r.name(refuse(InvalidRequest, "", "the body is %s", err))
	}
	return r, nil
}

// member takes a member of the request's object, if it is one of its fields.
func (r *Request) member(key, value token) {
	var f field
	if key.escaped {
		f = fieldOf(key.text())
	} else {
		f = fieldOf(string(key.inner())) // the compiler does not copy here
	}
	if f < fieldCount {
		r.fields[f] = value
	}
}

// Name has an [*Error] that was found with the request, but elsewhere, tell which
// tile it is about. Other errors stay as they are.
func (r *Request) Name(err error) error {
	if failure, ok := errors.AsType[*Error](err); ok {
		_ = r.name(failure) // it is named in place
	}
	return err
}

// name tells an error which tile it is about.
func (r *Request) name(err *Error) *Error {
	err.Slide, err.Patch = r.known()
	return err
}

// known are the slide and the patch of the tile, clipped and as far as they are known.
func (r *Request) known() (slide, patch string) {
	if t := r.fields[slideName]; t.kind == stringKind {
		slide = clip(t.text())
	}
	if t := r.fields[patchIdx]; t.kind == numberKind {
		patch = clip(string(t.raw))
	}
	return slide, patch
}

// Naming is the end of a sentence about the tile, as the text of an [*Error] has it; empty
// where neither slide nor patch is known.
func (r *Request) Naming() string { return naming(r.known()) }

// ModelName is the request's model_name, empty when it has none.
func (r *Request) ModelName() (string, error) { return r.optionalText(modelName) }

// SlideName is the text of slide_name as it was sent, empty when there is none.
// It aliases the body.
func (r *Request) SlideName() []byte { return r.fields[slideName].raw }

// Mode is the request's mode, empty when it has none.
func (r *Request) Mode() (string, error) { return r.optionalText(modeField) }

func (r *Request) optionalText(f field) (string, error) {
	switch t := r.fields[f]; {
	case t.kind == missing, t.isNull():
		return "", nil
	case t.kind == stringKind:
		return t.text(), nil
	default:
		return "", r.name(refuse(InvalidRequest, f.String(), "must be a string"))
	}
}

// validate checks every field of a tile but the contents of image_data and
// bulk_rna. All that are missing are named in one error.
func (r *Request) validate() error {
	if r.broken != nil {
		return r.broken
	}
	var absent []string
	for _, f := range [...]field{imageData, slideName, xField, yField, widthField, heightField, patchIdx} {
		if r.fields[f].kind == missing && !(r.isRaw && f == imageData) {
			absent = append(absent, f.String())
		}
	}
	switch {
	case r.isRaw && len(r.image) == 0:
		return r.name(refuse(InvalidImage, "body", "empty; send the encoded image in it"))
	case absent == nil, r.IsBare():
	case r.isRaw:
		return r.name(refuse(InvalidRequest, strings.Join(absent, ", "), "missing; give all fields of the tile, or none for an answer of numbers alone"))
	default:
		return r.name(refuse(InvalidRequest, strings.Join(absent, ", "), "missing; every tile request must have it"))
	}
	for _, f := range [...]field{imageData, slideName} {
		if k := r.fields[f].kind; k != stringKind && k != missing {
			return r.name(refuse(InvalidRequest, f.String(), "must be a string"))
		}
	}
	for _, f := range [...]field{xField, yField, widthField, heightField, patchIdx} {
		t := r.fields[f]
		if t.kind == missing {
			continue
		}
		if r.isRaw && t.kind == stringKind { // what no JSON is
			return r.name(refuse(InvalidRequest, f.String(), "must be an integer, and %s is none", quote(t.text())))
		}
		if err := checkInteger(t); err != nil {
			return r.name(refuse(InvalidRequest, f.String(), "%s", err))
		}
	}
	for _, f := range [...]field{tissueRatio, resolution} {
		t := r.fields[f]
		if t.kind == missing || t.isNull() {
			continue
		}
		if t.kind != numberKind {
			return r.name(refuse(InvalidRequest, f.String(), "must be a number or null"))
		}
		if _, err := strconv.ParseFloat(string(t.raw), 64); err != nil {
			return r.name(refuse(InvalidRequest, f.String(), "%s does not fit a 64-bit float", clip(string(t.raw))))
		}
	}
	return nil
}

// echoed are the fields that an answer repeats, in its order.
func echoed() [8]field {
	return [...]field{slideName, xField, yField, widthField, heightField, tissueRatio, patchIdx, resolution}
}

// Detach lets go of the body that the request was made of, if what an answer repeats
// takes at most so many bytes: of that it keeps a copy, and of nothing else anything.
// It tells whether it did. The request must have been prepared, and cannot be again.
func (r *Request) Detach(most int) bool {
	size := 0
	for _, f := range echoed() {
		size += len(r.fields[f].raw)
	}
	if size > most {
		return false
	}
	var kept [fieldCount]token
	memory := make([]byte, 0, size)
	for _, f := range echoed() {
		at := len(memory)
		memory = append(memory, r.fields[f].raw...)
		kept[f] = r.fields[f]
		kept[f].raw = memory[at:]
	}
	r.fields, r.image = kept, nil
	return true
}

// MostEcho bounds what [Request.AppendEcho] appends, in bytes.
func (r *Request) MostEcho() int {
	const integer = 20 // the longest, which 1e18 may become
	n := 0
	for _, f := range echoed() {
		n += len(`"":,`) + len(f.String()) + max(len(r.fields[f].raw), integer)
	}
	return n
}

// AppendEcho appends the members of an answer that repeat the request, in the
// form `"slide_name":"S1","x":0,...`. Strings and numbers are repeated as they
// were sent, but for an integer written as 7.0 or 1e3, which becomes 7 or 1000.
// The request must have been prepared without an error.
func (r *Request) AppendEcho(dst []byte) []byte {
	for i, f := range echoed() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(dst, f.String()...)
		dst = append(dst, `":`...)
		switch t := r.fields[f]; {
		case t.kind == missing:
			dst = append(dst, "null"...)
		case f == tissueRatio, f == resolution, f == slideName:
			dst = append(dst, t.raw...)
		default:
			dst = appendInteger(dst, t.raw)
		}
	}
	return dst
}
