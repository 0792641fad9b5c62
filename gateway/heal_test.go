package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/prep"
	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// inferFunc is how a fake model answers.
type inferFunc = func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error)

// answerAll has the fake answer every inference, probes too.
func (r *running) answerAll(infer inferFunc) {
	r.triton.Update(func(s *tritontest.Server) {
		m := *s.Models["small"]
		m.Infer = infer
		s.Models["small"] = &m
	})
}

// notFinite spoils an answer.
func notFinite(answer *kserve.ModelInferResponse, value float64) *kserve.ModelInferResponse {
	bits := math.Float32bits(float32(value))
	copy(answer.RawOutputContents[0][4:], []byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
	return answer
}

// After each load a model answers a batch of one and a full one before it counts as
// ready, and afterwards only what it is asked.
func TestWarmUp(t *testing.T) {
	var mu sync.Mutex
	var rows []int64
	var fullFails, ready atomic.Bool
	fullFails.Store(true)
	r := launch(t, testSpec, testConfig, nil, func(s *tritontest.Server) {
		m := s.Models["small"]
		m.Infer = func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			n := q.Inputs[0].Shape[0]
			if n > 1 && fullFails.Load() {
				return nil, status.Error(codes.Internal, "out of memory")
			}
			if !ready.Load() {
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, n)
			}
			return tritontest.Zeros(m.Config, q), nil
		}
	})
	for !strings.Contains(r.log.String(), "a batch of 4") {
		time.Sleep(time.Millisecond)
	}
	if a := do(t, r.request(t, http.MethodGet, "/ping", "")); a.status != http.StatusServiceUnavailable {
		t.Errorf("/ping says %d of a model that fails on a full batch", a.status)
	}
	mu.Lock()
	rows = nil
	mu.Unlock()
	fullFails.Store(false)
	r.await(t, http.StatusOK)
	ready.Store(true)
	mu.Lock()
	defer mu.Unlock()
	// The attempt before may have asked for one row just before the list was emptied.
	if got := rows[len(rows)-2:]; !slices.Equal(got, []int64{1, 4}) || len(rows) > 3 {
		t.Errorf("ready after batches of %v", rows)
	}
}

// A full batch that would be too large for a message is as large as it may be.
func TestFullBatch(t *testing.T) {
	for name, test := range map[string]struct {
		change *strings.Replacer
		rows   int
	}{
		"full":          {strings.NewReplacer(), 4},
		"large inputs":  {strings.NewReplacer("max_batch_size: 4", "max_batch_size: 1024", "width: 8, height: 8", "width: 512, height: 512", "[3, 8, 8]", "[3, 512, 512]"), 85},
		"large outputs": {strings.NewReplacer("max_batch_size: 4", "max_batch_size: 1024", "shape: [3]}", "shape: [16777216]}"), 4},
		"one as large":  {strings.NewReplacer("shape: [3]}", "shape: [67108864]}"), 1},
	} {
		spec, err := prep.ParseSpec([]byte(test.change.Replace(testSpec)))
		if err != nil {
			t.Fatal(err)
		}
		if rows := (&health{model: &model{spec: spec}}).fullBatch(); rows != test.rows {
			t.Errorf("%s: %d rows, not %d", name, rows, test.rows)
		}
	}
}

// A model of which every answer is useless is no more ready than one that fails, and
// is loaded again; one such answer among good ones is its caller's alone.
func TestNonFiniteAnswersAndReadiness(t *testing.T) {
	r := run(t, nil)
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return notFinite(tritontest.Zeros(r.config, q), math.NaN()), nil
	})
	for range 2 * failuresToDoubt {
		wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeForwardFailed)
	}
	if a := do(t, r.request(t, http.MethodGet, "/ping", "")); a.status != http.StatusOK {
		t.Errorf("/ping says %d while a probe is answered well: %s", a.status, a.raw)
	}
	r.answerAll(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return tritontest.Zeros(r.config, q), nil
	})
	if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
		t.Errorf("after a probe was answered well: %d %s", a.status, a.raw)
	}
	r.answerAll(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		answer := tritontest.Zeros(r.config, q)
		if r.triton.Unloads("small") == 0 {
			return notFinite(answer, math.Inf(1)), nil
		}
		return answer, nil
	})
	for range failuresToDoubt {
		wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeForwardFailed)
	}
	if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
		t.Errorf("a request that waited while the model was loaded again: %d %s", a.status, a.raw)
	}
	if n := testutil.ToFloat64(r.metrics.reloads.WithLabelValues("small", "it fails on every batch")); n != 1 {
		t.Errorf("%v reloads counted", n)
	}
}

