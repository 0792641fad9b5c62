package gateway

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"histogate/prep"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// inside is text that a Triton puts into its errors and no caller may see.
const inside = "RuntimeError: secret At: /opt/model.py(12)"

// Errors of every kind are driven through real HTTP: their status, code and body.
// Those that take more than a request have tests of their own, those of stage 2 too.
func TestEveryErrorOverHTTP(t *testing.T) {
	for _, test := range []struct {
		name   string
		method string // POST when empty
		path   string // /invocations when empty
		body   string // a sound tile when empty
		header []string
		change func(*Config)

		status int
		code   Code
		named  []string // what the text must name
	}{
		{name: "unknown route", path: "/api/predict", status: 404, code: CodeNotFound, named: []string{"/invocations"}},
		{name: "unknown model in the path", path: "/api/embed/nope", status: 404, code: CodeUnknownModel, named: []string{"nope", "small"}},
		{name: "unknown model in the body", body: replaced(`"small"`, `"nope"`), status: 404, code: CodeUnknownModel, named: []string{"nope", "small"}},
		{name: "method", method: http.MethodGet, status: 405, code: CodeMethodNotAllowed, named: []string{"it takes POST"}},
		{name: "method that is unknown", method: "QUERY", status: 405, code: CodeMethodNotAllowed, named: []string{"it takes POST"}},
		{name: "unknown method of an unknown route", method: "QUERY", path: "/api/predict", status: 404, code: CodeNotFound},
		{name: "accept", header: []string{"Accept", "text/html"}, status: 406, code: CodeNotAcceptable, named: []string{"text/html"}},
		{name: "accept with a quality of zero", header: []string{"Accept", "application/json;q=0"}, status: 406, code: CodeNotAcceptable},
		{name: "content type", header: []string{"Content-Type", "text/plain"}, status: 415, code: CodeUnsupportedMediaType, named: []string{"text/plain", "application/json"}},
		{name: "content encoding", header: []string{"Content-Encoding", "gzip"}, status: 415, code: CodeUnsupportedMediaType, named: []string{"gzip"}},
		{name: "body too large", change: func(c *Config) { c.MaxBodyBytes = 100 }, status: 413, code: CodeBodyTooLarge, named: []string{"100"}},
		{name: "headers too large", header: []string{"Cookie", strings.Repeat("x", 20<<10)}, status: 431, code: CodeHeaderTooLarge, named: []string{"16384"}},
		{name: "not JSON", body: `{"x":}`, status: 400, code: "invalid_request", named: []string{"byte 5"}},
		{name: "no model", body: replaced(`,"model_name":"small"`, ""), status: 400, code: "invalid_request", named: []string{"model_name", "small"}},
		{name: "model of a wrong type", body: replaced(`"model_name":"small"`, `"model_name":7`), status: 400, code: "invalid_request", named: []string{"model_name", "S1", "7"}},
		{name: "mode not offered", body: replaced(`"mode":"embedding"`, `"mode":"prediction"`), status: 400, code: "unsupported_mode", named: []string{"prediction", "embedding", "small", "S1", "7"}},
		{name: "default mode not offered", body: replaced(`,"mode":"embedding"`, ""), status: 400, code: "unsupported_mode", named: []string{"none was sent, which means prediction", "embedding"}},
		{name: "an image without its type", body: "\x89PNG\r\n\x1a\n", status: 400, code: "invalid_request", named: []string{"Content-Type", "image/png"}},
		{name: "field", body: replaced(`"x":1`, `"x":1.5`), status: 400, code: "invalid_request", named: []string{"x:", "S1", "7"}},
		{name: "image", body: replaced(`iVBO`, `AAAA`), status: 400, code: "invalid_image", named: []string{"image_data", "S1", "7", "PNG"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := run(t, test.change)
			method, path, body := test.method, test.path, test.body
			if method == "" {
				method = http.MethodPost
			}
			if path == "" {
				path = "/invocations"
			}
			if body == "" {
				body = goodTile
			}
			a := do(t, r.request(t, method, path, body, test.header...))
			wantFailure(t, a, test.status, test.code, test.named...)
		})
	}
}

// wantFailure holds a failure's body and headers against what callers rely on.
func wantFailure(t *testing.T, a answered, status int, code Code, named ...string) {
	t.Helper()
	if a.status != status || a.Code != code {
		t.Errorf("status %d, code %q; want %d, %q: %s", a.status, a.Code, status, code, a.raw)
	}
	for _, name := range named {
		if !strings.Contains(a.Detail, name) {
			t.Errorf("%q does not name %q", a.Detail, name)
		}
	}
	if strings.Contains(a.raw, "secret") || strings.Contains(a.raw, ".py") {
		t.Errorf("the answer tells what is inside: %s", a.raw)
	}
	if a.Detail == "" || a.Detail != a.Message || a.RequestID == "" || a.RequestID != a.header.Get("X-Request-Id") {
		t.Errorf("body %s, request id %q in the header", a.raw, a.header.Get("X-Request-Id"))
	}
	hint := ""
	if a.RetryAfter > 0 {
		hint = strconv.Itoa(a.RetryAfter)
	}
	if (status == http.StatusServiceUnavailable) != (hint != "") || a.header.Get("Retry-After") != hint {
		t.Errorf("status %d with retry_after %d and Retry-After %q", status, a.RetryAfter, a.header.Get("Retry-After"))
	}
	if allow := a.header.Get("Allow"); (status == http.StatusMethodNotAllowed) != (allow != "") {
		t.Errorf("status %d with Allow %q", status, allow)
	}
	if kind := a.header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("Content-Type %q", kind)
	}
}

