package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// diagnosed is what the admin port says.
func diagnosed(t *testing.T, g *Gateway) (d diagnostics, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	g.admin().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/diagnostics", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	return d, w.Body.String()
}

func TestDiagnostics(t *testing.T) {
	const key = "a-key-that-nobody-may-read"
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	r := launch(t, testSpec, testConfig, func(c *Config) {
		changed, err := read([]string{"-model-load-timeout", "60s", "-tensor-transport", "auto"}, map[string]string{"API_KEYS_FILE": path, "SAGEMAKER_BIND_TO_PORT": "8081"})
		if err != nil {
			t.Fatal(err)
		}
		changed.given["TRITON_ADDRESS"] = givenSetting{"http://operator:" + key + "@127.0.0.1:1", "", "TRITON_ADDRESS"}
		c.APIKeysFile, c.given = path, changed.given
	}, func(s *tritontest.Server) { s.SharedMemory = true })
	r.await(t, http.StatusOK)
	if a := r.post(t, "/invocations", goodTile, "X-API-Key", key); a.status != http.StatusOK {
		t.Fatal(a.raw)
	}
	d, text := diagnosed(t, r.Gateway)
	if d.Versions.Go != runtime.Version() || d.Versions.Triton != "fake" || d.Versions.Gateway == "" || d.UpSeconds <= 0 || d.Draining || d.InFlight != 0 || d.Triton.Child {
		t.Errorf("%s", text)
	}
	for name, want := range map[string]givenSetting{
		"API_KEYS_FILE": {path, "", "API_KEYS_FILE"}, "PORT": {"8081", "8080", "SAGEMAKER_BIND_TO_PORT"}, "MODEL_LOAD_TIMEOUT": {"60s", "5m", "-model-load-timeout"},
		"TRITON_ADDRESS": {"http://operator:xxxxx@127.0.0.1:1", "", "TRITON_ADDRESS"},
	} {
		if d.Changed[name] != want {
			t.Errorf("%s: %+v, want %+v", name, d.Changed[name], want)
		}
	}
	if len(d.Changed) != 4 || d.Unchanged["TENSOR_TRANSPORT"] != "auto" || len(d.Changed)+len(d.Unchanged) != len(settings()) {
		t.Errorf("settings: %s", text)
	}
	m := d.Models[0]
	if m.Name != "small" || !m.Ready || m.Reason != "" || m.Transport != "shared memory" || m.SharedSlots == nil || m.SharedSlots.Most != 8 || m.LifeSeconds <= 0 || m.IdleSeconds > m.LifeSeconds || m.Window != (windowState{true, 8, 0, 0}) {
		t.Errorf("%+v", m)
	}
	var stages []string
	for _, s := range d.Stages {
		stages = append(stages, s.Stage)
		if s.Count == 0 || s.P50 <= 0 || s.P50 > s.P90 || s.P90 > s.P99 {
			t.Errorf("%+v", s)
		}
	}
	for s := range stageCount {
		if !slices.Contains(stages, s.String()) {
			t.Errorf("no stage %s in %v", s, stages)
		}
	}
	if strings.Contains(text, key) || len(d.Failures)+len(d.Events) != 0 || strings.Contains(text, "null") {
		t.Errorf("a key, or failures where there are none: %s", text)
	}
	wantFailure(t, do(t, r.request(t, http.MethodGet, "/diagnostics", "", "X-API-Key", key)), http.StatusNotFound, CodeNotFound)
}

