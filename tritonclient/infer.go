package tritonclient

import (
	"context"

	"google.golang.org/grpc/codes"

	"histogate/tritonclient/kserve"
)

// Tensor is a named block of numbers, little-endian and row-major.
type Tensor struct {
	Name     string
	Datatype Datatype
	Shape    []int64 // the batch dimension included
	Data     []byte
}

// TensorSpec is what is sent as an input, or expected of an output.
type TensorSpec struct {
	Name     string
	Datatype Datatype
	Shape    []int64 // the batch dimension included
}

// bytes is the length of the tensor's data; it is never negative.
func (s *TensorSpec) bytes() int {
	n := s.Datatype.Size()
	for _, d := range s.Shape {
		n *= int(d)
	}
	return n
}

// InferRequest is one inference.
type InferRequest struct {
	Model  string
	ID     string // shows up in Triton's log
	Inputs []TensorSpec
	// Write writes the data of the i-th input to memory of its size, which holds
	// anything before and need not be aligned: the very memory that it is sent
	// from. It is called while [Client.Infer] runs, perhaps never, perhaps twice for
	// an input.
	Write   func(i int, dst []byte)
	Outputs []TensorSpec // what is asked for and must come back exactly so
}

// Answer is what an inference gave. It is its caller's, who may write to its tensors.
type Answer struct {
	Outputs []Tensor // in the order asked for

	memory  *[]byte // of all of them, from the pool
	buffers *Buffers
}

// Release gives the answer's memory back, once, when nobody reads it any more. An
// answer that is never released is left to the garbage collector.
func (a *Answer) Release() {
	a.buffers.Put(a.memory)
	a.Outputs, a.memory = nil, nil
}

// Infer runs the model. The context should have a deadline: a model can fail to
// answer at all.
func (c *Client) Infer(ctx context.Context, req *InferRequest) (*Answer, error) {
	s := c.usable(req.Model)
	answer, err := c.infer(ctx, req, s)
	if err != nil && s != nil && isForgotten(err) {
		// Its outcome is for others too, who have not given up.
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), registerTimeout)
		defer cancel()
		if err := c.register(again, s); err != nil {
			c.log.Warn("tensors go in messages: the server has forgotten the shared memory", "model", req.Model, "error", err)
		}
		answer, err = c.infer(ctx, req, nil)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// infer runs the model on inputs in a slot of the segment where there is one, and
// else in the message.
func (c *Client) infer(ctx context.Context, req *InferRequest, s *segment) (_ *Answer, failure *Error) {
	const op = "ModelInfer"
	call := &call{InferRequest: req, buffers: &c.buffers, segment: s, slot: noSlot}
	answered := false
	defer func() { call.release(answered) }()
	err := c.conn.Invoke(ctx, kserve.GRPCInferenceService_ModelInfer_FullMethodName, call, call, c.inferOption)
	switch {
	case !call.sent:
	case call.slot == noSlot:
		c.sentMessages.Add(1)
	default:
		c.sentShared.Add(1)
	}
	if err != nil {
		failure = failureOf(ctx, op, req.Model, err)
		failure.Sent = call.sent
		answered = failure.isAnswer()
		return nil, failure
	}
	answered = true
	if call.wrong != nil {
		return nil, &Error{Op: op, Model: req.Model, Kind: BadOutput, Code: codes.OK, Sent: true, Detail: call.wrong.Error()}
	}
	return &call.answer, nil
}
