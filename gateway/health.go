package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"histogate/prep"
	"histogate/tritonclient"
)

// health knows whether one model can be used, and brings it into service and back
// (heal.go). Readiness comes from what inference does, not from what Triton says of
// itself: a model whose process died stays ready for Triton.
type health struct {
	model       *model
	triton      *tritonclient.Client
	child       *child        // nil where something else runs Triton
	loading     chan struct{} // shared by all models: who holds its one place may load
	loadTimeout time.Duration
	metrics     *metrics
	log         *slog.Logger
	reloads     restarts // belongs to run

	trouble atomic.Pointer[trouble] // why the model cannot be used; nil when it can
	life    atomic.Pointer[life]
}

func newHealth(m *model, triton *tritonclient.Client, child *child, loading chan struct{}, loadTimeout time.Duration, metrics *metrics, log *slog.Logger) *health {
	h := &health{model: m, triton: triton, child: child, loading: loading, loadTimeout: loadTimeout, metrics: metrics, log: log.With("model", m.spec.Name)}
	h.reloads = restarts{atOnce: reloadsAtOnce, soonest: retryMin}
	h.life.Store(newLife())
	h.down(beingLoaded)
	if m.broken != "" {
		h.down(trouble{reason: m.broken, lasting: true})
	}
	return h
}

// trouble is why a model cannot be used.
type trouble struct {
	reason string // in words for a caller
	// lasting tells that somebody has to mend something first, so that it is of
	// no use to wait.
	lasting bool
}

var (
	beingLoaded = trouble{reason: "it is being loaded"}
	unreachable = trouble{reason: "the inference server is starting or cannot be reached"}
)

// life is a model's time from one load to the next, its generation. What becomes of a request that
// was sent in an earlier one tells nothing of this one.
type life struct {
	pulse   pulse
	began   time.Time
	success atomic.Int64 // when the latest inference succeeded, as a duration since began
	failed  atomic.Int64 // requests of callers in a row: none was served since, nor a full batch of ours
	suspect chan error   // holds how an inference failed, for whoever watches
	// givenUp ends when nobody waits any more for what is inside.
	givenUp context.Context
	giveUp  context.CancelFunc
	// What follows belongs to the goroutine that watches.
	warm      bool      // it has answered a batch of one and a full one
	full      time.Time // when a full batch was last sent to find out whether it still does
	processes []int     // that run the model's backend, where Triton is ours
}

func newLife() *life {
	l := &life{began: time.Now(), suspect: make(chan error, 1)}
	l.givenUp, l.giveUp = context.WithCancel(context.Background())
	return l
}

func (l *life) succeeded() { l.success.Store(int64(time.Since(l.began))) }

// sinceSuccess is how long nothing has succeeded.
func (l *life) sinceSuccess() time.Duration {
	return time.Since(l.began) - time.Duration(l.success.Load())
}

// down keeps requests waiting in the model's window.
func (h *health) down(t trouble) {
	h.trouble.Store(&t)
	h.model.window.open(false)
	h.metrics.ready.WithLabelValues(h.model.spec.Name).Set(0)
}

func (h *health) up() {
	h.trouble.Store(nil)
	h.model.window.open(true)
	h.metrics.ready.WithLabelValues(h.model.spec.Name).Set(1)
}

// infer runs an inference of a caller's and learns from how it ends. It ends with the
// model's life: what hangs inside would else keep the places of those who come after.
func (h *health) infer(ctx context.Context, id string, write func(i int, dst []byte), roles []prep.Role) (*tritonclient.Answer, error) {
	l, limit := h.life.Load(), h.model.spec.Batching.ExecuteLimit()
	// What the window lets inside is two batches, so the longest that a request can be
	// there is those and its own. That holds as Triton fills its batches while it has
	// enough to fill them with.
	ctx, cancel := context.WithTimeout(ctx, 3*limit)
	defer cancel()
	defer context.AfterFunc(l.givenUp, cancel)()
	began, before := time.Now(), l.pulse.answered()
	answer, err := h.forward(ctx, l, id, write, 1, roles)
	if kindOf(err) == tritonclient.DeadlineExceeded && time.Since(began) > limit && l.pulse.answered()-before > 2*h.model.window.size() {
		err = fmt.Errorf("%w: %w", errLost, err)
	}
	h.observe(l, err)
	return answer, err
}

// errLost is a request that others overtook, more of them than Triton can have had
// before it, and that was not answered in the time that a batch may take: one of the
// model's instances hangs, or gave no answer. Others go on, so nothing else shows it.
var errLost = errors.New("a request was lost inside Triton while others were answered")

