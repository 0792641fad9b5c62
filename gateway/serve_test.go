package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/prep"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

func TestAnswer(t *testing.T) {
	r := run(t, nil)
	for _, path := range []string{"/invocations", "/api/embed/small", "/api/embed/tiny"} {
		a := r.post(t, path, goodTile, "X-Request-Id", "from-caller-1", "Accept", "text/html, application/*;q=0.5", "Content-Type", "Application/JSON; charset=utf-8")
		const want = `{"output":[0,0,0],"slide_name":"S1","x":1,"y":2,"width":8,"height":8,"tissue_ratio":null,"patch_idx":7,"resolution":null,"embedding":null}`
		if a.status != http.StatusOK || a.raw != want {
			t.Errorf("%s: %d %s", path, a.status, a.raw)
		}
		if a.header.Get("X-Request-Id") != "from-caller-1" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: headers %v", path, a.header)
		}
		for _, stage := range []string{"read", "decode", "transform", "triton", "reply"} {
			if !strings.Contains(a.header.Get("Server-Timing"), stage+";dur=") {
				t.Errorf("Server-Timing %q lacks %s", a.header.Get("Server-Timing"), stage)
			}
		}
	}
	if a := r.post(t, "/invocations", goodTile, "X-Request-Id", "no good\tid"); a.header.Get("X-Request-Id") == "no good\tid" {
		t.Error("a request id that could break a log line was taken over")
	}
}

func TestMetadata(t *testing.T) {
	r := run(t, func(c *Config) { c.DefaultModel, c.Models = "tiny", []string{"tiny", "small"} })
	byPath := do(t, r.request(t, http.MethodGet, "/api/metadata/small", ""))
	byBody := r.post(t, "/invocations", `{"image_data":"","slide_name":"","x":0,"y":0,"width":0,"height":0,"patch_idx":0,"mode":"metadata"}`)
	if byPath.status != http.StatusOK || byPath.raw != byBody.raw {
		t.Errorf("by path %d %s, by body %d %s", byPath.status, byPath.raw, byBody.status, byBody.raw)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(byPath.raw), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"model_name":    `small`,
		"input_dtype":   `torch.float32`,
		"tile_size":     `[8 8]`,
		"embedding_dim": `3`,
		"inputs":        `map[tile:map[dtype:float32 shape:[batch 3 8 8]]]`,
		"outputs":       `map[embedding:map[dtype:float32 shape:[batch 3]]]`,
	} {
		if text := fmt.Sprint(got[key]); text != want {
			t.Errorf("%s is %s, not %s", key, text, want)
		}
	}
	if config, ok := got["config"].(map[string]any); !ok || config["modes"] == nil || config["tile"] == nil || config["batching"] == nil {
		t.Errorf("config is %v", got["config"])
	}
}

