package tritonclient

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"histogate/tritonclient/kserve"
)

// unmarshal makes the answer of a message, which is copied: gRPC reads it in pieces and
// does not let them be written to.
func (c *call) unmarshal(data mem.BufferSlice) {
	memory := c.buffers.Get(max(data.Len(), 1))
	message := (*memory)[:data.CopyTo(*memory)]
	c.answer = Answer{memory: memory, buffers: c.buffers}
	if c.answer.Outputs, c.wrong = c.read(message); c.wrong != nil {
		c.answer.Release()
	}
}

// read takes the outputs out of an answer, of whose memory they are parts, and holds
// every property of them against what was asked for. It refuses, besides, what
// generated code would refuse to read.
func (c *call) read(message []byte) ([]Tensor, error) {
	var model []byte
	tensors, contents := make([]outputTensor, 0, 2), make([][]byte, 0, 2)
	for len(message) > 0 {
		f, rest, err := cutField(message)
		if err != nil {
			return nil, err
		}
		message = rest
		if f.kind != protowire.BytesType {
			continue // unknown
		}
		switch f.number {
		case answerModel, answerVersion, answerID:
			if !utf8.Valid(f.value) {
				return nil, errNotUTF8
			}
			if f.number == answerModel {
				model = f.value
			}
		case answerParameters:
			if err := proto.Unmarshal(f.whole, new(kserve.ModelInferResponse)); err != nil {
				return nil, err
			}
		case answerOutput:
			t, err := readTensor(f.value)
			if err != nil {
				return nil, err
			}
			tensors = append(tensors, t)
		case answerRawOutputs:
			contents = append(contents, f.value)
		}
	}
	if string(model) != c.Model {
		return nil, fmt.Errorf("the answer is of model %q", model)
	}
	return c.check(tensors, contents)
}

// check holds outputs and their data against what was asked for.
func (c *call) check(tensors []outputTensor, contents [][]byte) ([]Tensor, error) {
	if len(tensors) != len(c.Outputs) || len(contents) != len(tensors) {
		return nil, fmt.Errorf("%d outputs with %d contents came back, %d were asked for", len(tensors), len(contents), len(c.Outputs))
	}
	outputs := make([]Tensor, len(c.Outputs))
	for i := range c.Outputs {
		want := &c.Outputs[i]
		at := slices.IndexFunc(tensors, func(t outputTensor) bool { return string(t.name) == want.Name })
		if at < 0 {
			return nil, fmt.Errorf("output %q is missing", want.Name)
		}
		got, data := &tensors[at], contents[at]
		switch {
		case string(got.datatype) != string(want.Datatype):
			return nil, fmt.Errorf("output %q has datatype %q, not %q", want.Name, got.datatype, want.Datatype)
		case !slices.Equal(got.shape, want.Shape):
			return nil, fmt.Errorf("output %q has shape %v, not %v", want.Name, got.shape, want.Shape)
		case got.typed:
			return nil, fmt.Errorf("output %q has typed contents, not raw ones", want.Name)
		case len(data) != want.bytes():
			return nil, fmt.Errorf("output %q has %d bytes, not the %d of its shape", want.Name, len(data), want.bytes())
		}
		outputs[i] = Tensor{want.Name, want.Datatype, want.Shape, slices.Clip(data)}
	}
	return outputs, nil
}

// outputTensor is what an answer says of an output.
type outputTensor struct {
	name, datatype []byte
	shape          []int64
	typed          bool // it has contents of its own, beside the raw ones
}

func readTensor(message []byte) (t outputTensor, err error) {
	for len(message) > 0 {
		f, rest, err := cutField(message)
		if err != nil {
			return t, err
		}
		message = rest
		switch {
		case f.number == tensorShape && (f.kind == protowire.VarintType || f.kind == protowire.BytesType):
			for len(f.value) > 0 {
				v, n := protowire.ConsumeVarint(f.value)
				if n < 0 {
					return t, protowire.ParseError(n)
				}
				t.shape, f.value = append(t.shape, int64(v)), f.value[n:]
			}
		case f.kind != protowire.BytesType: // unknown
		case f.number == tensorName || f.number == tensorDatatype:
			if !utf8.Valid(f.value) {
				return t, errNotUTF8
			}
			if f.number == tensorName {
				t.name = f.value
			} else {
				t.datatype = f.value
			}
		case f.number == tensorParameters:
			if err := proto.Unmarshal(f.whole, new(kserve.ModelInferResponse_InferOutputTensor)); err != nil {
				return t, err
			}
		case f.number == tensorContents:
			t.typed = true
		}
	}
	return t, nil
}

var errNotUTF8 = errors.New("a text of the answer is not valid UTF-8")
