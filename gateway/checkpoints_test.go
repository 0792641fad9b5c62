package gateway

import (
	"context"
	"debug/elf"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"histogate/gateway/checkpoint/checkpointtest"
	"histogate/tritonclient"
)

const pt2Testdata = "../tests/pt2/testdata"

// checkpointConfig serves what is in a folder with a good checkpoint of h1 and one
// of m-optimus that is for another processor.
func checkpointConfig(t *testing.T) *Config {
	t.Helper()
	here, other := elf.EM_X86_64, elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		here, other = other, here
	}
	folder := t.TempDir()
	checkpointtest.Package{Machine: here, Metadata: `{"inputs": {"x": {"shape": ["B", 3, 224, 224], "dtype": "torch.float16"}},
		"outputs": {"cls": {"shape": ["B", 1536], "dtype": "torch.float16"}}}`}.Write(t, filepath.Join(folder, "h1_optimus_cls_token.pt2"))
	checkpointtest.Package{Machine: other}.Write(t, filepath.Join(folder, "m_optimus_prediction.pt2"))
	cfg, err := read([]string{
		"-model-dir", folder, "-assets-dir", filepath.Join(pt2Testdata, "assets"),
		"-model-repository", filepath.Join(pt2Testdata, "specs"), "-triton-server", "/bin/false",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	return cfg
}

// A broken checkpoint is said to be so to whoever asks for its model, and the
// others are served by what their checkpoints say.
func TestServeCheckpoints(t *testing.T) {
	cfg := checkpointConfig(t)
	cfg.BatchMaxSize = 5
	log := new(lockedBuffer)
	g, err := New(t.Context(), cfg, slog.New(slog.NewJSONHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body string) (int, string, string) {
		response, err := g.app.Test(httptest.NewRequest(method, path, strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text), response.Header.Get("Retry-After")
	}
	const sentence = "m-optimus cannot be used until its operator mends it: m_optimus_prediction.pt2 is built for"
	if want := `"assets_dir":"` + cfg.AssetsDir + `"`; !strings.Contains(log.String(), want) {
		t.Errorf("the log does not say where lists are looked for, %s:\n%s", want, log)
	}
	for _, test := range []struct {
		method, path, body string
		status             int
		named              []string
	}{
		{http.MethodPost, "/invocations", `{"model_name": "m-optimus", "mode": "prediction"}`, http.StatusServiceUnavailable, []string{sentence, `"backend_unavailable"`}},
		{http.MethodPost, "/invocations", `{"model_name": "m-optimus-stx", "mode": "metadata"}`, http.StatusServiceUnavailable, []string{sentence}},
		{http.MethodPost, "/api/embed/m-optimus", `{}`, http.StatusServiceUnavailable, []string{sentence}},
		{http.MethodGet, "/api/metadata/m-optimus", "", http.StatusServiceUnavailable, []string{sentence}},
		{http.MethodGet, "/api/metadata/h1", "", http.StatusOK, []string{`"input_dtype":"torch.float16"`, `"x":{"shape":["batch",3,224,224],"dtype":"float16"}`, `"cls"`, `"max_batch_size":5`}},
		{http.MethodGet, "/api/metadata/tissue-seg", "", http.StatusNotFound, []string{"h1, m-optimus"}},
		{http.MethodGet, "/ping?model=m-optimus-stx", "", http.StatusServiceUnavailable, []string{`"not ready: m-optimus: m_optimus_prediction.pt2 is built for`}},
		{http.MethodGet, "/ping?model=tissue-seg", "", http.StatusNotFound, []string{"h1, m-optimus"}},
		{http.MethodGet, "/ping", "", http.StatusServiceUnavailable, []string{"h1: it is being loaded", "m-optimus: m_optimus_prediction.pt2 is built for"}},
	} {
		status, text, hint := ask(test.method, test.path, test.body)
		if strings.Contains(text, sentence) && (hint != "" || strings.Contains(text, "retry_after")) {
			t.Errorf("%s %s: it hints that trying again helps: %s", test.method, test.path, text)
		}
		if status != test.status {
			t.Errorf("%s %s: status %d, not %d: %s", test.method, test.path, status, test.status, text)
		}
		for _, want := range test.named {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s: %q is not in %s", test.method, test.path, want, text)
			}
		}
	}
	for _, want := range []string{`"problem":"m_optimus_prediction.pt2 is built for`, `"left_out":["tissue-seg"]`, "GPU code in checkpoints is not checked", "nvidia-smi"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, log)
		}
	}
}

