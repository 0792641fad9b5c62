package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"testing"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// A model with two outputs, of which one has two dimensions, that tells callers
// 0.5, 1.5, ... in each.
const (
	pairSpec = `
name: small
task: test
tile: {width: 8, height: 8, microns_per_pixel: 0.5, mean: [0, 0, 0], std: [1, 1, 1]}
inputs: [{name: tile, source: tile, dtype: float32, shape: [3, 8, 8]}]
outputs:
- {name: scores, role: prediction, dtype: float32, shape: [1, 2], transforms: [{name: round}]}
- {name: embedding, role: embedding, dtype: float32, shape: [3]}
modes: [embedding, prediction, prediction_with_embedding]
batching: {max_batch_size: 4, max_queue_delay_ms: 1.5}
`
	pairConfig = `
name: "small"
backend: "histogate"
max_batch_size: 4
input [ { name: "tile", data_type: TYPE_FP32, dims: [ 3, 8, 8 ] } ]
output [ { name: "scores", data_type: TYPE_FP32, dims: [ 1, 2 ] }, { name: "embedding", data_type: TYPE_FP32, dims: [ 3 ] } ]
dynamic_batching { max_queue_delay_microseconds: 1500 }
`
)

func runPair(t *testing.T, change func(*Config)) *running {
	t.Helper()
	r := launch(t, pairSpec, pairConfig, change, nil)
	r.await(t, http.StatusOK)
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		answer := tritontest.Zeros(r.config, q)
		for _, raw := range answer.RawOutputContents {
			for i := 0; i < len(raw); i += 4 {
				binary.LittleEndian.PutUint32(raw[i:], math.Float32bits(float32(i/4)+0.5))
			}
		}
		return answer, nil
	})
	return r
}

// rawTile is the image of goodTile.
func rawTile(t *testing.T) string {
	t.Helper()
	var tile struct {
		ImageData []byte `json:"image_data"`
	}
	if err := json.Unmarshal([]byte(goodTile), &tile); err != nil {
		t.Fatal(err)
	}
	return string(tile.ImageData)
}

// What an image by itself is answered with, by where its model, its mode and its
// fields are named.
func TestRawImages(t *testing.T) {
	r := runPair(t, func(c *Config) { c.DefaultModel = "small" })
	const (
		scores    = `[0,2]` // 0.5 and 1.5, rounded to even
		embedding = `[0.5,1.5,2.5]`
		echo      = `,"slide_name":"S 1","x":7,"y":2,"width":3,"height":4,"tissue_ratio":null,"patch_idx":5,"resolution":0.50`
		query     = "?slide_name=S+1&x=7.0&y=2&width=3&height=4&patch_idx=5&resolution=0.50"
	)
	for _, test := range []struct {
		path   string
		header []string
		want   string
	}{
		{"/invocations", nil, `[` + embedding + `]`}, // the model's first mode
		{"/invocations?mode=prediction", nil, `[` + scores + `]`},
		{"/invocations", []string{"X-Mode", "prediction_with_embedding"}, `[` + scores + `,` + embedding + `]`},
		{"/invocations?model_name=small", []string{"X-Model-Name", "small"}, `[` + embedding + `]`},
		{"/invocations" + query, nil, `{"output":` + embedding + echo + `,"embedding":null}`},
		{"/api/embed/small?model_name=small", []string{"X-Mode", "embedding"}, `[` + embedding + `]`},
		{"/api/predict/small" + query, nil, `{"output":` + scores + echo + `,"embedding":null}`},
		{"/api/predict_with_embedding/small" + query, nil, `{"output":` + scores + echo + `,"embedding":` + embedding + `}`},
	} {
		a := r.post(t, test.path, rawTile(t), append(test.header, "Content-Type", "Image/PNG; name=a")...)
		if a.status != http.StatusOK || a.raw != test.want || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v: %d %s, want %s", test.path, test.header, a.status, a.raw, test.want)
		}
	}
	if a := r.post(t, "/invocations?mode=metadata", "", "Content-Type", "image/*"); a.status != http.StatusOK || !strings.Contains(a.raw, `"model_name":"small"`) {
		t.Errorf("metadata: %d %s", a.status, a.raw)
	}
}

