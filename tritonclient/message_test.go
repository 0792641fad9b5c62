package tritonclient

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"histogate/tritonclient/kserve"
)

// randomRequest has any number of tensors of any type and shape, empty ones too.
func randomRequest(r *rand.Rand) *InferRequest {
	text := func() string { return []string{"", "m", "tile", "a/b c", "é"}[r.IntN(5)] }
	types := []Datatype{Bool, Uint8, Float16, Float32, Int64}
	specs := func() (list []TensorSpec) {
		for i := range r.IntN(4) {
			s := TensorSpec{Name: fmt.Sprint(text(), i), Datatype: types[r.IntN(len(types))]}
			for range r.IntN(5) {
				s.Shape = append(s.Shape, int64(r.IntN(12)))
			}
			list = append(list, s)
		}
		return list
	}
	return &InferRequest{Model: text(), ID: text(), Inputs: specs(), Outputs: specs()}
}

// What is written by hand is what generated code reads, be the inputs in the message
// or in shared memory.
func TestRequestIsWhatGeneratedCodeReads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	segment := testSegment(t, inMemory(t), 1<<20, 3)
	for range 2000 {
		request := randomRequest(r)
		data := make([][]byte, len(request.Inputs))
		want := &kserve.ModelInferRequest{ModelName: request.Model, Id: request.ID}
		for i, in := range request.Inputs {
			data[i] = make([]byte, in.bytes())
			for k := range data[i] {
				data[i][k] = byte(r.Uint32())
			}
			want.Inputs = append(want.Inputs, &kserve.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: string(in.Datatype), Shape: in.Shape})
			want.RawInputContents = append(want.RawInputContents, data[i])
		}
		for _, out := range request.Outputs {
			want.Outputs = append(want.Outputs, &kserve.ModelInferRequest_InferRequestedOutputTensor{Name: out.Name})
		}
		request.Write = func(i int, dst []byte) {
			if len(dst) != len(data[i]) {
				t.Fatalf("input %d of %d bytes is written to %d", i, len(data[i]), len(dst))
			}
			copy(dst, data[i])
		}
		call := &call{InferRequest: request, buffers: new(Buffers), slot: noSlot}
		if r.IntN(2) == 0 {
			call.segment = segment
			want.RawInputContents = nil
		}
		message := call.marshal()
		text := make([]byte, message.Len())
		message.CopyTo(text)
		got := new(kserve.ModelInferRequest)
		if err := proto.Unmarshal(text, got); err != nil {
			t.Fatal(err)
		}
		if call.segment != nil {
			for i, in := range got.Inputs {
				p := in.Parameters
				size, offset := p["shared_memory_byte_size"].GetInt64Param(), p["shared_memory_offset"].GetInt64Param()
				if len(p) != 3 || p["shared_memory_region"].GetStringParam() != segment.name || !bytes.Equal(segment.bytes[offset:][:size], data[i]) {
					t.Fatalf("input %d is not where its parameters say: %v", i, p)
				}
				in.Parameters = nil
			}
		}
		if !proto.Equal(got, want) {
			t.Fatalf("generated code reads %v, want %v", got, want)
		}
		message.Free()
		call.release(true)
	}
}

// reference makes the outputs of an answer with generated code.
func reference(request *InferRequest, message []byte) ([]Tensor, error) {
	answer := new(kserve.ModelInferResponse)
	if err := proto.Unmarshal(message, answer); err != nil {
		return nil, err
	}
	if answer.ModelName != request.Model || len(answer.Outputs) != len(request.Outputs) || len(answer.RawOutputContents) != len(answer.Outputs) {
		return nil, errors.New("another answer")
	}
	var tensors []Tensor
	for _, want := range request.Outputs {
		at := slices.IndexFunc(answer.Outputs, func(o *kserve.ModelInferResponse_InferOutputTensor) bool { return o.GetName() == want.Name })
		if at < 0 {
			return nil, errors.New("an output is missing")
		}
		got, data := answer.Outputs[at], answer.RawOutputContents[at]
		if got.Datatype != string(want.Datatype) || !slices.Equal(got.Shape, want.Shape) || got.Contents != nil || len(data) != want.bytes() {
			return nil, errors.New("another output")
		}
		tensors = append(tensors, Tensor{want.Name, want.Datatype, want.Shape, data})
	}
	return tensors, nil
}

var fuzzed = &InferRequest{Model: "m", Outputs: []TensorSpec{
	{Name: "y", Datatype: Float32, Shape: []int64{1, 2}}, {Name: "z", Datatype: Uint8, Shape: []int64{3}},
}}

