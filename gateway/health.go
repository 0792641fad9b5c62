package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"histogate/prep"
	"histogate/tritonclient"
)

const (
	canaryEvery   = time.Second // of a model that nobody asks anything
	pulseEvery    = 100 * time.Millisecond
	loadTimeout   = 2 * time.Minute // weights are read from a disk, perhaps a slow one
	unloadTimeout = 5 * time.Second
	retryMin      = 100 * time.Millisecond
	retryMax      = 2 * time.Second

	// A model whose process lives but that fails this many probes in a row, such
	// as after an error that sticks to its device, is loaded again.
	failuresToReload = 3
)

// health brings one model into service, keeps watch over it and knows whether
// it can be used. Readiness comes from what inference does, not from what Triton
// says of itself: a model whose process died stays ready for Triton.
type health struct {
	model   *model
	triton  *tritonclient.Client
	child   *child        // nil where something else runs Triton
	loading chan struct{} // shared by all models: who holds its one place may load
	metrics *metrics
	log     *slog.Logger

	trouble atomic.Pointer[trouble] // why the model cannot be used; nil when it can
	started time.Time
	success atomic.Int64  // when the latest inference succeeded, as a duration since started
	suspect chan struct{} // filled when an inference failed
	faults  atomic.Int64  // inferences that failed
	pulse   pulse
}

func newHealth(m *model, triton *tritonclient.Client, child *child, loading chan struct{}, metrics *metrics, log *slog.Logger) *health {
	h := &health{model: m, triton: triton, child: child, loading: loading, metrics: metrics, log: log.With("model", m.spec.Name), suspect: make(chan struct{}, 1), started: time.Now()}
	h.down(trouble{reason: "it is being loaded"})
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

// infer runs an inference and learns from how it ends. What the window lets inside
// is two batches, so the longest that a request can be there is those and its own;
// a model can lose a request and go on with others.
func (h *health) infer(ctx context.Context, r *tritonclient.InferRequest) (*tritonclient.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*h.model.spec.Batching.ExecuteLimit())
	defer cancel()
	h.pulse.entered()
	answer, err := h.triton.Infer(ctx, r)
	h.pulse.left(ctx.Err() == nil)
	h.observe(err)
	return answer, err
}