// What somebody else's Triton does not do is reported: in the log, in the metrics and
// by /ping.
func TestUnloadFails(t *testing.T) {
	for cause, failure := range map[string]error{
		"a model's unload does not come back": status.Error(codes.Internal, inside),
		"it does not load models on request":  status.Error(codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled"),
	} {
		t.Run(cause, func(t *testing.T) { unloadFails(t, cause, failure) })
	}
}

func unloadFails(t *testing.T, cause string, failure error) {
	r := run(t, nil)
	var dead atomic.Bool
	dead.Store(true)
	r.triton.Update(func(s *tritontest.Server) {
		m := *s.Models["small"]
		m.UnloadError = failure
		m.Infer = func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			if dead.Load() {
				return nil, status.Error(codes.Internal, "Stub process 'small_0_0' is not healthy.")
			}
			return tritontest.Zeros(m.Config, q), nil
		}
		s.Models["small"] = &m
	})
	wantFailure(t, r.post(t, "/invocations", goodTile), http.StatusServiceUnavailable, CodeForwardFailed)
	r.awaitLog(t, "by whoever runs it", 1)
	for range 3 {
		a := do(t, r.request(t, http.MethodGet, "/ping", ""))
		wantFailure(t, a, http.StatusServiceUnavailable, CodeBackendUnavailable, "the inference server has to be started again")
		time.Sleep(50 * time.Millisecond)
	}
	if n := testutil.ToFloat64(r.metrics.tritonEnds.WithLabelValues(cause)); n < 1 {
		t.Error("it is not counted")
	}
	dead.Store(false)
	r.await(t, http.StatusOK)
}

// awaitLog waits until the log holds a text a number of times.
func (r *running) awaitLog(t *testing.T, text string, times int) {
	t.Helper()
	for began := time.Now(); strings.Count(r.log.String(), text) < times; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("the log does not hold %q %d times:\n%s", text, times, r.log)
		}
	}
}

