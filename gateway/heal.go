package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"histogate/prep"
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

	// A model of which so many answers in a row are not finite is probed.
	failuresToDoubt = 3

	// The most that the batch of a warm-up takes of memory, on the way to Triton and
	// back. gRPC could carry 2 GiB.
	warmUpBytes = 256 << 20

	canaryID = "canary" // of what the gateway asks on its own account
)

// Why a model is loaded again, or a Triton started.
const (
	causeHung        = "it hangs"
	causeGone        = "its process is gone"
	causeFails       = "it fails on every batch"
	causeEnded       = "it ended"
	causeSilent      = "it does not answer"
	causeLoadHangs   = "a model's load does not come back"
	causeUnloadHangs = "a model's unload does not come back"
	causeStaysIll    = "a model stays ill when it is loaded again"
)

func reloadCauses() []string { return []string{causeHung, causeGone, causeFails} }

func restartCauses() []string {
	return []string{causeEnded, causeSilent, causeLoadHangs, causeUnloadHangs, causeStaysIll}
}

// What became of an inference of the gateway's own.
const (
	canaryOK     = "ok"
	canaryFailed = "failed"
)

func canaryResults() []string { return []string{canaryOK, canaryFailed} }

// errGone is the end of a process that ran a model.
var errGone = errors.New("a backend process has ended")

// outage is what was tried since a model was last in service.
type outage struct {
	failures int // in a row
	reloads  int
	restart  bool // of Triton was asked for
}

// run loads the model, watches it, and does so again when it fails, until the
// context ends. It returns an error only where trying again is of no use: the
// model was never in service, and its contract is not the one that Triton has.
func (h *health) run(ctx context.Context) error {
	if h.model.broken != "" {
		return nil // nothing can be loaded; the others are served
	}
	served, retry, now := false, retryMin, outage{}
	for ctx.Err() == nil {
		err := h.bringUp(ctx)
		if contract := (*contractError)(nil); errors.As(err, &contract) && !served {
			return err
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
		case <-time.After(wait):
		}
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

// mend does what may bring a model back that failed, beyond asking it again, and
// reports whether it did anything.
func (h *health) mend(ctx context.Context, err error, served bool, o *outage) bool {
	var cause string
	switch kind := kindOf(err); {
	case errors.Is(err, errHung):
		cause = causeHung
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
	h.log.Warn("loading the model again", "cause", cause)
	h.metrics.reloads.WithLabelValues(h.model.spec.Name, cause).Inc()
	old := h.child.backends(h.model.spec.Name)
	asking, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err := h.triton.UnloadModel(asking, h.model.spec.Name)
	// One that hangs would keep its memory, and the requests inside it.
	killAll(old)
	h.life.Store(newLife())
	if err == nil || ctx.Err() != nil || kindOf(err) == tritonclient.Unavailable {
		return true
	}
	return h.restartTriton(o, causeUnloadHangs, err)
}

// restartTriton ends a Triton that cannot bring a model back, to be started again,
// and reports whether it did: once an outage, for others are served meanwhile. One
// that something else runs is only reported.
func (h *health) restartTriton(o *outage, cause string, err error) bool {
	if o.restart {
		return false
	}
	o.restart = true
	h.log.Error("triton has to be started again", "cause", cause, "ours", h.child != nil, "error", err)
	if h.child != nil {
		return h.child.kill(cause)
	}
	h.metrics.tritonEnds.WithLabelValues(cause).Inc()
	return false
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
	limit, batches := h.model.spec.Batching.ExecuteLimit(), []int{1}
	if !l.warm {
		// A device takes its time over its first batches: they have as long as a load.
		limit = h.loadTimeout
		if full := h.fullBatch(); full > 1 {
			batches = append(batches, full)
		}
	}
	for _, rows := range batches {
		// One that refuses for now is busy, and so it works.
		if err := h.canary(ctx, l, rows, limit); err != nil && isIll(kindOf(err)) {
			return fmt.Errorf("a batch of %d: %w", rows, err)
		}
	}
	l.warm = true
	h.log.Info("model is ready", "load_ms", milliseconds(loading), "all_ms", milliseconds(time.Since(began)))
	return nil
}

// load has Triton load the model, unless it is loaded, and returns how long that
// took. One model is loaded at a time: on a machine that is busy a Triton that
// starts several backends at once was seen to abort.
func (h *health) load(ctx context.Context) (time.Duration, error) {
	name := h.model.spec.Name
	asking, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if loaded, err := h.triton.ModelReady(asking, name); loaded || err != nil {
		return 0, err
	}
	select {
	case h.loading <- struct{}{}:
		defer func() { <-h.loading }()
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

// shareMemory has a request's inputs go through shared memory, where that works.
func (h *health) shareMemory(ctx context.Context, places int) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	h.triton.ShareMemory(ctx, h.model.sharedInputs(places))
}

// watch returns when the model does not answer a probe, or its process has ended. It
// probes a model that failed, that gives nothing of use or that was idle, and leaves
// one alone that answers its callers.
func (h *health) watch(ctx context.Context) error {
	l, limit := h.life.Load(), h.model.spec.Batching.ExecuteLimit()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	answer := make(chan error, 1)
	asking, wanted := false, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-l.suspect:
			if isAbsent(kindOf(err)) {
				return err
			}
			wanted = true
		case err := <-answer:
			switch kind := kindOf(err); {
			case err != nil && isIll(kind):
				return err
			case kind == tritonclient.DeadlineExceeded:
				wanted = true
			case !wanted && len(l.suspect) == 0: // else that answer is older than a failure
				h.up() // it answered, or was too busy to
			}
			asking = false
		case <-tick.C:
			if l.pulse.silence() > limit {
				return errHung
			}
			if anyEnded(l.processes) {
				return errGone
			}
			wanted = wanted || l.sinceSuccess() >= canaryEvery && (l.useless.Load() > 0 || !l.pulse.busy()) // else what is inside will tell
		}
		if wanted && !asking {
			asking, wanted = true, false
			go func() { answer <- h.canary(ctx, l, 1, limit) }()
		}
	}
}

// canary runs one inference on rows of zeros, and of the model's constants, for every
// output of the model. One that is not answered within the limit, with nothing else in
// its way, hangs.
func (h *health) canary(ctx context.Context, l *life, rows int, limit time.Duration) error {
	probe, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var roles []prep.Role
	for _, out := range h.model.spec.Outputs {
		roles = append(roles, out.Role)
	}
	answer, err := h.forward(probe, l, canaryID, h.model.writeBlank, rows, roles)
	if err == nil {
		answer.Release()
	}
	switch {
	case ctx.Err() != nil: // nobody wants to know any more
		return ctx.Err()
	case probe.Err() != nil && !l.pulse.busy():
		err = errHung
	}
	result := canaryOK
	if err != nil {
		result = canaryFailed
	} else {
		l.succeeded()
	}
	h.metrics.canaries.WithLabelValues(h.model.spec.Name, result).Inc()
	return err
}

// fullBatch is the rows of the largest batch of a warm-up.
func (h *health) fullBatch() int {
	in, out := 0, 0 // bytes of a row
	for i := range h.model.spec.Inputs {
		in += h.model.spec.SentBytes(i)
	}
	for _, t := range h.model.spec.Outputs {
		out += prep.Elements(t.Shape) * t.DType.Size()
	}
	return max(1, min(h.model.spec.Batching.MaxBatchSize, warmUpBytes/max(in, out)))
}
