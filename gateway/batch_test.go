package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/prep"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

func batchOf(mode string, tiles ...string) string {
	return fmt.Sprintf(`{"mode":%q,"requests":[%s]}`, mode, strings.Join(tiles, ","))
}

// responses are what a call of many tiles was answered with.
func responses(t *testing.T, a answered) (all []json.RawMessage) {
	t.Helper()
	var answer struct{ Responses []json.RawMessage }
	if err := json.Unmarshal([]byte(a.raw), &answer); err != nil || a.status != http.StatusOK {
		t.Fatalf("%d %s: %v", a.status, a.raw, err)
	}
	return answer.Responses
}

// Each tile of a call is answered in its place as it would be alone, and what is
// wrong with one is its own.
func TestBatch(t *testing.T) {
	r := runPair(t, nil)
	second := replaced(`"patch_idx":7`, `"patch_idx":8`)
	tiles := []string{goodTile, replaced("iVBO", "AAAA"), second, replaced(`"x":1`, `"x":1.5`), goodTile, "7"}
	for i := range tiles {
		tiles[i] = strings.Replace(tiles[i], `,"mode":"embedding"`, "", 1)
	}
	for mode, path := range map[string]string{"prediction": "/api/predict/small", "embedding": "/api/embed/small", "prediction_with_embedding": "/api/predict_with_embedding/small"} {
		all := responses(t, r.post(t, "/api/batch/small", batchOf(mode, tiles...)))
		if len(all) != len(tiles) {
			t.Fatalf("%d responses to %d tiles", len(all), len(tiles))
		}
		for i, tile := range tiles[:5] {
			alone := r.post(t, path, tile)
			if alone.status == http.StatusOK {
				if string(all[i]) != alone.raw {
					t.Errorf("%s, tile %d: %s, alone %s", mode, i, all[i], alone.raw)
				}
				continue
			}
			want, _ := json.Marshal(map[string]any{"error": map[string]any{"status": alone.status, "code": alone.Code, "detail": alone.Detail}})
			var sorted map[string]any
			if err := json.Unmarshal(all[i], &sorted); err != nil {
				t.Fatal(err)
			}
			if got, _ := json.Marshal(sorted); string(got) != string(want) {
				t.Errorf("%s, tile %d: %s, want %s", mode, i, got, want)
			}
		}
		if want := `{"error":{"status":400,"code":"invalid_request","detail":"must be a tile request, an object, not a number"}}`; string(all[5]) != want {
			t.Errorf("what is no tile: %s, want %s", all[5], want)
		}
	}
	if all := responses(t, r.post(t, "/api/batch/small", `{"requests":[]}`)); len(all) != 0 {
		t.Errorf("no tiles: %s", all)
	}
	if n := strings.Count(r.log.String(), `"msg":"tile failed"`); n != 9 {
		t.Errorf("%d failed tiles are in the log, not 9", n)
	}
}

// A tile may say of which model and mode it is, but not other ones than its call.
func TestBatchTileOfAnotherCall(t *testing.T) {
	r := run(t, nil)
	alone := r.post(t, "/api/embed/small", goodTile)
	all := responses(t, r.post(t, "/api/batch/tiny", batchOf("embedding", goodTile, replaced(`"small"`, `"tiny"`), replaced(`"small"`, "null"),
		replaced(`"small"`, `"nope"`), replaced(`"small"`, "7"), replaced(`"embedding"`, `"prediction"`), replaced(`"embedding"`, "7"))))
	for i, want := range []string{alone.raw, alone.raw, alone.raw,
		`model_name: \"nope\", and the call is for small`, "model_name: must be a string",
		`mode: \"prediction\", and the call is for embedding`, "mode: must be a string",
	} {
		if got := string(all[i]); got != want && (want == alone.raw || !strings.Contains(got, want) || !strings.Contains(got, `"status":400,"code":"invalid_request"`) || !strings.Contains(got, "patch_idx 7")) {
			t.Errorf("tile %d: %s, want %s", i, got, want)
		}
	}
	if a := runPair(t, nil).post(t, "/api/batch/small", `{"mode":null,"requests":[`+replaced(`"embedding"`, `"prediction"`)+`]}`); !strings.Contains(string(responses(t, a)[0]), `"output":[`) {
		t.Errorf("a mode of null is none: %s", a.raw)
	}
}

