package tritonclient_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

var config = &kserve.ModelConfig{
	Name: "m", MaxBatchSize: 8,
	Input:  []*kserve.ModelInput{{Name: "x", DataType: kserve.DataType_TYPE_FP32, Dims: []int64{4}}},
	Output: []*kserve.ModelOutput{{Name: "y", DataType: kserve.DataType_TYPE_FP32, Dims: []int64{2}}, {Name: "z", DataType: kserve.DataType_TYPE_FP32, Dims: []int64{3}}},
}

func request() *tritonclient.InferRequest {
	return &tritonclient.InferRequest{
		Model:  "m",
		ID:     "r1",
		Inputs: []tritonclient.TensorSpec{{Name: "x", Datatype: tritonclient.Float32, Shape: []int64{1, 4}}},
		Write:  func(_ int, dst []byte) { copy(dst, "0123456789abcdef") },
		Outputs: []tritonclient.TensorSpec{
			{Name: "y", Datatype: tritonclient.Float32, Shape: []int64{1, 2}},
			{Name: "z", Datatype: tritonclient.Float32, Shape: []int64{1, 3}},
		},
	}
}

type inferFunc = func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error)

// connect serves one loaded model whose inferences infer answers.
func connect(t *testing.T, infer inferFunc) (*tritonclient.Client, context.Context) {
	t.Helper()
	server := &tritontest.Server{ID: "s", Models: map[string]*tritontest.Model{"m": {Config: config, Infer: infer}}}
	client, err := tritonclient.New(server.Start(t), tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	if err := client.LoadModel(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	return client, ctx
}

func kindOf(t *testing.T, err error) tritonclient.Kind {
	t.Helper()
	var e *tritonclient.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v (%T) is not an *Error", err, err)
	}
	return e.Kind
}

func TestInferSendsTheTensorsAndReturnsTheOutputsInTheOrderAsked(t *testing.T) {
	var got *kserve.ModelInferRequest
	client, ctx := connect(t, func(_ context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		got = r
		answer := tritontest.Zeros(config, r)
		answer.RawOutputContents[0] = []byte("yyyyyyyy")
		answer.RawOutputContents[1] = []byte("zzzzzzzzzzzz")
		slices.Reverse(answer.Outputs)
		slices.Reverse(answer.RawOutputContents)
		return answer, nil
	})
	answer, err := client.Infer(ctx, request())
	if err != nil {
		t.Fatal(err)
	}
	outputs := answer.Outputs
	if string(outputs[0].Data) != "yyyyyyyy" || string(outputs[1].Data) != "zzzzzzzzzzzz" {
		t.Errorf("outputs are %q and %q", outputs[0].Data, outputs[1].Data)
	}
	if string(got.RawInputContents[0]) != "0123456789abcdef" || got.Inputs[0].Name != "x" || got.Inputs[0].Datatype != "FP32" ||
		!slices.Equal(got.Inputs[0].Shape, []int64{1, 4}) || len(got.Outputs) != 2 || got.Outputs[1].Name != "z" || got.Id != "r1" {
		t.Errorf("the server got %v", got)
	}
}

// Triton passes on whatever a model returns: each way in which an answer can
// differ from what was asked must be found.
func TestInferRefusesAnAnswerThatIsNotWhatWasAskedFor(t *testing.T) {
	for name, spoil := range map[string]func(*kserve.ModelInferResponse){
		"another model": func(r *kserve.ModelInferResponse) { r.ModelName = "n" },
		"no outputs":    func(r *kserve.ModelInferResponse) { r.Outputs, r.RawOutputContents = nil, nil },
		"an output missing": func(r *kserve.ModelInferResponse) {
			r.Outputs, r.RawOutputContents = r.Outputs[:1], r.RawOutputContents[:1]
		},
		"contents missing":   func(r *kserve.ModelInferResponse) { r.RawOutputContents = r.RawOutputContents[:1] },
		"another name":       func(r *kserve.ModelInferResponse) { r.Outputs[1].Name = "w" },
		"one name twice":     func(r *kserve.ModelInferResponse) { r.Outputs[1].Name = "y" },
		"another datatype":   func(r *kserve.ModelInferResponse) { r.Outputs[0].Datatype = "FP16" },
		"another rank":       func(r *kserve.ModelInferResponse) { r.Outputs[0].Shape = []int64{2} },
		"another width":      func(r *kserve.ModelInferResponse) { r.Outputs[0].Shape = []int64{1, 3} },
		"another row count":  func(r *kserve.ModelInferResponse) { r.Outputs[0].Shape = []int64{2, 2} },
		"bytes missing":      func(r *kserve.ModelInferResponse) { r.RawOutputContents[1] = r.RawOutputContents[1][:11] },
		"bytes too many":     func(r *kserve.ModelInferResponse) { r.RawOutputContents[1] = append(r.RawOutputContents[1], 0) },
		"typed contents too": func(r *kserve.ModelInferResponse) { r.Outputs[0].Contents = &kserve.InferTensorContents{} },
	} {
		t.Run(name, func(t *testing.T) {
			client, ctx := connect(t, func(_ context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				answer := tritontest.Zeros(config, r)
				spoil(answer)
				return answer, nil
			})
			if _, err := client.Infer(ctx, request()); kindOf(t, err) != tritonclient.BadOutput {
				t.Errorf("got %v, want a bad output", err)
			}
		})
	}
}

// The messages are those of Triton 2.51.
func TestErrorsAreClassified(t *testing.T) {
	for _, c := range []struct {
		code    codes.Code
		message string
		want    tritonclient.Kind
	}{
		{codes.Internal, "Failed to process the request(s) for model 'm_0_0', message: RuntimeError: out of memory\n\nAt:\n  /models/m/1/model.py(30): execute\n", tritonclient.ExecuteFailed},
		{codes.Internal, "the text of one response's error", tritonclient.ExecuteFailed},
		{codes.Internal, "Failed to process the request(s) for model 'm_0_0', message: Number of InferenceResponse objects do not match", tritonclient.ExecuteFailed},
		{codes.Unknown, "anything", tritonclient.ExecuteFailed},
		{codes.Internal, "Stub process 'm_0_0' is not healthy.", tritonclient.BackendDead},
		{codes.InvalidArgument, "unexpected shape for input 'x' for model 'm'", tritonclient.Rejected},
		{codes.NotFound, "Request for unknown model: 'm' is not found", tritonclient.NotFound},
		{codes.NotFound, "Request for unknown model: 'm' has no available versions", tritonclient.NotFound},
		{codes.Unavailable, "Exceeds maximum queue size", tritonclient.QueueFull},
		{codes.Unavailable, "Request timeout expired", tritonclient.QueueTimeout},
		{codes.Unavailable, "Server not ready", tritonclient.Unavailable},
		{codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled", tritonclient.NoModelControl},
		{codes.Unavailable, "Server is stopping, scheduler for model has stopped accepting new inference requests", tritonclient.Unavailable},
		{codes.Canceled, "cancelled", tritonclient.Canceled},
		{codes.DeadlineExceeded, "too late", tritonclient.DeadlineExceeded},
	} {
		t.Run(c.message, func(t *testing.T) {
			client, ctx := connect(t, func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				return nil, status.Error(c.code, c.message)
			})
			_, err := client.Infer(ctx, request())
			if got := kindOf(t, err); got != c.want {
				t.Errorf("%v is %v, want %v", err, got, c.want)
			}
			var sent *tritonclient.Error
			if !errors.As(err, &sent) || !sent.Sent {
				t.Errorf("%v came from the server, yet it was never sent", err)
			}
			if !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), `"m"`) {
				t.Errorf("%q does not hold Triton's message and the model", err)
			}
		})
	}
}

