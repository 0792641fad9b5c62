package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/png"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/gateway/openapi/openapitest"
	"histogate/prep"
	"histogate/tritonclient/kserve"
)

// A model with every mode and bulk RNA.
const (
	allSpec = `
name: small
aliases: [tiny]
task: both
tile: {width: 8, height: 8, microns_per_pixel: 0.5, mean: [0, 0, 0], std: [1, 1, 1]}
inputs:
  - {name: tile, source: tile, dtype: float32, shape: [3, 8, 8]}
  - {name: rna, source: bulk_rna, dtype: float32, shape: [4], domain: counts}
outputs:
  - {name: prediction, role: prediction, dtype: float32, shape: [2]}
  - {name: embedding, role: embedding, dtype: float32, shape: [3]}
modes: [prediction, embedding, prediction_with_embedding]
batching: {max_batch_size: 4, max_queue_delay_ms: 1.5}
input_genes: [A, B, C, D]
output_genes: [A, C]
`
	allConfig = `
name: "small"
backend: "histogate"
max_batch_size: 4
input [ { name: "tile", data_type: TYPE_FP32, dims: [ 3, 8, 8 ] }, { name: "rna", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "prediction", data_type: TYPE_FP32, dims: [ 2 ] }, { name: "embedding", data_type: TYPE_FP32, dims: [ 3 ] } ]
dynamic_batching { max_queue_delay_microseconds: 1500 }
`
	testKey = "0123456789abcdef"
)

// withAllRoutes configures what routes and codes there can be.
func withAllRoutes(t *testing.T) func(*Config) {
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(testKey), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.RuntimeEmulation, c.APIKeysFile = true, path }
}

// Every route that is registered is in the document, and no other; the same of codes.
func TestDocumentIsComplete(t *testing.T) {
	r := run(t, withAllRoutes(t))
	document := openapitest.Read(t, r.url, testKey).Document
	var registered, documented []string
	heads := map[string]bool{}
	for _, route := range r.app.GetRoutes(true) {
		path := strings.NewReplacer(":model", "{model}", ":name", "{name}").Replace(route.Path)
		if route.Method == http.MethodHead {
			heads[path] = true
		} else {
			registered = append(registered, strings.ToLower(route.Method)+" "+path)
		}
	}
	for path, methods := range document.Paths {
		for method := range methods {
			documented = append(documented, method+" "+path)
			if heads[path] != (method == "get") {
				t.Errorf("%s %s, and HEAD: %v", method, path, heads[path])
			}
		}
	}
	slices.Sort(registered)
	slices.Sort(documented)
	if !slices.Equal(registered, documented) {
		t.Errorf("the routes are\n%q, the document has\n%q", registered, documented)
	}

	var codes []string
	for _, code := range slices.Concat(declaredCodes(t), stage1Codes()) {
		if code != CodeCallerGone { // nobody is answered with it
			codes = append(codes, string(code))
		}
	}
	slices.Sort(codes)
	if has := slices.Sorted(maps.Keys(document.Components.Examples)); !slices.Equal(has, codes) {
		t.Errorf("the codes are\n%q, the document has\n%q", codes, has)
	}
	used := map[string]bool{}
	for _, methods := range document.Paths {
		for _, operation := range methods {
			for _, answer := range operation.Responses {
				for name := range answer.Content[mediaJSON].Examples {
					used[name] = true
				}
			}
		}
	}
	for _, code := range codes {
		if !used[code] {
			t.Errorf("no route is documented to fail with %s", code)
		}
	}
}

// What the document gives as examples is answered as it says.
func TestDocumentedExamples(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"plain":      nil,
		"default":    func(c *Config) { c.DefaultModel = "tiny" },
		"all routes": withAllRoutes(t),
	} {
		for spec, config := range map[string]string{testSpec: testConfig, allSpec: allConfig} {
			t.Run(name, func(t *testing.T) {
				r := launch(t, spec, config, change, nil)
				r.await(t, http.StatusOK)
				key := ""
				if r.keys != nil {
					key = testKey
				}
				openapitest.Read(t, r.url, key).SendExamples(t)
			})
		}
	}
}