// The metadata has tensors in the order of a call, and all lists of the transforms.
func TestMetadataIsInOrderAndWhole(t *testing.T) {
	spec, err := prep.ParseSpec([]byte(`
name: small
task: tile embedding
input_genes: [a, b]
tile: {width: 8, height: 8, microns_per_pixel: 0.5, mean: [0, 0, 0], std: [1, 1, 1]}
inputs:
  - {name: tile, source: tile, dtype: float32, shape: [3, 8, 8]}
  - {name: rna, source: bulk_rna, dtype: float32, shape: [1], domain: counts, transforms: [{name: zscore, mean: [0.5, 1], std: [2, 3]}, {name: subset_columns, indices: [1]}]}
  - {name: a_0, source: constant, value: 0, dtype: float32, shape: [1]}
outputs: [{name: z, role: embedding, dtype: float32, shape: [3]}, {name: b, role: prediction, dtype: float32, shape: [2]}]
modes: [embedding]
batching: {max_batch_size: 4, max_queue_delay_ms: 1.5}
`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(describe(spec))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"inputs":{"tile":{"shape":["batch",3,8,8],"dtype":"float32"},"rna":{"shape":["batch",1],"dtype":"float32"},"a_0":{"shape":["batch",1],"dtype":"float32"}}`,
		`"outputs":{"z":{"shape":["batch",3],"dtype":"float32"},"b":{"shape":["batch",2],"dtype":"float32"}}`,
		`"transforms":[{"name":"zscore","mean":[0.5,1],"std":[2,3]},{"name":"subset_columns","indices":[1]}]`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
}

// A connection can be used again after any failure, and an answer that comes
// before the body was read still reaches a client that sends its body first.
func TestConnectionOutlivesFailures(t *testing.T) {
	const limit = 9 << 20
	r := run(t, func(c *Config) { c.MaxBodyBytes = limit })
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	send := func(path, framing, body string, want int) {
		t.Helper()
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", path, framing, body); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		defer response.Body.Close()
		var f failure
		if err := json.NewDecoder(response.Body).Decode(&f); err != nil || response.StatusCode != want {
			t.Fatalf("status %d, not %d: %v %v", response.StatusCode, want, f, err)
		}
	}
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d", n) }
	chunks := func(n, size int) string {
		return strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", size, strings.Repeat("x", size)), n) + "0\r\n\r\n"
	}
	large := strings.Repeat("x", limit+1000)
	// More than the sockets hold: without reading it the answer would be lost.
	const huge = 8 << 20
	send("/api/embed/nope", length(huge), strings.Repeat("x", huge), http.StatusNotFound)
	send("/invocations", length(len(large)), large, http.StatusRequestEntityTooLarge)
	send("/invocations", "Transfer-Encoding: chunked", chunks(100, limit/90), http.StatusRequestEntityTooLarge)
	send("/invocations", "Transfer-Encoding: chunked", chunks(10, 100), http.StatusBadRequest)
	send("/invocations", length(1000)+"\r\nContent-Encoding: gzip", large[:1000], http.StatusUnsupportedMediaType)
	send("/invocations", length(len(goodTile)), goodTile, http.StatusOK)
	send("/invocations", "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(goodTile), goodTile), http.StatusOK)
}

func TestSlowBodyIsCut(t *testing.T) {
	r := run(t, func(c *Config) { c.RequestTimeout = 300 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d", response.StatusCode)
	}
}

// Triton's own word for a loaded model is held against the spec: a difference
// ends the gateway, naming it.
func TestRefusesToServeAContradiction(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*kserve.ModelConfig)
		named  string
	}{
		{"output shape", func(c *kserve.ModelConfig) { c.Output[0].Dims = []int64{5} }, "shape of output embedding is [5], spec.yaml says [3]"},
		{"input type", func(c *kserve.ModelConfig) { c.Input[0].DataType = kserve.DataType_TYPE_FP16 }, "type of input tile is FP16, spec.yaml says FP32"},
		{"input name", func(c *kserve.ModelConfig) { c.Input[0].Name = "image" }, "inputs, in order, is image, spec.yaml says tile"},
		{"batch", func(c *kserve.ModelConfig) { c.MaxBatchSize = 8 }, "max_batch_size is 8, spec.yaml says 4"},
		{"compiled for fewer", func(c *kserve.ModelConfig) {
			c.Parameters = map[string]*kserve.ModelParameter{"fixed_batch": {StringValue: "3"}}
		}, "max_batch_size is 4, the checkpoint was compiled for 3 rows"},
		{"delay", func(c *kserve.ModelConfig) { c.GetDynamicBatching().MaxQueueDelayMicroseconds = 9 }, "max_queue_delay_microseconds is 9, spec.yaml says 1500"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := launch(t, testSpec, testConfig, nil, func(s *tritontest.Server) { test.change(s.Models["small"].Config) })
			select {
			case err := <-r.ended:
				if err == nil || !strings.Contains(err.Error(), test.named) {
					t.Errorf("ended with %v, which does not say %q", err, test.named)
				}
				r.ended <- nil // for the clean-up
			case <-time.After(10 * time.Second):
				t.Error("it serves")
			}
		})
	}
}

// Readiness follows inference: off while it fails, on again without help, and a
// model whose process is gone is loaded anew. Requests wait meanwhile: until their
// deadline, or until they are served.
func TestReadinessFollowsInference(t *testing.T) {
	r := run(t, func(c *Config) { c.RequestTimeout = 2 * time.Second })
	var fails atomic.Bool // until the model is unloaded
	var before atomic.Int64
	var reason atomic.Pointer[string]
	r.triton.Update(func(s *tritontest.Server) {
		m := *s.Models["small"]
		m.Infer = func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			if fails.Load() || r.triton.Unloads("small") == int(before.Load()) {
				return nil, status.Error(codes.Internal, *reason.Load())
			}
			return tritontest.Zeros(m.Config, q), nil
		}
		s.Models["small"] = &m
	})
	for _, text := range []string{"Failed to process the request(s)", "Stub process 'small_0_0' is not healthy."} {
		reason.Store(&text)
		before.Store(int64(r.triton.Unloads("small")))
		fails.Store(true)
		r.await(t, http.StatusServiceUnavailable)
		a := do(t, r.request(t, http.MethodGet, "/ping", ""))
		wantFailure(t, a, http.StatusServiceUnavailable, CodeBackendUnavailable, "small")
		wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeBackendUnavailable, "small")
		parked := make(chan answered, 1)
		go func() { parked <- r.post(t, "/invocations", goodTile) }()
		for r.models.list[0].window.parked() == 0 {
			time.Sleep(time.Millisecond)
		}
		for r.triton.Unloads("small") == int(before.Load()) {
			time.Sleep(time.Millisecond) // it cannot work before
		}
		fails.Store(false)
		if a := <-parked; a.status != http.StatusOK {
			t.Errorf("a request that waited while %q: %d %s", text, a.status, a.raw)
		}
		r.await(t, http.StatusOK)
	}
	if !strings.Contains(r.log.String(), "its process is gone") || !strings.Contains(r.log.String(), "fails on every batch") {
		t.Error("the log does not tell of the reloads and their causes")
	}
}