func replaced(old, with string) string {
	if !strings.Contains(goodTile, old) {
		panic("the sound tile does not hold " + old)
	}
	return strings.Replace(goodTile, old, with, 1)
}

// answerCallers has the fake answer inferences of callers, but not the probes.
func (r *running) answerCallers(infer func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error)) {
	r.triton.Update(func(s *tritontest.Server) {
		m := *s.Models["small"]
		m.Infer = func(ctx context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			if q.Id == "canary" {
				return tritontest.Zeros(m.Config, q), nil
			}
			return infer(ctx, q)
		}
		s.Models["small"] = &m
	})
}

func TestPanicIsInternal(t *testing.T) {
	r := run(t, nil)
	r.models.byName["broken"] = nil // a handler that meets it panics
	a := r.post(t, "/api/embed/broken", goodTile)
	wantFailure(t, a, http.StatusInternalServerError, CodeInternal)
	if !strings.Contains(r.log.String(), "routes.go") {
		t.Error("the log has no stack")
	}
	if n := testutil.ToFloat64(r.metrics.panics.WithLabelValues("gateway")); n != 1 {
		t.Errorf("%v panics counted", n)
	}
	if n := testutil.ToFloat64(r.metrics.requests.WithLabelValues("/api/embed/:model", "", "", "500", string(CodeInternal))); n != 1 {
		t.Errorf("%v counted of the route", n)
	}
	if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
		t.Errorf("after a panic: %d", a.status)
	}
}

func TestBusyAtTheBound(t *testing.T) {
	r := run(t, func(c *Config) { c.MaxInFlight = 1 })
	entered, leave := make(chan struct{}), make(chan struct{})
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		close(entered)
		<-leave
		return tritontest.Zeros(r.config, q), nil
	})
	first := make(chan answered, 1)
	go func() { first <- r.post(t, "/invocations", goodTile) }()
	<-entered
	wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeBusy)
	close(leave)
	if a := <-first; a.status != http.StatusOK {
		t.Errorf("the request that was let in: %d %s", a.status, a.raw)
	}
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return tritontest.Zeros(r.config, q), nil
	})
	for range 3 { // each place is given back, after a failure too
		r.post(t, "/invocations", "{")
		if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
			t.Errorf("afterwards: %d %s", a.status, a.raw)
		}
	}
}

func TestBusyAtTheBoundOnBytes(t *testing.T) {
	r := run(t, func(c *Config) { c.MaxInFlightBytes = len(goodTile) })
	larger := goodTile + " "
	wantFailure(t, r.post(t, "/invocations", larger), http.StatusServiceUnavailable, CodeBusy)
	chunked := r.request(t, http.MethodPost, "/invocations", goodTile)
	chunked.ContentLength = -1
	wantFailure(t, do(t, chunked), http.StatusServiceUnavailable, CodeBusy) // its room is not known, so more is set aside
	for range 3 {
		if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
			t.Errorf("within the bound: %d %s", a.status, a.raw)
		}
	}
	if taken := r.admission.bytes.taken.Load(); taken != 0 {
		t.Errorf("%d bytes are not given back", taken)
	}
}

func TestDeadlines(t *testing.T) {
	const limit = 300 * time.Millisecond
	r := run(t, func(c *Config) { c.RequestTimeout, c.PreprocessWorkers = limit, 1 })
	r.answerCallers(func(ctx context.Context, _ *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	began := time.Now()
	wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeBackendTimeout)
	if took := time.Since(began); took < limit || took > limit+time.Second {
		t.Errorf("a deadline of %s passed after %s", limit, took)
	}
	release, err := r.admission.slot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeQueueTimeout)
}

// Every code that the package declares must have a status of its own choice.
func TestEveryCodeHasAStatus(t *testing.T) {
	for _, code := range declaredCodes(t) {
		a := answerFor(code, "")
		if a.code != code || a.status < 400 || a.status == http.StatusInternalServerError && code != CodeInternal {
			t.Errorf("%s becomes %d %s", code, a.status, a.code)
		}
	}
}

// declaredCodes are the codes that errors.go declares.
func declaredCodes(t *testing.T) (all []Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		value, ok := n.(*ast.ValueSpec)
		if !ok || len(value.Values) != 1 || !strings.HasPrefix(value.Names[0].Name, "Code") {
			return true
		}
		text, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Code(text))
		return true
	})
	if len(all) < 10 {
		t.Fatalf("only %d codes found", len(all))
	}
	return all
}

// What is the service's own is a warning in the log, whether or not it is of use to
// send it again; a caller's mistake is none.
func TestLevelOfAFailure(t *testing.T) {
	served := &model{spec: &prep.Spec{Name: "small"}}
	for _, test := range []struct {
		err   error
		route string
		level slog.Level
	}{
		{served.unavailable(&trouble{"a test", true}), "/invocations", slog.LevelWarn},
		{served.unavailable(&trouble{"a test", false}), "/invocations", slog.LevelWarn},
		{served.unavailable(&trouble{"a test", true}), "/ping", slog.LevelDebug},
		{errors.New("a test"), "/invocations", slog.LevelError},
		{&prep.Error{Code: prep.InvalidRequest}, "/invocations", slog.LevelInfo},
		{errCallerGone, "/invocations", slog.LevelDebug},
	} {
		if level := classify(test.err).level(&trace{route: test.route}, ""); level != test.level {
			t.Errorf("%v on %s: %s, want %s", test.err, test.route, level, test.level)
		}
	}
}
