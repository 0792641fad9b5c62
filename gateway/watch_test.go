package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// quickSpec is a model whose batches take no longer than 300 ms.
var quickSpec = strings.Replace(testSpec, "batching: {", "batching: {execute_limit_ms: 300, ", 1)

// ask has callers send a request again and again until the context ends, and counts
// the codes of the answers; none for a success.
func (r *running) ask(ctx context.Context, t *testing.T, callers int, body string) (wait func() map[Code]int) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	codes := map[Code]int{}
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				a := r.post(t, "/invocations", body)
				mu.Lock()
				codes[a.Code]++
				mu.Unlock()
			}
		})
	}
	return func() map[Code]int {
		all.Wait()
		return codes
	}
}

// watchPing counts how often /ping says no, until the context ends.
func (r *running) watchPing(ctx context.Context, t *testing.T) (refusals func() int) {
	t.Helper()
	var all sync.WaitGroup
	no := 0
	all.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
			if a := do(t, r.request(t, http.MethodGet, "/ping", "")); a.status != http.StatusOK {
				no++
			}
		}
	})
	return func() int {
		all.Wait()
		return no
	}
}

// Requests inside a model that hangs are given up when it is loaded again: they would
// keep the places of those who wait, where its process is not ours to kill.
func TestHangGivesItsPlacesBack(t *testing.T) {
	const callers, places = 12, 8
	r := launch(t, quickSpec, testConfig, func(c *Config) { c.RequestTimeout = 5 * time.Second }, nil)
	r.await(t, http.StatusOK)
	r.answerCallers(func(ctx context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		if r.triton.Unloads("small") == 0 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return tritontest.Zeros(r.config, q), nil
	})
	began := time.Now()
	answers := make(chan answered, callers)
	for range callers {
		go func() { answers <- r.post(t, "/invocations", goodTile) }()
	}
	codes := map[Code]int{}
	for range callers {
		codes[(<-answers).Code]++
	}
	if took := time.Since(began); took > 2*time.Second || codes[CodeBackendUnavailable] != places || codes[""] != callers-places {
		t.Errorf("after %s: %v, want %d served and %d told that the model is unavailable", took, codes, callers-places, places)
	}
}

// A model that fails on batches of more than one row is out of service until it is
// loaded again, though it answers a probe of one.
func TestFailsOnFullBatchesAlone(t *testing.T) {
	r := run(t, nil)
	r.answerAll(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		if r.triton.Unloads("small") == 0 && (q.Id != canaryID || q.Inputs[0].Shape[0] > 1) {
			return nil, status.Error(codes.Internal, "CUDA out of memory")
		}
		return tritontest.Zeros(r.config, q), nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := r.ask(ctx, t, 8, goodTile)
	r.await(t, http.StatusServiceUnavailable)
	r.await(t, http.StatusOK)
	cancel()
	codes := wait()
	if r.triton.Unloads("small") != 1 || codes[CodeForwardFailed] > 100 {
		t.Errorf("%d reloads, and callers were told %v", r.triton.Unloads("small"), codes)
	}
}

// One caller whose tiles fail, and the batches that they are in, takes no model out of
// service, however many of them there are.
func TestPoisonousCaller(t *testing.T) {
	picture := image.NewRGBA(image.Rect(0, 0, 8, 8))
	draw.Draw(picture, picture.Rect, image.White, image.Point{}, draw.Src)
	var buf bytes.Buffer
	if err := png.Encode(&buf, picture); err != nil {
		t.Fatal(err)
	}
	poison := fmt.Sprintf(`{"image_data":%q,"slide_name":"P","x":1,"y":2,"width":8,"height":8,"patch_idx":7,"model_name":"small","mode":"embedding"}`,
		base64.StdEncoding.EncodeToString(buf.Bytes()))
	for name, fail := range map[string]func(*kserve.ModelInferResponse) (*kserve.ModelInferResponse, error){
		"whose batches fail": func(*kserve.ModelInferResponse) (*kserve.ModelInferResponse, error) {
			return nil, status.Error(codes.Internal, inside)
		},
		"of NaN": func(answer *kserve.ModelInferResponse) (*kserve.ModelInferResponse, error) {
			return notFinite(answer, math.NaN()), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil)
			var poisoned, full atomic.Int64 // inside now; probes of a full batch
			r.answerAll(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				answer := tritontest.Zeros(r.config, q)
				bad := bytes.ContainsFunc(q.RawInputContents[0], func(r rune) bool { return r != 0 })
				if bad {
					poisoned.Add(1)
					defer poisoned.Add(-1)
				}
				time.Sleep(5 * time.Millisecond)
				switch {
				case bad:
					return fail(answer)
				case q.Inputs[0].Shape[0] > 1:
					full.Add(1)
				case q.Id == canaryID && poisoned.Load() > 0: // they share a batch
					return fail(answer)
				}
				return answer, nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			refusals := r.watchPing(ctx, t)
			bad, good := r.ask(ctx, t, 12, poison), r.ask(ctx, t, 2, goodTile)
			if codes := good(); len(codes) != 1 || codes[""] < 20 {
				t.Errorf("others were told %v", codes)
			}
			if codes := bad(); codes[CodeForwardFailed] < 100 || codes[""] > 0 {
				t.Errorf("the poisonous caller was told %v", codes)
			}
			if no := refusals(); no > 0 || r.triton.Unloads("small") > 0 {
				t.Errorf("/ping said no %d times, and the model was loaded again %d times", no, r.triton.Unloads("small"))
			}
			if n := full.Load(); n > 4 {
				t.Errorf("%d full batches in 3 s were asked for", n)
			}
		})
	}
}

// A request that one of several instances never answers, while others are answered, has
// the model loaded again, at no other caller's cost.
func TestLostRequest(t *testing.T) {
	r := launch(t, quickSpec, testConfig, nil, nil)
	r.await(t, http.StatusOK)
	var lost atomic.Bool
	r.answerCallers(func(ctx context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		if lost.CompareAndSwap(false, true) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		time.Sleep(10 * time.Millisecond)
		return tritontest.Zeros(r.config, q), nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := r.ask(ctx, t, 4, goodTile)
	r.awaitLog(t, "it lost a request", 1)
	r.await(t, http.StatusOK)
	time.Sleep(500 * time.Millisecond)
	cancel()
	if codes := wait(); codes[CodeBackendTimeout] != 1 || len(codes) != 2 || r.triton.Unloads("small") != 1 {
		t.Errorf("callers were told %v, and the model was loaded again %d times", codes, r.triton.Unloads("small"))
	}
}

// A model that ends with each batch of callers, though it answers every probe, is
// loaded again at longer and longer intervals.
func TestCrashLoopIsHeldBack(t *testing.T) {
	r := run(t, nil)
	r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Internal, "Stub process 'small_0_0' is not healthy.")
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := r.ask(ctx, t, 1, goodTile)
	r.awaitLog(t, `"in":"800ms"`, 1)
	cancel()
	if codes := wait(); codes[CodeForwardFailed] > reloadsAtOnce+4 {
		t.Errorf("a caller was told %v", codes)
	}
	if n := testutil.ToFloat64(r.metrics.reloads.WithLabelValues("small", "its process is gone")); n < reloadsAtOnce {
		t.Errorf("held back after %v reloads", n)
	}
}
