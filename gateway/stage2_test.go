package gateway

import (
	"context"
	"encoding/binary"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// Each way in which Triton 2.51 was seen to fail, in its own words: what the caller is
// told, that the details are in the log once, and whether it is taken for ill health
// when probes meet it too.
func TestEveryFailureOfTriton(t *testing.T) {
	const execute = "Failed to process the request(s) for model 'small_0_0', message: "
	for _, test := range []struct {
		name    string
		status  codes.Code
		message string
		code    Code
		ill     bool
	}{
		{"execute raised", codes.Internal, execute + inside, CodeForwardFailed, true},
		{"one response's error", codes.Internal, inside, CodeForwardFailed, true},
		{"fewer responses", codes.Internal, execute + "Number of InferenceResponse objects do not match " + inside, CodeForwardFailed, true},
		{"process died", codes.Internal, "Stub process 'small_0_0' is not healthy. " + inside, CodeForwardFailed, true},
		{"without a status", codes.Unknown, inside, CodeForwardFailed, true},
		{"wrong shape", codes.InvalidArgument, "unexpected shape for input 'tile' for model 'small' " + inside, CodeForwardFailed, true},
		{"wrong type", codes.InvalidArgument, "inference input 'tile' data-type is 'FP16', model 'small' expects 'FP32' " + inside, CodeForwardFailed, true},
		{"unknown model", codes.NotFound, "Request for unknown model: 'small' is not found " + inside, CodeBackendUnavailable, true},
		{"unloaded", codes.NotFound, "Request for unknown model: 'small' has no available versions " + inside, CodeBackendUnavailable, true},
		{"starting", codes.Unavailable, "Server not ready " + inside, CodeBackendUnavailable, true},
		{"stopping", codes.Unavailable, "Server is stopping, scheduler for model has stopped accepting new inference requests " + inside, CodeBackendUnavailable, true},
		{"queue full", codes.Unavailable, "Exceeds maximum queue size " + inside, CodeBusy, false},
		{"queue timeout", codes.Unavailable, "Request timeout expired " + inside, CodeQueueTimeout, false},
		{"cancelled", codes.Canceled, inside, CodeBackendUnavailable, false},
		{"late", codes.DeadlineExceeded, inside, CodeBackendTimeout, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := run(t, nil)
			fail := func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				return nil, status.Error(test.status, test.message)
			}
			r.answerCallers(fail)
			a := r.post(t, "/invocations", goodTile)
			wantFailure(t, a, http.StatusServiceUnavailable, test.code)
			lines := 0
			for line := range strings.Lines(r.log.String()) {
				if strings.Contains(line, a.RequestID) && strings.Contains(line, "secret") {
					lines++
				}
			}
			if lines != 1 {
				t.Errorf("%d lines of the log hold the details of the request, not 1:\n%s", lines, r.log)
			}
			r.answerAll(fail)
			if test.ill {
				r.await(t, http.StatusServiceUnavailable) // by the next probe
				return
			}
			for range 20 {
				r.post(t, "/invocations", goodTile)
			}
			time.Sleep(canaryEvery + 2*pulseEvery) // a probe comes when it has been quiet
			if a := do(t, r.request(t, http.MethodGet, "/ping", "")); a.status != http.StatusOK {
				t.Errorf("/ping says %d %s", a.status, a.raw)
			}
		})
	}
}

// A request that was never sent waits until its deadline for a Triton to come.
func TestNoTriton(t *testing.T) {
	const limit = 300 * time.Millisecond
	r := launch(t, testSpec, testConfig, func(c *Config) {
		c.TritonAddress, c.RequestTimeout = "127.0.0.1:1", limit // nothing listens there
	}, nil)
	began := time.Now()
	wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeBackendUnavailable, "small", "cannot be reached")
	if took := time.Since(began); took < limit {
		t.Errorf("it waited for %s", took)
	}
}

// Whatever a model answers that is not what its spec says is a failure of the shared
// stage, and never reaches the caller.
func TestOutputsThatAreNone(t *testing.T) {
	value := func(v float64) func(*kserve.ModelInferResponse) {
		return func(r *kserve.ModelInferResponse) {
			binary.LittleEndian.PutUint32(r.RawOutputContents[0][4:], math.Float32bits(float32(v)))
		}
	}
	prediction := func(transforms string) *strings.Replacer {
		return strings.NewReplacer("role: embedding", "role: prediction, transforms: ["+transforms+"]",
			"modes: [embedding]", "modes: [prediction]", `"mode":"embedding"`, `"mode":"prediction"`)
	}
	for name, test := range map[string]struct {
		kind   *strings.Replacer // of the spec and the request
		spoil  func(*kserve.ModelInferResponse)
		served string // the answer's beginning; a 503 when empty
	}{
		"NaN":                                  {spoil: value(math.NaN())},
		"infinity":                             {spoil: value(math.Inf(1))},
		"minus infinity":                       {spoil: value(math.Inf(-1))},
		"NaN in a prediction":                  {kind: prediction(""), spoil: value(math.NaN())},
		"NaN in a prediction that is rounded":  {kind: prediction("{name: round}"), spoil: value(math.NaN())},
		"a prediction that becomes infinite":   {kind: prediction("{name: expm1}"), spoil: value(100)},
		"NaN in a mask":                        {kind: prediction("{name: mask}"), spoil: value(math.NaN())},
		"NaN in a prediction with a rule":      {kind: prediction("{name: nonfinite_to_zero}"), spoil: value(math.NaN()), served: `{"output":[0,0,0]`},
		"infinity in a prediction with a rule": {kind: prediction("{name: expm1}, {name: nonfinite_to_zero}"), spoil: value(100), served: `{"output":[0,0,0]`},
		"another name":                         {spoil: func(r *kserve.ModelInferResponse) { r.Outputs[0].Name = "other" }},
		"another type":                         {spoil: func(r *kserve.ModelInferResponse) { r.Outputs[0].Datatype = "FP64" }},
		"another rank":                         {spoil: func(r *kserve.ModelInferResponse) { r.Outputs[0].Shape = []int64{3} }},
		"another width":                        {spoil: func(r *kserve.ModelInferResponse) { r.Outputs[0].Shape = []int64{1, 4} }},
		"another row":                          {spoil: func(r *kserve.ModelInferResponse) { r.Outputs[0].Shape = []int64{2, 3} }},
		"too few bytes":                        {spoil: func(r *kserve.ModelInferResponse) { r.RawOutputContents[0] = r.RawOutputContents[0][:8] }},
		"no output":                            {spoil: func(r *kserve.ModelInferResponse) { r.Outputs, r.RawOutputContents = nil, nil }},
		"another model":                        {spoil: func(r *kserve.ModelInferResponse) { r.ModelName = "other" }},
	} {
		t.Run(name, func(t *testing.T) {
			kind := test.kind
			if kind == nil {
				kind = strings.NewReplacer()
			}
			r := launch(t, kind.Replace(testSpec), testConfig, nil, nil)
			r.await(t, http.StatusOK)
			r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				answer := tritontest.Zeros(r.config, q)
				test.spoil(answer)
				return answer, nil
			})
			a := r.post(t, "/invocations", kind.Replace(goodTile))
			if test.served == "" {
				wantFailure(t, a, http.StatusServiceUnavailable, CodeForwardFailed)
			} else if a.status != http.StatusOK || !strings.HasPrefix(a.raw, test.served) {
				t.Errorf("%d %s", a.status, a.raw)
			}
		})
	}
}