// Each code's example is, but for the request id, what is answered to a request that
// fails so; and the route that failed is documented to.
func TestDocumentedFailures(t *testing.T) {
	with := func(field string, value any) string {
		var fields map[string]any
		if err := json.Unmarshal([]byte(goodTile), &fields); err != nil {
			t.Fatal(err)
		}
		fields["slide_name"], fields["patch_idx"], fields[field] = "slide-1", 0, value
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	onePixel := func() string {
		var picture bytes.Buffer
		if err := png.Encode(&picture, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(picture.Bytes())
	}
	failing := func(code codes.Code, message string) func(*running) {
		return func(r *running) {
			r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				return nil, status.Error(code, message)
			})
		}
	}
	type attempt struct {
		method, path, body string // POST, /invocations and a sound tile where empty
		headers            []string
		raw                string // in place of all these: what is written to the connection
		spec, config       string
		change             func(*Config)
		before             func(*running)
	}
	attempts := map[Code]attempt{
		Code(prep.InvalidRequest):  {body: with("x", 1.5)},
		Code(prep.InvalidImage):    {body: with("image_data", "")},
		Code(prep.WrongShape):      {body: with("image_data", onePixel())},
		Code(prep.InvalidRNA):      {body: with("bulk_rna", "none"), spec: allSpec, config: allConfig},
		Code(prep.UnsupportedMode): {body: with("mode", "prediction")},
		CodeMalformedHTTP:          {raw: "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
		CodeRequestTimeout:         {raw: "POST /invocations HTTP/1.1\r\nHost: x\r\n", change: func(c *Config) { c.RequestTimeout = 300 * time.Millisecond }},
		CodeUnauthorized:           {headers: []string{"X-API-Key", ""}, change: withAllRoutes(t)},
		CodeUnknownModel:           {body: with("model_name", "h9")},
		CodeNotFound:               {path: "/api/embed/small/8"},
		CodeMethodNotAllowed:       {method: http.MethodPut},
		CodeNotAcceptable:          {headers: []string{"Accept", "text/html"}},
		CodeUnsupportedMediaType:   {headers: []string{"Content-Type", "text/plain"}},
		CodeBodyTooLarge:           {change: func(c *Config) { c.MaxBodyBytes = 100 }},
		CodeHeaderTooLarge:         {headers: []string{"Cookie", strings.Repeat("x", 20<<10)}},
		CodeInternal:               {path: "/api/embed/broken", before: func(r *running) { r.models.byName["broken"] = nil }}, // its handler panics
		CodeBusy: {before: func(r *running) {
			_ = r.admission.enter(r.cfg.MaxInFlight) // nothing else is in flight
			time.AfterFunc(3*time.Second, func() { r.admission.leave(r.cfg.MaxInFlight) })
		}},
		CodeQueueTimeout:       {body: with("x", 1), before: failing(codes.Unavailable, "Request timeout expired")},
		CodeBackendUnavailable: {body: with("x", 1), before: failing(codes.Unavailable, "Server not ready")},
		CodeBackendTimeout:     {body: with("x", 1), before: failing(codes.DeadlineExceeded, inside)},
		CodeForwardFailed:      {body: with("x", 1), before: failing(codes.Internal, inside)},
	}
	for _, code := range slices.Concat(declaredCodes(t), stage1Codes()) {
		if code == CodeCallerGone {
			continue // nobody is there
		}
		t.Run(string(code), func(t *testing.T) {
			a := attempts[code]
			r := launch(t, cmp.Or(a.spec, testSpec), cmp.Or(a.config, testConfig), a.change, nil)
			r.await(t, http.StatusOK)
			server := openapitest.Read(t, r.url, testKey)
			if a.before != nil {
				a.before(r)
			}
			var text []byte
			method, path := cmp.Or(a.method, http.MethodPost), cmp.Or(a.path, "/invocations")
			switch {
			case a.raw != "":
				response, err := http.ReadResponse(bufio.NewReader(r.send(t, a.raw)), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if text, err = io.ReadAll(response.Body); err != nil {
					t.Fatal(err)
				}
			case code == CodeNotFound, code == CodeMethodNotAllowed: // no route of the document's
				text = []byte(do(t, r.request(t, method, path, goodTile)).raw)
			default:
				headers := append([]string{"Content-Type", mediaJSON}, a.headers...)
				_, text = server.Do(t, method, path, []byte(cmp.Or(a.body, goodTile)), headers...)
			}
			var got map[string]any
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			example, _ := server.Document.Components.Examples[string(code)].Value.(map[string]any)
			if got["request_id"] == "" || example["code"] != string(code) {
				t.Errorf("%s, and the example %v", text, example)
			}
			got["request_id"] = example["request_id"]
			if !reflect.DeepEqual(got, example) {
				t.Errorf("the answer %s is unlike the example %v", text, example)
			}
		})
	}
}

// What fails behind the path of SageMaker's runtime is told as the example has it.
func TestDocumentedModelError(t *testing.T) {
	r := run(t, withAllRoutes(t))
	server := openapitest.Read(t, r.url, testKey)
	example := server.Document.Paths["/endpoints/{name}/invocations"]["post"].Responses["424"].Content[mediaJSON].Examples["model_error"].Value
	original := server.Document.Components.Examples[string(CodeUnknownModel)].Value.(map[string]any)
	_, text := server.Do(t, http.MethodPost, "/endpoints/NAME/invocations", []byte(replaced(`"small"`, `"h9"`)),
		"Content-Type", mediaJSON, "X-Request-Id", original["request_id"].(string))
	var got any
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, example) {
		t.Errorf("%s: %v; the example is %v", text, err, example)
	}
}