// A server that ends now and then is started again at once, one that ends again and
// again is held back, and given up in the end.
func TestRestarts(t *testing.T) {
	type end struct {
		after time.Duration // since the end before
		live  bool
		wait  time.Duration
		ok    bool
	}
	for name, test := range map[string]struct {
		limit int
		ends  []end
	}{
		"three 5 s apart": {10, slices.Repeat([]end{{5 * time.Second, true, 250 * time.Millisecond, true}}, 3)},
		"again and again": {8, []end{
			{0, true, 250 * time.Millisecond, true}, {time.Second, true, 250 * time.Millisecond, true}, {time.Second, true, 250 * time.Millisecond, true},
			{time.Second, true, 250 * time.Millisecond, true}, {time.Second, true, 250 * time.Millisecond, true},
			{time.Second, true, 500 * time.Millisecond, true}, {time.Second, true, time.Second, true}, {time.Second, true, 2 * time.Second, true},
			{time.Second, true, 4 * time.Second, false},
		}},
		"for ever, but seldom": {10, slices.Repeat([]end{{3 * time.Minute, true, 250 * time.Millisecond, true}}, 100)},
		"slow to fail":         {1, []end{{time.Hour, true, 250 * time.Millisecond, true}, {time.Hour, false, 250 * time.Millisecond, false}}},
		"none allowed":         {0, []end{{0, true, 250 * time.Millisecond, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := restarts{atOnce: restartsAtOnce, soonest: restartWaitMin}, time.Now()
			for i, e := range test.ends {
				now = now.Add(e.after)
				if wait, ends := r.next(now, e.live); wait != e.wait || ends <= test.limit != e.ok {
					t.Errorf("end %d: wait %s, the %dth; want %s, %t", i, wait, ends, e.wait, e.ok)
				}
			}
		})
	}
}

// A model's constants are part of a probe: one that refuses zeros there is not ill.
func TestProbesSendConstants(t *testing.T) {
	spec := strings.Replace(testSpec, "inputs: [", "inputs: [{name: group, source: constant, value: 3, dtype: int64, shape: [1]}, ", 1)
	config := strings.Replace(testConfig, "input [", `input [ { name: "group", data_type: TYPE_INT64, dims: [ 1 ] } ] input [`, 1)
	r := launch(t, spec, config, nil, func(s *tritontest.Server) {
		m := s.Models["small"]
		m.Infer = func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			for group := range slices.Chunk(q.RawInputContents[0], 8) {
				if !bytes.Equal(group, []byte{3, 0, 0, 0, 0, 0, 0, 0}) {
					return nil, status.Error(codes.Internal, inside)
				}
			}
			return tritontest.Zeros(m.Config, q), nil
		}
	})
	r.await(t, http.StatusOK)
	if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

// A Triton that loads no models on request could not be brought back from anything:
// that is said at the start.
func TestTritonThatTakesNoOrders(t *testing.T) {
	r := launch(t, testSpec, testConfig, nil, func(s *tritontest.Server) { s.Fixed = true })
	select {
	case err := <-r.ended:
		if err == nil || !strings.Contains(err.Error(), "start Triton with --model-control-mode=explicit") {
			t.Errorf("ended with %v", err)
		}
		r.ended <- nil // for the clean-up
	case <-time.After(10 * time.Second):
		t.Error("it serves")
	}
}

// A load that hangs keeps no other model from being loaded, and is not taken for a Triton
// that is not there.
func TestLoadThatHangsKeepsNobodyElse(t *testing.T) {
	spec, err := prep.ParseSpec([]byte(testSpec))
	if err != nil {
		t.Fatal(err)
	}
	fake := fakeTriton(t, repository(t, testSpec, testConfig))
	began := make(chan struct{}, 1)
	fake.Models["hangs"] = &tritontest.Model{Load: func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	client, err := tritonclient.New(fake.Start(t), tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	turn := make(chan struct{}, 1)
	healthOf := func(name string) *health {
		named := *spec
		named.Name = name
		h := newHealth(&model{spec: &named, window: newWindow(1)}, client, nil, turn, time.Minute, newMetrics(nil, newAdmission(1, 1, 1)), slog.New(slog.DiscardHandler))
		h.down(unreachable)
		return h
	}
	ctx, cancel := context.WithTimeout(t.Context(), loadTurn+2*time.Second)
	defer cancel()
	hanging := healthOf("hangs")
	go func() { _, _ = hanging.load(ctx) }() // until the test ends
	<-began
	if now := *hanging.trouble.Load(); now != beingLoaded {
		t.Errorf("while it loads: %+v", now)
	}
	if _, err := healthOf("small").load(ctx); err != nil {
		t.Error(err)
	}
}

// smallAlone is a configuration of the tests' model alone, and the model.
func smallAlone(t *testing.T) (*Config, *model) {
	t.Helper()
	folder := repository(t, testSpec, testConfig)
	cfg, err := ReadConfig([]string{"-model-repository", folder}, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	served, err := readModels(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, served.list[0]
}

// The processes of a model that was loaded already, by a Triton that is ours, are
// known too.
func TestProcessesOfALoadedModel(t *testing.T) {
	cfg, m := smallAlone(t)
	fake := fakeTriton(t, cfg.ModelRepository)
	fake.Fixed = true
	client, err := tritonclient.New(fake.Start(t), tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	backend := exec.Command("sh", "-c", "read line", filepath.Join(cfg.ModelRepository, "small", "1"))
	stdin, err := backend.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = backend.Wait() // its status tells nothing
	}()
	h := newHealth(m, client, &child{cfg: cfg, pid: os.Getpid()}, make(chan struct{}, 1), time.Minute, newMetrics(nil, newAdmission(1, 1, 1)), slog.New(slog.DiscardHandler))
	m.health = h
	if err := h.bringUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := h.life.Load().processes; !slices.Equal(got, []int{backend.Process.Pid}) {
		t.Errorf("processes %v, want %d", got, backend.Process.Pid)
	}
}

// That a model cannot be loaded while the gateway's own Triton is being started is not
// worth a line, and less one that tells of an error.
func TestStartOfTritonIsNoNews(t *testing.T) {
	cfg, m := smallAlone(t)
	c := &child{cfg: cfg}
	client, err := tritonclient.New(cfg.TritonAddress, tritonclient.Options{Dial: c.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var log lockedBuffer
	h := newHealth(m, client, c, make(chan struct{}, 1), time.Minute, newMetrics(nil, newAdmission(1, 1, 1)), slog.New(slog.NewJSONHandler(&log, nil)))
	m.health = h
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	until(t, "it was tried", func() bool { return strings.Contains(h.trouble.Load().reason, "starting") })
	c.setAddress(fakeTriton(t, cfg.ModelRepository).Start(t))
	client.Reconnect()
	until(t, "it is ready", func() bool { return h.trouble.Load() == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "model is ready") || strings.Contains(text, "not ready") || strings.Contains(text, "error") {
		t.Errorf("the log is %s", text)
	}
}

// A Triton that is being started cannot be killed, which is not the one try to have it
// started again.
func TestRestartOfATritonThatIsStarting(t *testing.T) {
	h := &health{child: &child{}, log: slog.New(slog.DiscardHandler)}
	var o outage
	if h.restartTriton(&o, "a test", nil) || o.restart {
		t.Error("a server that is not live was killed")
	}
}