func TestRawImageErrors(t *testing.T) {
	r := runPair(t, nil)
	for _, test := range []struct {
		path, body string
		code       Code
		status     int
		named      []string
	}{
		{"/invocations", rawTile(t), "invalid_request", 400, []string{"model_name", "small"}},
		{"/invocations?model_name=nope", rawTile(t), CodeUnknownModel, 404, []string{"nope", "small"}},
		{"/invocations?model_name=small&mode=nope", rawTile(t), "unsupported_mode", 400, []string{"nope", "embedding"}},
		{"/api/embed/small?x=1.5&y=2&width=3&height=4&slide_name=S1&patch_idx=7", rawTile(t), "invalid_request", 400, []string{"x:", "1.5", `"S1"`, "patch_idx 7"}},
		{"/api/embed/small?image_data=1", rawTile(t), "invalid_request", 400, []string{"image_data"}},
		{"/api/embed/small?slide_name=%ff", rawTile(t), "invalid_request", 400, []string{"slide_name", "UTF-8"}},
		{"/api/embed/small?slide_name=S1", rawTile(t), "invalid_request", 400, []string{"x, y, width, height, patch_idx: missing", "none", "S1"}},
		{"/api/embed/small?resolution=1", rawTile(t), "invalid_request", 400, []string{"slide_name, x, y, width, height, patch_idx: missing"}},
		{"/api/embed/small", "", "invalid_image", 400, []string{"body: empty"}},
		{"/api/embed/small?x=1&y=2&width=3&height=4&slide_name=S1&patch_idx=7", goodTile, "invalid_image", 400, []string{"body", "PNG", "S1"}},
	} {
		wantFailure(t, r.post(t, test.path, test.body, "Content-Type", "image/png"), test.status, test.code, test.named...)
	}
	for _, test := range []struct {
		path   string
		header []string
		named  []string
	}{
		{"/invocations?model_name=small&model_name=tiny", nil, []string{"model_name", "small", "tiny"}},
		{"/invocations?model_name=small", []string{"X-Model-Name", "tiny"}, []string{"model_name", "small", "tiny"}},
		{"/invocations?model_name=small&mode=embedding", []string{"X-Mode", "prediction"}, []string{"mode", "embedding", "prediction"}},
		{"/api/embed/small", []string{"X-Mode", "prediction"}, []string{"mode", "prediction", "embedding"}},
		{"/api/embed/small?mode=prediction", nil, []string{"mode", "prediction", "embedding"}},
		{"/api/embed/small", []string{"X-Model-Name", "tiny"}, []string{"model_name", "tiny", "small"}},
		{"/api/embed/small?model_name=nope", nil, []string{"model_name", "nope", "small"}},
	} {
		wantFailure(t, r.post(t, test.path, rawTile(t), append(test.header, "Content-Type", "image/png")...), 400, "invalid_request", test.named...)
	}
	wantFailure(t, r.post(t, "/invocations", rawTile(t), "Content-Type", "image"), 415, CodeUnsupportedMediaType, "application/json", "image/*")
	wantFailure(t, r.post(t, "/invocations", rawTile(t), "Content-Type", "imagery/png"), 415, CodeUnsupportedMediaType)
}

// The answer's form by the weights of Accept.
func TestAnswerForm(t *testing.T) {
	r := runPair(t, nil)
	const none = ""
	for accept, want := range map[string]string{
		"":                 mediaJSON,
		"*/*":              mediaJSON,
		"application/*":    mediaJSON,
		"application/json": mediaJSON,
		"application/json, application/octet-stream":              mediaJSON,
		"application/octet-stream, application/json":              mediaJSON,
		"text/html, */*;q=0.1":                                    mediaJSON,
		"application/octet-stream;q=0.5, application/json;q=0.6":  mediaJSON,
		"application/octet-stream;q=0.5, */*":                     mediaJSON,
		"application/octet-stream;q=0, */*;q=0.1":                 mediaJSON,
		"application/octet-stream":                                mediaFloats,
		"Application/Octet-Stream ; Q=0.2":                        mediaFloats,
		"application/octet-stream, */*":                           mediaFloats,
		"application/json;q=0.9, application/octet-stream":        mediaFloats,
		"application/json;q=0, */*":                               mediaFloats,
		"*/*;q=0.5, application/octet-stream;q=0.5":               mediaFloats,
		"application/json;q=0":                                    none,
		"application/octet-stream;q=0":                            none,
		"text/html, image/png":                                    none,
		"application":                                             none,
		",":                                                       none,
		"*/json":                                                  none,
		"*":                                                       mediaJSON,
		"text/html, image/gif, *; q=.2, */*; q=.2":                mediaJSON, // of an old HTTP library
		"*, application/octet-stream":                             mediaFloats,
		"*, application/json;q=0":                                 mediaFloats,
		"application/octet-stream;q=0, application/json;q=0, */*": none,
	} {
		a := r.post(t, "/api/predict_with_embedding/small", goodTile, "Accept", accept)
		switch {
		case want == none:
			wantFailure(t, a, http.StatusNotAcceptable, CodeNotAcceptable, mediaJSON, mediaFloats)
		case a.status != http.StatusOK || a.header.Get("Content-Type") != want || (a.header.Get(headerShape) != "") != (want == mediaFloats):
			t.Errorf("Accept %q: %d, %s, want %s", accept, a.status, a.header, want)
		}
	}
}