func TestBatchErrorsOfTheCall(t *testing.T) {
	r := run(t, func(c *Config) { c.MaxBatchRequests = 2 })
	for _, test := range []struct {
		path, body string
		header     []string
		status     int
		code       Code
		named      []string
	}{
		{path: "nope", body: batchOf("embedding", goodTile), status: 404, code: CodeUnknownModel, named: []string{"nope", "small"}},
		{body: `{"requests":[}`, status: 400, code: "invalid_request", named: []string{"JSON"}},
		{body: batchOf("nope", goodTile), status: 400, code: "unsupported_mode", named: []string{"nope", "embedding"}},
		{body: batchOf("metadata", goodTile), status: 400, code: "unsupported_mode", named: []string{"metadata"}},
		{body: `{"requests":[` + goodTile + `]}`, status: 400, code: "unsupported_mode", named: []string{"none was sent, which means prediction"}},
		{body: batchOf("embedding", goodTile, goodTile, goodTile), status: 400, code: "invalid_request", named: []string{"requests", "3", "2"}},
		{body: batchOf("embedding", goodTile), header: []string{"Content-Type", "image/png"}, status: 415, code: CodeUnsupportedMediaType},
		{body: batchOf("embedding", goodTile), header: []string{"Accept", mediaFloats}, status: 406, code: CodeNotAcceptable},
	} {
		if test.path == "" {
			test.path = "tiny" // an alias
		}
		wantFailure(t, r.post(t, "/api/batch/"+test.path, test.body, test.header...), test.status, test.code, test.named...)
	}
}

// What fails after stage 1 fails the whole call, be it one tile's inference alone.
func TestBatchFailsAsAWhole(t *testing.T) {
	r := run(t, nil)
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		if strings.HasSuffix(q.Id, "-1") {
			return nil, status.Error(codes.Internal, inside)
		}
		return tritontest.Zeros(r.config, q), nil
	})
	wantFailure(t, r.post(t, "/api/batch/small", batchOf("embedding", goodTile, goodTile, "{}")), http.StatusServiceUnavailable, CodeForwardFailed)
	r.await(t, http.StatusOK)
	if all := responses(t, r.post(t, "/api/batch/small", batchOf("embedding", goodTile))); len(all) != 1 {
		t.Errorf("%s", all)
	}
	broken := *r.models.list[0]
	broken.preparer = nil // whoever uses it panics
	r.models.byName["broken"] = &broken
	wantFailure(t, r.post(t, "/api/batch/broken", batchOf("embedding", replaced(`,"model_name":"small"`, ""))), http.StatusInternalServerError, CodeInternal)
	if n := testutil.ToFloat64(r.metrics.panics.WithLabelValues("gateway")); n != 1 {
		t.Errorf("%v panics counted", n)
	}
	if n := r.admission.inFlight() + len(r.admission.slots); n != 0 {
		t.Errorf("%d places are not given back", n)
	}
}

// Every tile of a call counts as a request in flight.
func TestBatchIsAdmittedTileByTile(t *testing.T) {
	r := run(t, func(c *Config) { c.MaxInFlight = 4 })
	var waiting atomic.Int64
	leave := make(chan struct{})
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		waiting.Add(1)
		<-leave
		return tritontest.Zeros(r.config, q), nil
	})
	first := make(chan answered, 1)
	go func() { first <- r.post(t, "/api/batch/small", batchOf("embedding", goodTile, goodTile, goodTile)) }()
	for waiting.Load() < 3 {
		time.Sleep(time.Millisecond)
	}
	if n := r.admission.inFlight(); n != 3 {
		t.Errorf("%d in flight, not 3", n)
	}
	wantFailure(t, r.post(t, "/api/batch/small", batchOf("embedding", goodTile, goodTile)), http.StatusServiceUnavailable, CodeBusy)
	wantFailure(t, r.post(t, "/api/batch/small", batchOf("embedding", slices.Repeat([]string{goodTile}, 5)...)), http.StatusBadRequest, "invalid_request", "4")
	if n := r.admission.inFlight(); n != 3 {
		t.Errorf("%d in flight after a refusal, not 3", n)
	}
	close(leave)
	if a := <-first; len(responses(t, a)) != 3 {
		t.Errorf("%s", a.raw)
	}
	if a := r.post(t, "/api/batch/small", batchOf("embedding", slices.Repeat([]string{goodTile}, 4)...)); len(responses(t, a)) != 4 {
		t.Errorf("%s", a.raw)
	}
}

// An answer that could be too large is refused before a tile is run.
func TestBatchAnswerIsBounded(t *testing.T) {
	wide := strings.NewReplacer("shape: [3]", "shape: [3000]", "dims: [ 3 ]", "dims: [ 3000 ]")
	r := launch(t, wide.Replace(testSpec), wide.Replace(testConfig), func(c *Config) { c.MaxBodyBytes = 150_000 }, nil)
	r.await(t, http.StatusOK)
	var ran atomic.Int64
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		ran.Add(1)
		return tritontest.Zeros(r.config, q), nil
	})
	wantFailure(t, r.post(t, "/api/batch/small", batchOf("embedding", goodTile, goodTile, goodTile)), http.StatusBadRequest, "invalid_request", "requests", "150000", "no more than the first 2")
	long := replaced(`"S1"`, `"`+strings.Repeat("S", 12_000)+`"`)
	wantFailure(t, r.post(t, "/api/batch/small", batchOf("embedding", long, goodTile)), http.StatusBadRequest, "invalid_request", "no more than the first 1")
	if n := ran.Load(); n != 0 {
		t.Errorf("%d tiles were run", n)
	}
	if all := responses(t, r.post(t, "/api/batch/small", batchOf("embedding", goodTile, goodTile))); len(all) != 2 || ran.Load() != 2 {
		t.Errorf("%d responses", len(all))
	}
}

