package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"histogate/tritonclient"
)

const (
	canaryEvery    = time.Second // of a model that nobody asks anything
	pulseEvery     = 100 * time.Millisecond
	controlTimeout = 5 * time.Second // of a question to Triton and of an unload, which it answers before it is done
	retryMin       = 100 * time.Millisecond
	retryMax       = 2 * time.Second

	// A model whose process lives but that fails this many probes in a row, such
	// as after an error that sticks to its device, is loaded again.
	failuresToReload = 3

	// A model of which so many answers in a row are not finite is probed. One that
	// failed so many callers in a row is probed with a full batch, in case it fails on
	// those alone.
	failuresToDoubt = 3

	// A model that was loaded again so often within restartWindow is held back.
	reloadsAtOnce = 20

	// For so long nobody else loads beside a model that is being loaded. A load that
	// hangs shall not keep the other models from being brought back.
	loadTurn = 5 * time.Second

	// The most that the batch of a warm-up takes of memory, on the way to Triton and
	// back. gRPC could carry 2 GiB.
	warmUpBytes = 256 << 20

	canaryID = "canary" // of what the gateway asks on its own account
)

// Why a model is loaded again, or a Triton started.
const (
	causeHung        = "it hangs"
	causeGone        = "its process is gone"
	causeLost        = "it lost a request"
	causeFails       = "it fails on every batch"
	causeEnded       = "it ended"
	causeSilent      = "it does not answer"
	causeLoadHangs   = "a model's load does not come back"
	causeUnloadHangs = "a model's unload does not come back"
	causeNoControl   = "it does not load models on request"
	causeStaysIll    = "a model stays ill when it is loaded again"
)

func reloadCauses() []string { return []string{causeHung, causeLost, causeGone, causeFails} }

func restartCauses() []string {
	return []string{causeEnded, causeSilent, causeLoadHangs, causeUnloadHangs, causeNoControl, causeStaysIll}
}

// What became of an inference of the gateway's own.
const (
	canaryOK     = "ok"
	canaryFailed = "failed"
)

func canaryResults() []string { return []string{canaryOK, canaryFailed} }

// errGone is the end of a process that ran a model.
var errGone = errors.New("a backend process has ended")

// outage is the attempts since a model was last in service.
type outage struct {
	failures int // in a row
	reloads  int
	hold     time.Duration // until the next attempt, after a reload
	restart  bool          // of Triton was asked for
	early    bool          // the latest attempt began before the child was live
}