func TestTheCallersOwnDeadlineAndCancellation(t *testing.T) {
	block := func(ctx context.Context, _ *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	client, ctx := connect(t, block)
	late, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := client.Infer(late, request()); kindOf(t, err) != tritonclient.DeadlineExceeded {
		t.Errorf("got %v, want the deadline", err)
	}
	gone, cancel := context.WithCancel(ctx)
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := client.Infer(gone, request()); kindOf(t, err) != tritonclient.Canceled {
		t.Errorf("got %v, want the cancellation", err)
	}
}

// A Triton that was started again may listen elsewhere.
func TestNoServerIsUnavailableAndALaterOneIsFound(t *testing.T) {
	var address atomic.Value
	address.Store("127.0.0.1:1") // nothing listens there
	client, err := tritonclient.New("triton", tritonclient.Options{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address.Load().(string))
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.ServerLive(t.Context()); kindOf(t, err) != tritonclient.Unavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	var unsent *tritonclient.Error
	if _, err := client.Infer(t.Context(), request()); !errors.As(err, &unsent) || unsent.Kind != tritonclient.Unavailable || unsent.Sent {
		t.Fatalf("got %#v, want one that was never sent", err)
	}
	server := &tritontest.Server{ID: "moved"}
	address.Store(server.Start(t))
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		metadata, err := client.ServerMetadata(t.Context())
		if err == nil && metadata.Name == "moved" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not found again: %v, %v", metadata, err)
		}
	}
}

func TestReadModelConfig(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "config.pbtxt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c, err := tritonclient.ReadModelConfig(write("name: \"m\"\nmax_batch_size: 8\n# a comment\ninput [ { name: \"x\", data_type: TYPE_FP16, dims: [ 3, 2 ] } ]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if in := c.Input[0]; in.Name != "x" || tritonclient.DatatypeOf(in.DataType) != tritonclient.Float16 || !slices.Equal(in.Dims, []int64{3, 2}) {
		t.Errorf("input is %v", in)
	}
	if _, err := tritonclient.ReadModelConfig(write("name: \"m\"\nmax_batch: 8\n")); err == nil ||
		!strings.Contains(err.Error(), "config.pbtxt") || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "max_batch") {
		t.Errorf("got %v, want the file, the line and the field", err)
	}
}