// errNotFinite is an answer that holds something that is no number. It can be the
// doing of one row of a batch.
var errNotFinite = errors.New("the model's answer is not finite")

// forward runs the model on a number of rows, whose inputs write writes, and makes of
// what it gives what clients are given.
func (h *health) forward(ctx context.Context, l *life, id string, write func(i int, dst []byte), rows int, roles []prep.Role) (*tritonclient.Answer, error) {
	l.pulse.entered()
	answer, err := h.triton.Infer(ctx, &tritonclient.InferRequest{
		Model:   h.model.spec.Name,
		ID:      id,
		Inputs:  h.model.inputs(rows),
		Write:   write,
		Outputs: h.model.outputs(roles, rows),
	})
	l.pulse.left(ctx.Err() == nil)
	if err != nil {
		return nil, err
	}
	for i, role := range roles {
		output, _ := h.model.spec.Output(role) // a checked spec has it
		data := answer.Outputs[i].Data
		size := len(data) / rows
		for row := range rows {
			if err := output.Transform(data[row*size : (row+1)*size]); err != nil {
				answer.Release()
				return nil, fmt.Errorf("%w: %w", errNotFinite,
					&tritonclient.Error{Op: "ModelInfer", Model: h.model.spec.Name, Kind: tritonclient.BadOutput, Sent: true, Detail: err.Error()})
			}
		}
	}
	return answer, nil
}

// observe is told how each inference of a caller's ended.
func (h *health) observe(l *life, err error) {
	kind := kindOf(err)
	switch {
	case err == nil:
		l.succeeded()
		l.failed.Store(0)
		return
	case l != h.life.Load(), !isIll(kind) && !errors.Is(err, errLost):
		return
	case l.failed.Add(1)%failuresToDoubt != 0 && errors.Is(err, errNotFinite):
		return // it may be that caller's tile
	}
	// Whoever comes next shall wait, rather than fail in the same way, until a
	// probe has told whether it was that batch alone.
	if isAbsent(kind) {
		h.down(explain(err))
	} else {
		h.model.window.open(false)
	}
	select {
	case l.suspect <- err:
	default: // already known
	}
}

// kindOf is the kind of a Triton failure, 0 for any other error.
func kindOf(err error) tritonclient.Kind {
	if failure, ok := errors.AsType[*tritonclient.Error](err); ok {
		return failure.Kind
	}
	return 0
}

// isIll tells a failure of the model or of Triton from mere load.
func isIll(kind tritonclient.Kind) bool {
	switch kind {
	case tritonclient.QueueFull, tritonclient.QueueTimeout, tritonclient.Canceled, tritonclient.DeadlineExceeded:
		return false
	default:
		return true
	}
}

// isAbsent tells of a failure that every request will meet until it is mended:
// there is no Triton, no model, or no process of the model.
func isAbsent(kind tritonclient.Kind) bool {
	switch kind {
	case tritonclient.Unavailable, tritonclient.NotFound, tritonclient.BackendDead:
		return true
	default:
		return false
	}
}

// explain says in plain words, fit for any caller, why a model is not ready.
func explain(err error) trouble {
	switch {
	case errors.Is(err, errHung):
		return trouble{"it does not answer", false}
	case errors.Is(err, errGone):
		return trouble{"it is being loaded again", false}
	case errors.Is(err, errNotFinite):
		return trouble{"it answers with values that are no numbers", false}
	}
	failure, ok := errors.AsType[*tritonclient.Error](err)
	if !ok {
		return trouble{"its configuration in Triton contradicts its spec", true}
	}
	switch {
	case failure.Kind == tritonclient.NoModelControl:
		return trouble{"the inference server does not load models on request", true}
	case failure.Kind == tritonclient.Unavailable:
		return unreachable
	case errors.Is(err, errLoading) && isIll(failure.Kind):
		return trouble{"the inference server cannot load it", true}
	case errors.Is(err, errLoading):
		return trouble{"it takes long to load", false}
	case failure.Kind == tritonclient.BackendDead, failure.Kind == tritonclient.NotFound:
		return trouble{"it is being loaded again", false}
	case failure.Kind == tritonclient.DeadlineExceeded, failure.Kind == tritonclient.Canceled:
		return trouble{"it does not answer", false}
	case failure.Kind == tritonclient.BadOutput, failure.Kind == tritonclient.Rejected:
		return trouble{"what it takes or answers is not what its spec says", true}
	default:
		return trouble{"it fails on every batch", false}
	}
}