// A header that is sent in several lines is one list.
func TestAcceptOfSeveralLines(t *testing.T) {
	r := runPair(t, nil)
	for want, lines := range map[string][]string{
		mediaFloats: {"text/html", mediaFloats}, mediaJSON: {mediaFloats + ";q=0.5", mediaJSON},
	} {
		request := r.request(t, http.MethodPost, "/api/embed/small", goodTile)
		request.Header["Accept"] = lines
		if a := do(t, request); a.status != http.StatusOK || a.header.Get("Content-Type") != want {
			t.Errorf("%q: %d %s, want %s", lines, a.status, a.header, want)
		}
	}
	request := r.request(t, http.MethodPost, "/api/embed/small", goodTile)
	request.Header["Accept"] = []string{"text/html", "image/png"}
	wantFailure(t, do(t, request), http.StatusNotAcceptable, CodeNotAcceptable, "text/html, image/png")
}

func TestFloats(t *testing.T) {
	r := runPair(t, nil)
	for path, want := range map[string]struct {
		shape  string
		values []float32
	}{
		"/api/embed/small":                  {"3", []float32{0.5, 1.5, 2.5}},
		"/api/predict/small":                {"1,2", []float32{0, 2}},
		"/api/predict_with_embedding/small": {"1,2;3", []float32{0, 2, 0.5, 1.5, 2.5}},
	} {
		var data bytes.Buffer
		if err := binary.Write(&data, binary.LittleEndian, want.values); err != nil {
			t.Fatal(err)
		}
		for _, body := range []struct{ media, text string }{{"application/json", goodTile}, {"image/png", rawTile(t)}} {
			a := r.post(t, path, body.text, "Accept", mediaFloats, "Content-Type", body.media)
			if a.status != http.StatusOK || a.raw != data.String() || a.header.Get(headerShape) != want.shape {
				t.Errorf("%s: %d %x, shape %q; want %x, %q", path, a.status, a.raw, a.header.Get(headerShape), data.Bytes(), want.shape)
			}
		}
	}
	// What is no answer is told in JSON, and so is the metadata.
	wantFailure(t, r.post(t, "/api/embed/small", "{", "Accept", mediaFloats), http.StatusBadRequest, "invalid_request")
	a := r.post(t, "/invocations", `{"model_name":"small","mode":"metadata"}`, "Accept", mediaFloats)
	if a.status != http.StatusOK || a.header.Get("Content-Type") != mediaJSON {
		t.Errorf("metadata: %d %v", a.status, a.header)
	}
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		answer := tritontest.Zeros(r.config, q)
		copy(answer.RawOutputContents[0], []byte{0, 0, 0xc0, 0x7f}) // not a number
		return answer, nil
	})
	a = r.post(t, "/api/embed/small", goodTile, "Accept", mediaFloats)
	wantFailure(t, a, http.StatusServiceUnavailable, CodeForwardFailed)
	if a.header.Get(headerShape) != "" {
		t.Error("a failure has a shape")
	}
}

// While a request is inside Triton its body's memory is others', unless its answer
// repeats too much of it; its answer is its own all the same.
func TestBodyIsLetGoOf(t *testing.T) {
	r := run(t, nil)
	entered, leave := make(chan int64), make(chan struct{})
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		entered <- r.admission.bytes.taken.Load()
		<-leave
		return tritontest.Zeros(r.config, q), nil
	})
	for _, name := range []string{"first", strings.Repeat("long", keptBytes)} {
		tile := strings.Replace(goodTile, `"S1"`, `"`+name+`"`, 1)
		answers := make(chan answered)
		go func() { answers <- r.post(t, "/invocations", tile) }()
		held, want := <-entered, int64(0)
		if len(name) > keptBytes {
			want = int64(len(tile))
		}
		if held != want {
			t.Errorf("%d bytes of bodies are held, want %d", held, want)
		}
		// Others use the memory meanwhile.
		for range 3 {
			r.post(t, "/invocations", strings.Repeat("x", len(tile)))
		}
		leave <- struct{}{}
		if a := <-answers; a.status != http.StatusOK || !strings.Contains(a.raw, `"slide_name":"`+name+`","x":1,"y":2,"width":8`) {
			t.Errorf("status %d: %.200s", a.status, a.raw)
		}
	}
}
