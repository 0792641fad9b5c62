package tritonclient

import (
	"context"
	"fmt"
	"slices"

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

// TensorSpec is what is expected of an output.
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

// InferRequest is one inference. The inputs' data may be used again as soon as
// Infer has returned, whatever it returned: the message is marshalled into
// memory of gRPC's own before it enters the write queue.
type InferRequest struct {
	Model   string
	ID      string // shows up in Triton's log
	Inputs  []Tensor
	Outputs []TensorSpec // what is asked for and must come back exactly so
}

// Infer runs the model and returns its outputs in the order asked for. Their
// data belongs to the caller. The context should have a deadline: a model can
// fail to answer at all.
func (c *Client) Infer(ctx context.Context, req *InferRequest) ([]Tensor, error) {
	const op = "ModelInfer"
	message := &kserve.ModelInferRequest{
		ModelName:        req.Model,
		Id:               req.ID,
		Inputs:           make([]*kserve.ModelInferRequest_InferInputTensor, len(req.Inputs)),
		Outputs:          make([]*kserve.ModelInferRequest_InferRequestedOutputTensor, len(req.Outputs)),
		RawInputContents: make([][]byte, len(req.Inputs)),
	}
	for i, in := range req.Inputs {
		message.Inputs[i] = &kserve.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: string(in.Datatype), Shape: in.Shape}
		message.RawInputContents[i] = in.Data
	}
	for i, out := range req.Outputs {
		message.Outputs[i] = &kserve.ModelInferRequest_InferRequestedOutputTensor{Name: out.Name}
	}
	ctx = watchSending(ctx)
	answer, err := c.rpc.ModelInfer(ctx, message)
	if err != nil {
		return nil, wrap(ctx, op, req.Model, err)
	}
	outputs, err := check(answer, req)
	if err != nil {
		return nil, &Error{Op: op, Model: req.Model, Kind: BadOutput, Code: codes.OK, Sent: true, Detail: err.Error()}
	}
	return outputs, nil
}

// check holds every property of an answer against what was asked for.
func check(answer *kserve.ModelInferResponse, req *InferRequest) ([]Tensor, error) {
	if answer.ModelName != req.Model {
		return nil, fmt.Errorf("the answer is of model %q", answer.ModelName)
	}
	if len(answer.Outputs) != len(req.Outputs) || len(answer.RawOutputContents) != len(answer.Outputs) {
		return nil, fmt.Errorf("%d outputs with %d contents came back, %d were asked for",
			len(answer.Outputs), len(answer.RawOutputContents), len(req.Outputs))
	}
	outputs := make([]Tensor, len(req.Outputs))
	for i := range req.Outputs {
		want := &req.Outputs[i]
		at := slices.IndexFunc(answer.Outputs, func(o *kserve.ModelInferResponse_InferOutputTensor) bool { return o.GetName() == want.Name })
		if at < 0 {
			return nil, fmt.Errorf("output %q is missing", want.Name)
		}
		got, data := answer.Outputs[at], answer.RawOutputContents[at]
		switch {
		case Datatype(got.Datatype) != want.Datatype:
			return nil, fmt.Errorf("output %q has datatype %q, not %q", want.Name, got.Datatype, want.Datatype)
		case !slices.Equal(got.Shape, want.Shape):
			return nil, fmt.Errorf("output %q has shape %v, not %v", want.Name, got.Shape, want.Shape)
		case got.Contents != nil:
			return nil, fmt.Errorf("output %q has typed contents, not raw ones", want.Name)
		case len(data) != want.bytes():
			return nil, fmt.Errorf("output %q has %d bytes, not the %d of its shape", want.Name, len(data), want.bytes())
		}
		outputs[i] = Tensor{want.Name, want.Datatype, want.Shape, data}
	}
	return outputs, nil
}