// What failed is told as it was logged, the latest of it, whatever LOG_LEVEL is; a
// caller's own mistake is none. A flood of failures does not hide what the gateway did.
func TestDiagnosticsOfFailures(t *testing.T) {
	r := run(t, func(c *Config) { c.RequestTimeout = 20 * time.Second })
	long := strings.Repeat("x", 10*journalText)
	r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Internal, "Stub process is not healthy."+long)
	})
	wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeForwardFailed)
	r.await(t, http.StatusOK)
	r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Unavailable, "Exceeds maximum queue size"+long)
	})
	for n := range 3 * journalEntries {
		wantFailure(t, r.post(t, "/invocations", goodTile, "X-Request-Id", fmt.Sprintf("n%d", n)), http.StatusServiceUnavailable, CodeBusy)
		wantFailure(t, r.post(t, "/invocations", replaced(`"x":1`, `"x":1.5`)), http.StatusBadRequest, "invalid_request")
	}
	d, text := diagnosed(t, r.Gateway)
	if len(d.Failures) != journalEntries || len(text) > 2*journalEntries*(journalText+1000)+20000 {
		t.Errorf("%d failures, %d bytes", len(d.Failures), len(text))
	}
	for i, line := range d.Failures {
		var f struct {
			Time      time.Time
			RequestID string `json:"request_id"`
			Code      Code
			Model     string
			Status    int
			Error     string
		}
		if err := json.Unmarshal(line, &f); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("n%d", 3*journalEntries-1-i); f.RequestID != want || f.Code != CodeBusy || f.Model != "small" || f.Status != http.StatusServiceUnavailable || f.Time.IsZero() ||
			!strings.Contains(f.Error, "Exceeds maximum queue size") {
			t.Errorf("%s, want that of %s", line, want)
		}
	}
	var said []string
	for _, line := range d.Events {
		said = append(said, string(line))
	}
	if all := strings.Join(said, ""); !strings.Contains(all, `"loading the model again"`) || !strings.Contains(all, "its process is gone") || !strings.Contains(all, `"small"`) {
		t.Errorf("events: %s", all)
	}
	if got := d.Models[0].Reloads["its process is gone"]; got != 1 {
		t.Errorf("%v reloads: %v", got, d.Models[0].Reloads)
	}
}

// A model that can never be used says why, and what it never had is left out.
func TestDiagnosticsOfABrokenModel(t *testing.T) {
	log := new(lockedBuffer)
	g, err := New(t.Context(), checkpointConfig(t), slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelError + 1})))
	if err != nil {
		t.Fatal(err)
	}
	d, text := diagnosed(t, g)
	h1, optimus := d.Models[0], d.Models[1]
	if h1.Ready || h1.Lasting || h1.Reason != "it is being loaded" || h1.Transport != "messages" || h1.Window.Open {
		t.Errorf("%+v", h1)
	}
	if optimus.Ready || !optimus.Lasting || !strings.Contains(optimus.Reason, "is built for") || optimus.Transport != "" {
		t.Errorf("%+v", optimus)
	}
	if !d.Triton.Child || !strings.Contains(text, "a model cannot be served") || log.String() != "" {
		t.Errorf("%s; log %s", text, log)
	}
	request := httptest.NewRequest(http.MethodGet, "/api/metadata/m-optimus", nil)
	response, err := g.app.Test(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if d, text := diagnosed(t, g); len(d.Failures) != 1 || !strings.Contains(string(d.Failures[0]), `"backend_unavailable"`) {
		t.Errorf("a lasting failure is none: %s", text)
	}
}

// Percentiles are of the latest minutes alone, whatever labels the histogram has.
func TestPercentiles(t *testing.T) {
	for _, labels := range [][]string{{"stage"}, {"model", "stage"}} {
		synctest.Test(t, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			stages := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: stageSeconds, Buckets: []float64{0.001, 0.002, 0.004, 1}}, labels)
			registry.MustRegister(stages)
			values := make([]string, len(labels))
			values[len(values)-1] = "prep"
			observe := func(n int, seconds float64) {
				for range n {
					stages.WithLabelValues(values...).Observe(seconds)
				}
			}
			recent := newRecent(registry)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			go recent.run(ctx)
			check := func(ago time.Duration, want ...stageTimes) {
				t.Helper()
				synctest.Wait()
				families, err := registry.Gather()
				if err != nil {
					t.Fatal(err)
				}
				since, got := recent.percentiles(families)
				if !slices.Equal(got, want) || time.Since(since) != ago {
					t.Errorf("%v: %+v of the last %s, want %+v of %s", labels, got, time.Since(since), want, ago)
				}
			}
			check(0)
			observe(100, 0.5)
			time.Sleep(time.Minute)
			check(time.Minute, stageTimes{"", "prep", 100, 502, 900.4, 990.04})
			time.Sleep(recentWindow)
			check(recentWindow)
			observe(50, 0.0005)
			observe(40, 0.0015)
			observe(9, 0.003)
			observe(1, 7) // above the last bound
			check(recentWindow, stageTimes{"", "prep", 100, 1, 2, 4})
			time.Sleep(time.Hour)
			observe(1, 7)
			check(recentWindow, stageTimes{"", "prep", 1, 1000, 1000, 1000})
		})
	}
}

// To tell all this takes a millisecond or so, and can be asked for at any time.
func BenchmarkDiagnostics(b *testing.B) {
	cfg, err := read([]string{"-model-repository", repository(b, testSpec, testConfig)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	g, err := New(b.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	admin := g.admin()
	for b.Loop() {
		admin.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/diagnostics", nil))
	}
}
