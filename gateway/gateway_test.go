package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// A model of 8x8 pixels and three values, so that tests are quick.
const (
	testSpec = `
name: small
aliases: [tiny]
task: tile embedding
tile: {width: 8, height: 8, microns_per_pixel: 0.5, mean: [0, 0, 0], std: [1, 1, 1]}
inputs: [{name: tile, source: tile, dtype: float32, shape: [3, 8, 8]}]
outputs: [{name: embedding, role: embedding, dtype: float32, shape: [3]}]
modes: [embedding]
batching: {max_batch_size: 4, max_queue_delay_ms: 1.5}
`
	testConfig = `
name: "small"
backend: "histogate"
max_batch_size: 4
input [ { name: "tile", data_type: TYPE_FP32, dims: [ 3, 8, 8 ] } ]
output [ { name: "embedding", data_type: TYPE_FP32, dims: [ 3 ] } ]
dynamic_batching { max_queue_delay_microseconds: 1500 }
`
)

// repository writes a repository with the one model "small".
func repository(t testing.TB, spec, config string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "small"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"spec.yaml": spec, "config.pbtxt": config} {
		if err := os.WriteFile(filepath.Join(dir, "small", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fakeTriton is a fake that has the model of a repository.
func fakeTriton(t *testing.T, repository string) *tritontest.Server {
	t.Helper()
	config, err := tritonclient.ReadModelConfig(filepath.Join(repository, "small", "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	return &tritontest.Server{Models: map[string]*tritontest.Model{"small": {Config: config}}}
}

// running is a gateway in front of a fake Triton.
type running struct {
	*Gateway
	url    string
	triton *tritontest.Server
	config *kserve.ModelConfig // of the model
	log    *lockedBuffer
	stop   context.CancelFunc
	ended  chan error
}

// run serves until the test ends. change may set the configuration.
func run(t *testing.T, change func(*Config)) *running {
	t.Helper()
	r := launch(t, testSpec, testConfig, change, nil)
	r.await(t, http.StatusOK)
	return r
}

func launch(t *testing.T, spec, config string, change func(*Config), before func(*tritontest.Server)) *running {
	t.Helper()
	dir := repository(t, spec, config)
	fake := fakeTriton(t, dir)
	if before != nil {
		before(fake)
	}
	cfg, err := ReadConfig(nil, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ModelRepository, cfg.TritonAddress = dir, fake.Start(t)
	cfg.LogRequestsPerSecond = 1e6 // all of them
	if change != nil {
		change(cfg)
	}
	r := &running{triton: fake, config: fake.Models["small"].Config, log: new(lockedBuffer), ended: make(chan error, 1)}
	if r.Gateway, err = New(t.Context(), cfg, slog.New(slog.NewJSONHandler(r.log, nil))); err != nil {
		t.Fatal(err)
	}
	api, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := listen("127.0.0.1", 0, "METRICS_PORT")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + api.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		defer r.release()
		r.ended <- r.serve(ctx, api, admin)
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // else they are waited for
		cancel()
		select {
		case err := <-r.ended:
			if err != nil {
				t.Errorf("the gateway ended with %v", err)
			}
		case <-time.After(15 * time.Second):
			t.Error("the gateway does not end")
		}
	})
	return r
}

// await waits for a status of /ping.
func (r *running) await(t *testing.T, status int) {
	t.Helper()
	for range 500 {
		if response, err := http.Get(r.url + "/ping"); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == status {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("/ping never answered %d; log:\n%s", status, r.log)
}

// answered is what a caller got.
type answered struct {
	status int
	header http.Header
	raw    string
	failure
}

func do(t *testing.T, request *http.Request) answered {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err) // not Fatal: this may be another goroutine
		return answered{}
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	a := answered{status: response.StatusCode, header: response.Header, raw: string(raw)}
	if response.StatusCode >= 400 && request.Method != http.MethodHead {
		if err := json.Unmarshal(raw, &a.failure); err != nil {
			t.Errorf("a failure that is not JSON: %s", raw)
		}
	}
	return a
}

// request makes a request; headers are name, value pairs.
func (r *running) request(t *testing.T, method, path, body string, headers ...string) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		panic(err) // a mistake of the test
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return request
}

func (r *running) post(t *testing.T, path, body string, headers ...string) answered {
	t.Helper()
	return do(t, r.request(t, http.MethodPost, path, body, headers...))
}

// goodTile is a sound request for the model "small".
var goodTile = func() string {
	var buf bytes.Buffer
	if err := png.Encode(&buf, image.NewRGBA(image.Rect(0, 0, 8, 8))); err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"image_data":%q,"slide_name":"S1","x":1,"y":2,"width":8,"height":8,"patch_idx":7,"model_name":"small","mode":"embedding"}`,
		base64.StdEncoding.EncodeToString(buf.Bytes()))
}()

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// take is what was written since it was last taken.
func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buf.Reset()
	return b.buf.String()
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
