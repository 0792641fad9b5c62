package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

const (
	maxMetadata = 1 << 20 // bytes of all descriptions of a package
	maxTensors  = 64      // inputs, and outputs
	maxRank     = 16
	maxText     = 100 // bytes of a name or a type
)

// Metadata is what model_metadata.json says of a model.
type Metadata struct {
	Inputs  Tensors `json:"inputs"`
	Outputs Tensors `json:"outputs"`
}

// Tensors are in the order in which the model takes or gives them.
type Tensors []Tensor

// Tensor is an input or an output of a model.
type Tensor struct {
	Name  string `json:"-"`
	Shape []Dim  `json:"shape"` // the batch dimension included
	DType DType  `json:"dtype"`
}

// DType is an element type, as tensor libraries write it, without a prefix.
type DType string

// Dim is one size of a shape: a number, or a name where it differs from call to
// call.
type Dim struct {
	Size int64  // 0 for one that has a name
	Name string // empty for one that has a size
}

// String writes the size or the name.
func (d Dim) String() string {
	if d.Name != "" {
		return d.Name
	}
	return strconv.FormatInt(d.Size, 10)
}

func readMetadata(a *archive, m *member) (*Metadata, error) {
	text, err := a.readAll(m, maxMetadata)
	if err != nil {
		return nil, err
	}
	return parseMetadata(text)
}

func parseMetadata(text []byte) (*Metadata, error) {
	document := new(Metadata)
	if err := json.Unmarshal(text, document); err != nil {
		return nil, notAnObject(err)
	}
	if len(document.Inputs) == 0 || len(document.Outputs) == 0 {
		return nil, errors.New("inputs and outputs must each name at least one tensor")
	}
	return document, nil
}

// notAnObject says so of a value of another type, without the names of Go's types.
func notAnObject(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("must be an object and not of type %s, or a member of it has another type than it must have", wrong.Value)
	}
	return err
}

// UnmarshalJSON reads an object by tensor name whose order counts, which maps
// do not keep.
func (l *Tensors) UnmarshalJSON(text []byte) error {
	*l = nil
	document := json.NewDecoder(bytes.NewReader(text))
	if start, err := document.Token(); err != nil || start != json.Delim('{') {
		return errors.New("inputs and outputs must be objects, by tensor name")
	}
	names := map[string]bool{}
	for document.More() {
		key, err := document.Token()
		if err != nil {
			return err
		}
		t := Tensor{Name: key.(string)} // a key is nothing else
		if err = document.Decode(&t); err == nil {
			err = checkText("its name", t.Name)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), notAnObject(err))
		}
		switch {
		case names[t.Name]:
			return fmt.Errorf("tensor %s is there twice", quote(t.Name))
		case len(*l) == maxTensors:
			return fmt.Errorf("more than %d tensors", maxTensors)
		case len(t.Shape) == 0 || len(t.Shape) > maxRank:
			return fmt.Errorf("tensor %s: its shape must have from 1 to %d sizes, the batch dimension first", quote(t.Name), maxRank)
		case t.DType == "":
			return fmt.Errorf("tensor %s has no dtype", quote(t.Name))
		}
		names[t.Name] = true
		*l = append(*l, t)
	}
	_, err := document.Token()
	if err == io.EOF { //nolint:errorlint // Token promises this very value
		err = errors.New("cut off")
	}
	return err
}

// UnmarshalJSON reads a type with or without the prefix of the tensor library.
func (t *DType) UnmarshalJSON(text []byte) error {
	var name string
	if err := json.Unmarshal(text, &name); err != nil {
		return errors.New("dtype must be a text")
	}
	*t = DType(strings.TrimPrefix(name, "torch."))
	return checkText("its dtype", name)
}

// UnmarshalJSON reads a size or a name.
func (d *Dim) UnmarshalJSON(text []byte) error {
	*d = Dim{}
	if text[0] == '"' {
		if err := json.Unmarshal(text, &d.Name); err != nil {
			return err
		}
		if err := checkText("the name of a size", d.Name); err != nil {
			return err
		}
	} else if json.Unmarshal(text, &d.Size) != nil {
		d.Size = 0
	}
	if d.Name == "" && d.Size <= 0 {
		return fmt.Errorf("the size %s must be a whole number above zero, or a name", quote(string(text)))
	}
	return nil
}

// checkText refuses a text that a message could not repeat: what a model's users and
// its operator are told holds it.
func checkText(what, text string) error {
	switch {
	case len(text) > maxText:
		return fmt.Errorf("%s has %d bytes; at most %d are taken", what, len(text), maxText)
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%s holds what cannot be printed", what)
	default:
		return nil
	}
}
