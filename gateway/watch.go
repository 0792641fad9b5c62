package gateway

import (
	"context"
	"errors"
	"time"

	"histogate/prep"
	"histogate/tritonclient"
)

// watch returns when the model does not answer a probe, has lost a request, or its
// process has ended. It probes a model that failed, that gives nothing of use or that
// was idle, and leaves one alone that answers its callers.
//
// What callers send decides nothing: a row that the model fails on can be sent by
// anybody, again and again. A probe that fails may have been in one batch with it, so
// that a second one is sent when nothing else is inside.
func (h *health) watch(ctx context.Context) error {
	l, limit := h.life.Load(), h.model.spec.Batching.ExecuteLimit()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	answer := make(chan error, 1)
	rows, asking, wanted, alone := 1, false, false, false
	var lost error
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-l.suspect:
			if isAbsent(kindOf(err)) {
				return err
			}
			if errors.Is(err, errLost) {
				lost = err
			}
			wanted = true
		case err := <-answer:
			asking = false
			switch kind := kindOf(err); {
			case err != nil && isIll(kind):
				if alone || isAbsent(kind) || errors.Is(err, errHung) {
					return err
				}
				h.model.window.open(false)
				wanted, alone = true, true
			case kind == tritonclient.DeadlineExceeded:
				wanted = true
			case !wanted && lost == nil && len(l.suspect) == 0: // else that answer is older than a failure
				alone = false
				h.up() // it answered, or was too busy to
			}
		case <-tick.C:
			if l.pulse.silence() > limit {
				return errHung
			}
			if anyEnded(l.processes) {
				return errGone
			}
			if lost != nil && !l.pulse.busy() { // all others are answered
				return lost
			}
			wanted = wanted || l.sinceSuccess() >= canaryEvery && (l.failed.Load() > 0 || !l.pulse.busy()) // else what is inside will tell
		}
		if wanted && !asking && lost == nil && !(alone && l.pulse.busy()) {
			if !alone {
				rows = 1
			}
			rows = max(rows, h.probeRows(l))
			asking, wanted = true, false
			go func() { answer <- h.canary(ctx, l, rows, limit) }()
		}
	}
}

// probeRows is how many rows a probe has. A full batch costs those who wait more, and
// anybody can ask for one by what he sends: there is one a second at most.
func (h *health) probeRows(l *life) int {
	if l.failed.Load() < failuresToDoubt || time.Since(l.full) < canaryEvery {
		return 1
	}
	l.full = time.Now()
	return h.fullBatch()
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
		if rows == h.fullBatch() {
			l.failed.Store(0)
		}
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