func TestForward(t *testing.T) {
	r := runPair(t, func(c *Config) { c.MaxBatchRequests = 3 })
	parsed, err := prep.ParseRequest([]byte(replaced(`,"mode":"embedding"`, "")))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := prep.RawRequest([]byte(rawTile(t)), func(func(string, string) bool) {})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := prep.RawRequest([]byte("no image"), func(func(string, string) bool) {})
	if err != nil {
		t.Fatal(err)
	}
	results, err := r.Forward(t.Context(), "small", prep.PredictionWithEmbedding, []*prep.Request{parsed, bad, raw})
	if err != nil || len(results) != 3 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for i, result := range results {
		if i == 1 {
			if refused, ok := errors.AsType[*prep.Error](result.Err); !ok || refused.Code != prep.InvalidImage || result.Output != nil {
				t.Errorf("the bad tile: %+v", result)
			}
			continue
		}
		if result.Err != nil || !slices.Equal(result.Output, []float32{0, 2}) || !slices.Equal(result.Embedding, []float32{0.5, 1.5, 2.5}) {
			t.Errorf("tile %d: %+v", i, result)
		}
	}
	if results, err := r.Forward(t.Context(), "small", prep.Embedding, []*prep.Request{raw}); err != nil || !slices.Equal(results[0].Output, []float32{0.5, 1.5, 2.5}) || results[0].Embedding != nil {
		t.Errorf("%v, %v", results, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	failing := func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Internal, inside)
	}
	for _, test := range []struct {
		name  string
		ctx   context.Context
		model string
		mode  prep.Mode
		tiles int
		infer func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error)

		status int
		code   Code
		named  string
		cause  error // that can be found in it
	}{
		{name: "an unknown model", model: "nope", mode: prep.Embedding, status: 404, code: CodeUnknownModel, named: "small"},
		{name: "a mode it lacks", model: "small", mode: "nope", status: 400, code: Code(prep.UnsupportedMode), named: "embedding"},
		{name: "too many", model: "small", mode: prep.Embedding, tiles: 4, status: 400, code: Code(prep.InvalidRequest), named: "4 tiles"},
		{name: "a context's end", ctx: ended, model: "small", mode: prep.Embedding, tiles: 1, status: 499, code: CodeCallerGone, named: "gone", cause: context.Canceled},
		{name: "a batch that fails", model: "small", mode: prep.Embedding, tiles: 1, infer: failing, status: 503, code: CodeForwardFailed, named: "send it again"},
	} {
		if test.ctx == nil {
			test.ctx = t.Context()
		}
		if test.infer != nil {
			r.answerCallers(test.infer)
		}
		results, err := r.Forward(test.ctx, test.model, test.mode, slices.Repeat([]*prep.Request{raw}, test.tiles))
		failed, ok := errors.AsType[*Error](err)
		if !ok || results != nil || failed.Code != test.code || (failed.RetryAfter == time.Second) != (test.status == 503) {
			t.Errorf("%s: %v, %+v", test.name, results, err)
			continue
		}
		if !strings.Contains(err.Error(), test.named) || strings.Contains(err.Error(), "secret") || test.cause != nil && !errors.Is(err, test.cause) {
			t.Errorf("%s: %v does not say %q, or tells what is inside", test.name, err, test.named)
		}
		model := ""
		if test.model == "small" {
			model = "small"
		}
		if n := r.counted(t, "histogate_requests_total", "route", "Forward", "model", model, "status", strconv.Itoa(test.status), "code", string(test.code)); n != 1 {
			t.Errorf("%s: counted %v times", test.name, n)
		}
	}
	if n := r.counted(t, "histogate_requests_total", "route", "Forward", "model", "small", "status", "200", "code", ""); n != 2 {
		t.Errorf("%v calls counted that went well", n)
	}
	if n := testutil.ToFloat64(r.metrics.tiles.WithLabelValues("small", string(prep.InvalidImage))); n != 1 {
		t.Errorf("%v tiles counted that failed alone", n)
	}
	if n := r.admission.inFlight(); n != 0 {
		t.Errorf("%d places are not given back", n)
	}
}