// observe is told how each inference ended.
func (h *health) observe(err error) {
	if err == nil {
		h.success.Store(int64(time.Since(h.started)))
		return
	}
	kind := kindOf(err)
	if !isIll(kind) {
		return
	}
	h.faults.Add(1)
	// Whoever comes next shall wait, rather than fail in the same way, until a
	// probe has told whether it was that batch alone.
	if isAbsent(kind) {
		h.down(explain(err))
	} else {
		h.model.window.open(false)
	}
	select {
	case h.suspect <- struct{}{}:
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

// run loads the model, watches it, and does so again when it fails, until the
// context ends. It returns an error only where trying again is of no use: the
// model was never in service, and its contract is not the one that Triton has.
func (h *health) run(ctx context.Context) error {
	if h.model.broken != "" {
		return nil // nothing can be loaded; the others are served
	}
	served, retry, failures := false, retryMin, 0
	for ctx.Err() == nil {
		err := h.bringUp(ctx)
		if contract := (*contractError)(nil); errors.As(err, &contract) && !served {
			return err
		}
		if err == nil {
			h.log.Info("model is ready")
			h.up()
			served, retry, failures = true, retryMin, 0
			err = h.watch(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		h.report(err, served)
		switch kind := kindOf(err); {
		case errors.Is(err, errHung):
			h.unload(ctx, "it hangs")
		case kind == tritonclient.BackendDead:
			h.unload(ctx, "its process is gone")
		case kind == tritonclient.ExecuteFailed:
			if failures++; failures%failuresToReload == 0 {
				h.unload(ctx, "it fails on every batch")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, retryMax)
	}
	return nil //nolint:nilerr // to be told to stop is no failure
}

// report puts the model out of service, and says so once, not at each attempt.
func (h *health) report(err error, served bool) {
	now := explain(err)
	if before := h.trouble.Load(); before == nil || *before != now {
		level := slog.LevelInfo // at a start it is only a matter of time
		switch {
		case now.lasting:
			level = slog.LevelError
		case served, h.child == nil:
			level = slog.LevelWarn
		}
		h.log.Log(context.Background(), level, "model is not ready", "reason", now.reason, "error", err)
	}
	h.down(now)
}

// unload has the next attempt load the model afresh. A load alone does nothing
// for a model that Triton takes to be loaded.
func (h *health) unload(ctx context.Context, cause string) {
	h.log.Warn("loading the model again", "cause", cause)
	h.metrics.reloads.WithLabelValues(h.model.spec.Name, cause).Inc()
	ctx, cancel := context.WithTimeout(ctx, unloadTimeout)
	defer cancel()
	old := h.child.backends(h.model.spec.Name)
	if err := h.triton.UnloadModel(ctx, h.model.spec.Name); err != nil {
		h.log.Warn("the model could not be unloaded", "error", err)
	}
	// One that hangs would keep its memory, and the requests inside it.
	killAll(old)
}

// explain says in plain words, fit for any caller, why a model is not ready.
func explain(err error) trouble {
	if errors.Is(err, errHung) {
		return trouble{"it does not answer", false}
	}
	failure, ok := errors.AsType[*tritonclient.Error](err)
	if !ok {
		return trouble{"its configuration in Triton contradicts its spec", true}
	}
	switch {
	case failure.Kind == tritonclient.Unavailable:
		return trouble{"the inference server is starting or cannot be reached", false}
	case failure.Kind == tritonclient.BackendDead, failure.Kind == tritonclient.NotFound:
		return trouble{"it is being loaded again", false}
	case failure.Op == "RepositoryModelLoad":
		return trouble{"the inference server cannot load it", true}
	case failure.Kind == tritonclient.BadOutput, failure.Kind == tritonclient.Rejected:
		return trouble{"what it takes or answers is not what its spec says", true}
	case failure.Kind == tritonclient.DeadlineExceeded, failure.Kind == tritonclient.Canceled:
		return trouble{"it does not answer", false}
	default:
		return trouble{"it fails on every batch", false}
	}
}

// bringUp has Triton load the model, holds what it says of it against the spec
// and makes it answer.
func (h *health) bringUp(ctx context.Context) error {
	name := h.model.spec.Name
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	loaded, err := h.triton.ModelReady(ctx, name)
	if err != nil {
		return err
	}
	if !loaded {
		if err := h.load(ctx); err != nil {
			return err
		}
	}
	metadata, err := h.triton.ModelMetadata(ctx, name)
	if err != nil {
		return err
	}
	config, err := h.triton.ModelConfig(ctx, name)
	if err != nil {
		return err
	}
	if err := errors.Join(
		checkMetadata(h.model.spec, metadata),
		checkConfig(h.model.spec, config, "Triton's configuration of the model"),
	); err != nil {
		return err
	}
	h.triton.ShareMemory(ctx, tritonclient.SharedInputs{
		Model: name, Inputs: h.model.inputs, Requests: places(h.model.config), Settle: 3 * h.model.spec.Batching.ExecuteLimit(),
	})
	if err := h.canary(ctx); err != nil && isIll(kindOf(err)) {
		return err // else it is busy, so it works
	}
	server, err := h.triton.ServerMetadata(ctx)
	if err != nil {
		return err
	}
	h.metrics.connected(server.Version)
	return nil
}

// load has Triton load the model, one model at a time: on a machine that is busy
// a Triton that starts several backends at once was seen to abort.
func (h *health) load(ctx context.Context) error {
	select {
	case h.loading <- struct{}{}:
		defer func() { <-h.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return h.triton.LoadModel(ctx, h.model.spec.Name)
}

// watch returns when the model does not answer a probe. It probes a model that
// failed or was idle, and leaves one alone that answers its callers.
func (h *health) watch(ctx context.Context) error {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.suspect:
		case <-tick.C:
			if h.pulse.silence() > h.model.spec.Batching.ExecuteLimit() {
				return errHung
			}
			if time.Since(h.started)-time.Duration(h.success.Load()) < canaryEvery || h.pulse.busy() {
				continue // what is inside will tell
			}
		}
		before := h.faults.Load()
		if err := h.canary(ctx); err != nil && isIll(kindOf(err)) {
			return err
		}
		if h.faults.Load() == before { // else that answer is older than a failure, and is asked for again
			h.up() // it answered, or was too busy to
		}
	}
}

// canary runs one inference on zeros, for every output of the model. One that is
// not answered within the limit of a batch, with nothing else in its way, hangs.
func (h *health) canary(ctx context.Context) error {
	probe, cancel := context.WithTimeout(ctx, h.model.spec.Batching.ExecuteLimit())
	defer cancel()
	var roles []prep.Role
	for _, out := range h.model.spec.Outputs {
		roles = append(roles, out.Role)
	}
	h.pulse.entered()
	answer, err := h.triton.Infer(probe, &tritonclient.InferRequest{
		Model:   h.model.spec.Name,
		ID:      "canary",
		Inputs:  h.model.inputs,
		Write:   func(_ int, dst []byte) { clear(dst) },
		Outputs: h.model.outputs(roles),
	})
	h.pulse.left(probe.Err() == nil)
	if err == nil {
		for i, output := range answer.Outputs {
			// What callers would be refused must not count as an answer here.
			if wrong := h.model.spec.Outputs[i].Transform(output.Data); wrong != nil {
				err = &tritonclient.Error{Op: "ModelInfer", Model: h.model.spec.Name, Kind: tritonclient.BadOutput, Sent: true, Detail: wrong.Error()}
			}
		}
		answer.Release()
	}
	if ctx.Err() == nil && probe.Err() != nil && !h.pulse.busy() {
		err = errHung
	}
	result := "ok"
	if err != nil {
		result = "failed"
	} else {
		h.success.Store(int64(time.Since(h.started)))
	}
	h.metrics.canaries.WithLabelValues(h.model.spec.Name, result).Inc()
	return err
}
