package tritonclient

import (
	"errors"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of an inference are written and read here by hand, field by field as
// kserve/grpc_service.proto has them: generated code would copy each tensor twice.

// Field numbers of the messages.
const (
	requestModel     protowire.Number = 1
	requestID        protowire.Number = 3
	requestInput     protowire.Number = 5
	requestOutput    protowire.Number = 6
	requestRawInputs protowire.Number = 7

	answerModel      protowire.Number = 1
	answerVersion    protowire.Number = 2
	answerID         protowire.Number = 3
	answerParameters protowire.Number = 4
	answerOutput     protowire.Number = 5
	answerRawOutputs protowire.Number = 6

	tensorName       protowire.Number = 1
	tensorDatatype   protowire.Number = 2
	tensorShape      protowire.Number = 3
	tensorParameters protowire.Number = 4
	tensorContents   protowire.Number = 5

	mapKey          protowire.Number = 1
	mapValue        protowire.Number = 2
	parameterInt64  protowire.Number = 2
	parameterString protowire.Number = 3
)

// noSlot is the slot of a call whose inputs are not in shared memory.
const noSlot = -1

// codec has a call write its own request and read its own answer.
type codec struct{}

// Marshal implements [encoding.CodecV2].
func (codec) Marshal(v any) (mem.BufferSlice, error) { return v.(*call).marshal(), nil }

// Unmarshal implements [encoding.CodecV2].
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*call).unmarshal(data)
	return nil
}

// Name implements [encoding.CodecV2]; for the server the messages are ordinary ones.
func (codec) Name() string { return "proto" }

// call is one inference on its way through gRPC.
type call struct {
	*InferRequest
	buffers *Buffers
	segment *segment // for the inputs; nil where they go in the message
	slot    int      // of the segment, or noSlot

	// sent tells that the request was written: gRPC asks for that when it has a
	// connection for it, and until then nothing can have reached the server.
	sent   bool
	answer Answer
	wrong  error // with the answer
}

// field is a field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	whole  []byte // the tag included
	value  []byte // without the length, where it has one
}

// cutField cuts the first field off a message.
func cutField(message []byte) (f field, rest []byte, err error) {
	number, kind, tag := protowire.ConsumeTag(message)
	if tag < 0 {
		return f, nil, protowire.ParseError(tag)
	}
	if number > protowire.MaxValidNumber {
		return f, nil, errors.New("a field with a number that no field can have")
	}
	size := protowire.ConsumeFieldValue(number, kind, message[tag:])
	if size < 0 {
		return f, nil, protowire.ParseError(size)
	}
	f = field{number, kind, message[:tag+size], message[tag : tag+size]}
	if kind == protowire.BytesType {
		f.value, _ = protowire.ConsumeBytes(f.value)
	}
	return f, message[tag+size:], nil
}