// goodAnswer is an answer to the request with all that an answer may have.
func goodAnswer() *kserve.ModelInferResponse {
	text := &kserve.InferParameter{ParameterChoice: &kserve.InferParameter_StringParam{StringParam: "é"}}
	return &kserve.ModelInferResponse{
		ModelName: "m", ModelVersion: "1", Id: "r", Parameters: map[string]*kserve.InferParameter{"p": text},
		Outputs: []*kserve.ModelInferResponse_InferOutputTensor{
			{Name: "z", Datatype: "UINT8", Shape: []int64{3}},
			{Name: "y", Datatype: "FP32", Shape: []int64{1, 2}, Parameters: map[string]*kserve.InferParameter{"q": text}},
		},
		RawOutputContents: [][]byte{[]byte("zzz"), []byte("yyyyyyyy")},
	}
}

// FuzzAnswer holds what is read by hand against generated code: the same answers are
// taken, with the same outputs, however the message is cut into buffers.
func FuzzAnswer(f *testing.F) {
	good, err := proto.Marshal(goodAnswer())
	if err != nil {
		f.Fatal(err)
	}
	typed := goodAnswer()
	typed.Outputs[0].Contents = &kserve.InferTensorContents{BytesContents: [][]byte{{1}}}
	other, err := proto.Marshal(typed)
	if err != nil {
		f.Fatal(err)
	}
	unknown := protowire.AppendBytes(protowire.AppendTag(slices.Clone(good), 99, protowire.BytesType), []byte("?"))
	unknown = protowire.AppendFixed64(protowire.AppendTag(unknown, 1, protowire.Fixed64Type), 7)
	number := append(protowire.AppendVarint(slices.Clone(good), (uint64(protowire.MaxValidNumber)+1)<<3), 0)
	group := protowire.AppendTag(protowire.AppendTag(slices.Clone(good), 9, protowire.StartGroupType), 9, protowire.EndGroupType)
	for _, seed := range [][]byte{good, other, unknown, number, group, append(slices.Clone(good), good...), good[:len(good)-1], nil, {0x0a}, {0x0a, 0x02, 0xff, 0xfe}, {0x22, 0x01, 0x0a}} {
		f.Add(seed, uint16(7))
	}
	f.Fuzz(func(t *testing.T, message []byte, cut uint16) {
		want, wantErr := reference(fuzzed, message)
		at := int(cut) % (len(message) + 1)
		call := &call{InferRequest: fuzzed, buffers: new(Buffers)}
		call.unmarshal(mem.BufferSlice{mem.SliceBuffer(message[:at]), mem.SliceBuffer(message[at:])})
		if (call.wrong == nil) != (wantErr == nil) {
			t.Fatalf("%x: %v, by generated code %v", message, call.wrong, wantErr)
		}
		if wantErr == nil && !slices.EqualFunc(call.answer.Outputs, want, func(a, b Tensor) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }) {
			t.Fatalf("%x: %v, by generated code %v", message, call.answer.Outputs, want)
		}
	})
}

// Damaged, joined and reordered answers, many more than a fuzzer's seeds.
func TestAnswerIsWhatGeneratedCodeReads(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	good, err := proto.Marshal(goodAnswer())
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for range 200_000 {
		message := slices.Clone(good)
		for range r.IntN(4) {
			switch at := r.IntN(len(message)); r.IntN(4) {
			case 0:
				message[at] = byte(r.Uint32())
			case 1:
				message[at] ^= 1 << r.IntN(8)
			case 2:
				message = append(message[:at:at], message[at+1:]...)
			case 3:
				message = append(message[:at:at], append([]byte{message[at]}, message[at:]...)...)
			}
			if len(message) == 0 {
				break
			}
		}
		want, wantErr := reference(fuzzed, message)
		got, err := (&call{InferRequest: fuzzed}).read(message)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%x: %v, by generated code %v", message, err, wantErr)
		}
		if err == nil {
			taken++
		}
		if wantErr == nil && !slices.EqualFunc(got, want, func(a, b Tensor) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }) {
			t.Fatalf("%x: %v, by generated code %v", message, got, want)
		}
	}
	if taken < 10_000 {
		t.Errorf("only %d of the answers were sound", taken)
	}
}

// A buffer has room for its size and little more, and comes from the pool again.
func TestBuffers(t *testing.T) {
	sizes := map[int]int{} // by class
	for size := 1; size < 1<<22; size += 1 + size/97 {
		number, most := class(size)
		if most < size || most > size+size/8+1 {
			t.Errorf("%d bytes have room for %d", size, most)
		}
		if other, ok := sizes[number]; ok && other != most {
			t.Errorf("class %d is of %d bytes and of %d", number, most, other)
		}
		sizes[number] = most
		pool := new(Buffers)
		buffer := pool.Get(size)
		if len(*buffer) != size || cap(*buffer) != most {
			t.Errorf("a buffer of %d bytes with room for %d, want %d and %d", len(*buffer), cap(*buffer), size, most)
		}
		*buffer = (*buffer)[:size/2]
		pool.Put(buffer)
		if again := pool.Get(most); len(*again) != most {
			t.Errorf("a buffer of %d bytes, want %d", len(*again), most)
		}
	}
}