// run loads the model, watches it, and does so again when it fails, until the
// context ends. It returns an error only where trying again is of no use: the
// model was never in service, and its contract is not the one that Triton has, or
// Triton does not load models on request, so that it could never be brought back.
func (h *health) run(ctx context.Context) error {
	if h.model.broken != "" {
		return nil // nothing can be loaded; the others are served
	}
	served, retry, now := false, retryMin, outage{}
	for ctx.Err() == nil {
		now.early = h.child.starting()
		err := h.bringUp(ctx)
		if err == nil && !served {
			err = h.checkControl(ctx)
		}
		if contract := (*contractError)(nil); errors.As(err, &contract) && !served {
			return err
		}
		if kindOf(err) == tritonclient.NoModelControl && !served {
			return fmt.Errorf("%w; start Triton with --model-control-mode=explicit", err)
		}
		if err == nil {
			h.up()
			served, retry, now = true, retryMin, outage{}
			err = h.watch(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		wait := retry
		if kindOf(err) == tritonclient.Unavailable {
			wait = retryMin // to ask costs nobody anything, and it may be back at any time
		} else {
			now.failures++
			retry = min(2*retry, retryMax)
		}
		h.report(err, served, &now)
		if h.mend(ctx, err, served, &now) && now.reloads <= 1 { // else it may be as ill again
			wait = retryMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(wait, now.hold)):
		}
		now.hold = 0
	}
	return nil //nolint:nilerr // to be told to stop is no failure
}

// report puts the model out of service, and says so once, not at each attempt.
func (h *health) report(err error, served bool, o *outage) {
	now := explain(err)
	switch {
	case o.restart && h.child == nil:
		now = trouble{"the inference server has to be started again by whoever runs it", false}
	case served && o.failures < failuresToReload:
		now.lasting = false // it may well be over soon
	}
	expected := !served && o.early && kindOf(err) == tritonclient.Unavailable // the child has its own lines
	if before := h.trouble.Load(); !expected && (before == nil || *before != now) {
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

// mend is the recovery: it does what may bring a model back that failed, beyond asking it again, and
// reports whether it did anything.
func (h *health) mend(ctx context.Context, err error, served bool, o *outage) bool {
	var cause string
	switch kind := kindOf(err); {
	case errors.Is(err, errHung):
		cause = causeHung
	case errors.Is(err, errLost):
		cause = causeLost
	case errors.Is(err, errGone), kind == tritonclient.BackendDead:
		cause = causeGone
	case errors.Is(err, errLoading): // there is nothing to unload
		return served && kind == tritonclient.DeadlineExceeded && h.restartTriton(o, causeLoadHangs, err)
	case isAbsent(kind):
		h.life.Store(newLife())
		return false
	case !isIll(kind) || o.failures%failuresToReload != 0:
		return false
	case kind == tritonclient.ExecuteFailed || served:
		cause = causeFails
	default:
		return false // it was made for another contract, and will be again
	}
	// What sticks to Triton itself is not cured by a load.
	if served && o.reloads > 0 && h.child != nil && h.restartTriton(o, causeStaysIll, err) {
		return true
	}
	o.reloads++
	return h.unload(ctx, o, cause)
}

// unload has the next attempt load the model afresh. A load alone does nothing
// for a model that Triton takes to be loaded.
func (h *health) unload(ctx context.Context, o *outage, cause string) bool {
	o.hold, _ = h.reloads.next(time.Now(), true)
	h.log.Warn("loading the model again", "cause", cause, "in", o.hold.String())
	h.metrics.reloads.WithLabelValues(h.model.spec.Name, cause).Inc()
	old := h.child.backends(h.model.spec.Name)
	asking, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err := h.triton.UnloadModel(asking, h.model.spec.Name)
	killAll(old) // one that hangs would keep its memory
	h.life.Swap(newLife()).giveUp()
	if err == nil || ctx.Err() != nil || kindOf(err) == tritonclient.Unavailable {
		return true
	}
	if kindOf(err) == tritonclient.NoModelControl {
		return h.restartTriton(o, causeNoControl, err)
	}
	return h.restartTriton(o, causeUnloadHangs, err)
}

// restartTriton ends a Triton that cannot bring a model back, to be started again,
// and reports whether it did: once an outage, for others are served meanwhile. One
// that something else runs is only reported.
func (h *health) restartTriton(o *outage, cause string, err error) bool {
	if o.restart || h.child != nil && !h.child.kill(cause) { // else it is being started at the moment
		return false
	}
	o.restart = true
	h.log.Error("triton has to be started again", "cause", cause, "ours", h.child != nil, "error", err)
	if h.child == nil {
		h.metrics.tritonEnds.WithLabelValues(cause).Inc()
	}
	return h.child != nil
}

// errLoading is the failure of a load.
var errLoading = errors.New("the model cannot be loaded")

// bringUp has Triton load the model, holds what it says of it against the spec
// and makes it answer.
func (h *health) bringUp(ctx context.Context) error {
	began := time.Now()
	loading, err := h.load(ctx)
	if err != nil {
		return err
	}
	places, err := h.checkContract(ctx)
	if err != nil {
		return err
	}
	h.model.window.resize(places)
	h.shareMemory(ctx, places)
	l := h.life.Load()
	if l.processes == nil { // it was loaded before
		l.processes = h.child.backends(h.model.spec.Name)
	}
	limit, batches := h.model.spec.Batching.ExecuteLimit(), []int{1}
	if full := h.fullBatch(); full > 1 && (!l.warm || l.failed.Load() >= failuresToDoubt) {
		batches = append(batches, full)
	}
	if !l.warm {
		// A device takes its time over its first batches: they have as long as a load.
		limit = h.loadTimeout
	}
	for _, rows := range batches {
		// One that refuses for now is busy, and so it works.
		if err := h.canary(ctx, l, rows, limit); err != nil && isIll(kindOf(err)) {
			return fmt.Errorf("a batch of %d: %w", rows, err)
		}
	}
	l.warm = true
	h.log.Info("model is ready", "load_ms", milliseconds(loading), "all_ms", milliseconds(time.Since(began)), "processes", len(l.processes))
	return nil
}

// load has Triton load the model, unless it is loaded, and returns how long that
// took. The models take turns: on a machine that is busy a Triton that starts several
// backends at once was seen to abort.
func (h *health) load(ctx context.Context) (time.Duration, error) {
	name := h.model.spec.Name
	asking, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if loaded, err := h.triton.ModelReady(asking, name); loaded || err != nil {
		return 0, err
	}
	if t := h.trouble.Load(); t != nil && *t == unreachable {
		h.down(beingLoaded) // which takes minutes, if the checkpoint is large
	}
	select {
	case h.loading <- struct{}{}:
		over := sync.OnceFunc(func() { <-h.loading })
		defer over()
		defer time.AfterFunc(loadTurn, over).Stop()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	loading, cancel := context.WithTimeout(ctx, h.loadTimeout)
	defer cancel()
	began, old := time.Now(), h.child.backends(name) // one that still answers what it was sent before
	if err := h.triton.LoadModel(loading, name); err != nil {
		return 0, fmt.Errorf("%w: %w", errLoading, err)
	}
	took, l := time.Since(began), newLife()
	l.processes = slices.DeleteFunc(h.child.backends(name), func(pid int) bool { return slices.Contains(old, pid) })
	h.life.Store(l)
	return took, nil
}

// checkContract holds what Triton says of the loaded model against the spec, and
// returns how many requests are inside at once: only Triton knows how many GPUs there
// are.
func (h *health) checkContract(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	config, err := askContract(ctx, h.triton, h.model.spec)
	if err != nil {
		return 0, err
	}
	server, err := h.triton.ServerMetadata(ctx)
	if err != nil {
		return 0, err
	}
	h.metrics.connected(server.Version)
	return places(config), nil
}

// checkControl returns the error of a Triton that does not load models on request.
func (h *health) checkControl(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	// An unload of a model without a name does nothing where unloads are taken. Whatever
	// else is wrong shows elsewhere.
	if err := h.triton.UnloadModel(ctx, ""); kindOf(err) == tritonclient.NoModelControl {
		return err
	}
	return nil
}

// shareMemory has a request's inputs go through shared memory, where that works.
func (h *health) shareMemory(ctx context.Context, places int) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	h.triton.ShareMemory(ctx, h.model.sharedInputs(places))
}