// Where MODEL_DIR is not set, whatever lies in the folder that platforms put models
// into is served or refused as if it was: stand-ins never come in its stead.
func TestDefaultModelDir(t *testing.T) {
	cfg := checkpointConfig(t)
	folder := cfg.ModelDir
	cfg.ModelDir = ""
	file := func(name string) string { return filepath.Join(folder, name) }
	try := func(cfg *Config) (*Config, string, error) {
		log := new(lockedBuffer)
		served, _, _, err := makeRepository(t.Context(), cfg, folder, slog.New(slog.NewJSONHandler(log, nil)))
		return served, log.String(), err
	}
	checkpointtest.Package{}.Write(t, file("h1.pt2"))
	if served, log, err := try(cfg); err != nil || served.ModelDir != folder || !slices.Equal(served.Models, []string{"h1", "m-optimus"}) ||
		!strings.Contains(log, `"level":"WARN"`) || !strings.Contains(log, `"files":["h1.pt2"]`) {
		t.Errorf("%+v, %v, log:\n%s", served, err, log)
	}
	for _, name := range []string{"h1_optimus_cls_token.pt2", "m_optimus_prediction.pt2"} {
		if err := os.Remove(file(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := try(cfg); err == nil || !strings.Contains(err.Error(), `no checkpoint that a spec in MODEL_REPOSITORY=`) || !strings.Contains(err.Error(), `but ["h1.pt2"]`) {
		t.Errorf("a checkpoint under another name: %v", err)
	}
	wrong := *cfg
	wrong.ModelRepository = t.TempDir()
	if _, _, err := try(&wrong); err == nil || !strings.Contains(err.Error(), "holds no folder with a spec.yaml") {
		t.Errorf("no specs: %v", err)
	}
	if err := os.Remove(file("h1.pt2")); err != nil {
		t.Fatal(err)
	}
	if served, _, err := try(cfg); err != nil || served != cfg {
		t.Errorf("an empty folder: %+v, %v", served, err)
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := try(cfg); err == nil || !strings.Contains(err.Error(), "as MODEL_DIR is not set") {
		t.Errorf("what is no folder: %v", err)
	}
}

// What was built is removed with the end of the service, and when it does not
// come to that.
func TestBuiltRepositoryIsRemoved(t *testing.T) {
	cfg := checkpointConfig(t)
	made := func() int {
		entries, err := os.ReadDir(os.Getenv("TMPDIR"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	cfg.Host, cfg.Port, cfg.MetricsPort = "127.0.0.1", 0, 0
	log := new(lockedBuffer)
	g, err := New(t.Context(), cfg, slog.New(slog.NewJSONHandler(log, nil)))
	if err != nil || made() != 1 {
		t.Fatalf("%d folders, %v", made(), err)
	}
	g.child = nil // a test's process cannot be the guard of one
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(ctx) }()
	for !strings.Contains(log.String(), `"msg":"listening"`) {
		time.Sleep(time.Millisecond)
	}
	if made() != 1 {
		t.Error("removed while it is served")
	}
	end()
	if err := <-ended; err != nil || made() != 0 {
		t.Errorf("%d folders are left after %v", made(), err)
	}
	taken, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, change := range map[string]func(c *Config){
		"PORT=":         func(c *Config) { c.Port = portOf(taken) },
		"METRICS_PORT=": func(c *Config) { c.MetricsPort = portOf(taken) },
	} {
		cfg := *cfg
		change(&cfg)
		if g, err = New(t.Context(), &cfg, slog.New(slog.DiscardHandler)); err != nil || made() != 1 {
			t.Fatalf("%d folders, %v", made(), err)
		}
		if err := g.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), name) || made() != 0 {
			t.Errorf("%s is taken: %d folders are left after %v", name, made(), err)
		}
	}
	for name, change := range map[string]func(c *Config){
		"DEFAULT_MODEL":  func(c *Config) { c.DefaultModel = "tissue-seg" },
		"TRITON_ADDRESS": func(c *Config) { c.TritonAddress = "%zz:1" },
	} {
		cfg := *cfg
		change(&cfg)
		if _, err := New(t.Context(), &cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), name) || made() != 0 {
			t.Errorf("%s is wrong: %d folders are left after %v", name, made(), err)
		}
	}
}

func TestModelDirMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"nobody to run it":  {func(c *Config) { c.TritonServer = "" }, "need TRITON_SERVER"},
		"not there":         {func(c *Config) { c.ModelDir = "/nonexistent" }, `MODEL_DIR="/nonexistent"`},
		"nothing to serve":  {func(c *Config) { c.ModelDir = t.TempDir() }, "holds no checkpoint that a spec in MODEL_REPOSITORY="},
		"no specs":          {func(c *Config) { c.ModelRepository = t.TempDir() }, "holds no folder with a spec.yaml"},
		"pinged but absent": {func(c *Config) { c.PingMode = "h1,tissue-seg" }, `PING_MODE="h1,tissue-seg": "tissue-seg" is neither all nor any nor among the models`},
	} {
		cfg := checkpointConfig(t)
		test.change(cfg)
		if _, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v does not say %q", name, err, test.want)
		}
	}
	_, err := read([]string{"-batch-max-size", "0", "-target-sm", "x"}, map[string]string{"BATCH_MAX_WAIT_MS": "NaN"})
	for _, want := range []string{`-batch-max-size="0"`, `-target-sm="x"`, `BATCH_MAX_WAIT_MS="NaN"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported in %v", want, err)
		}
	}
}

// Batches that are set become those of a repository without checkpoints, too.
func TestBatchesOfARepository(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	from := repository(t, testSpec, testConfig)
	cfg, err := read([]string{"-model-repository", from, "-triton-server", "/bin/false", "-batch-max-size", "9", "-batch-max-wait-ms", "0.25"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	config, err := tritonclient.ReadModelConfig(filepath.Join(g.cfg.ModelRepository, "small", "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	if b := g.models.byName["tiny"].spec.Batching; b.MaxBatchSize != 9 || b.MaxQueueDelayMS != 0.25 || config.MaxBatchSize != 9 {
		t.Errorf("the spec's batching is %+v, Triton's %v", b, config)
	}
	cfg.TritonServer = ""
	if _, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "need TRITON_SERVER") {
		t.Errorf("batches of somebody else's Triton: %v", err)
	}
}

func TestReadiness(t *testing.T) {
	cfg := checkpointConfig(t)
	g, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h1 := g.models.byName["h1"].health
	for _, test := range []struct {
		up    bool
		mode  string
		names string // of the models that keep the service from being ready
	}{
		{false, "all", "h1 m-optimus"}, {false, "any", "h1 m-optimus"}, {false, "h1", "h1"}, {false, "m-optimus-stx, m-optimus", "m-optimus"},
		{true, "all", "m-optimus"}, {true, "any", ""}, {true, "h1", ""}, {true, "h1, m-optimus", "m-optimus"},
	} {
		if test.up {
			h1.up()
		}
		var names []string
		ready, err := g.models.readiness(test.mode)
		if err != nil {
			t.Fatal(err)
		}
		for _, reason := range ready.missing() {
			name, why, _ := strings.Cut(reason, ": ")
			if names = append(names, name); why == "" {
				t.Errorf("%s does not say why", reason)
			}
		}
		if !slices.Equal(names, strings.Fields(test.names)) {
			t.Errorf("PING_MODE=%s, h1 up %t: %v, not %s", test.mode, test.up, names, test.names)
		}
	}
}

// A model may be called as a PING_MODE is: asked for by its name it is that model.
func TestPingOfAModelCalledAny(t *testing.T) {
	r := run(t, nil)
	broken := *r.models.list[0]
	broken.spec, broken.health = new(*broken.spec), new(health)
	broken.spec.Name = "any"
	broken.health.trouble.Store(&trouble{reason: "it is broken"})
	r.models.byName["any"] = &broken
	for query, status := range map[string]int{"": http.StatusOK, "?model=small": http.StatusOK, "?model=any": http.StatusServiceUnavailable} {
		if a := do(t, r.request(t, http.MethodGet, "/ping"+query, "")); a.status != status {
			t.Errorf("%s: %d %s", query, a.status, a.raw)
		}
	}
}
