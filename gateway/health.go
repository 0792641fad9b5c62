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
	canaryEvery   = time.Second     // of a model that nobody asks anything
	canaryTimeout = 2 * time.Second // of one inference that is only a probe
	loadTimeout   = 2 * time.Minute // weights are read from a disk, perhaps a slow one
	retryMin      = 100 * time.Millisecond
	retryMax      = 2 * time.Second
)

// health brings one model into service, keeps watch over it and knows whether
// it can be used. Readiness comes from what inference does, not from what Triton
// says of itself: a model whose process died stays ready for Triton.
type health struct {
	model   *model
	triton  *tritonclient.Client
	metrics *metrics
	log     *slog.Logger

	reason  atomic.Pointer[string] // why the model cannot be used; nil when it can
	success atomic.Int64           // time of the latest inference that succeeded, in Unix nanoseconds
	suspect chan struct{}          // filled when an inference failed
}

func newHealth(m *model, triton *tritonclient.Client, metrics *metrics, log *slog.Logger) *health {
	h := &health{model: m, triton: triton, metrics: metrics, log: log.With("model", m.spec.Name), suspect: make(chan struct{}, 1)}
	h.down("it is being loaded")
	if m.broken != "" {
		h.down(m.broken)
	}
	return h
}

// unready is why the model cannot be used, in words for a caller, or empty.
func (h *health) unready() string {
	if reason := h.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

func (h *health) down(reason string) {
	h.reason.Store(&reason)
	h.metrics.ready.WithLabelValues(h.model.spec.Name).Set(0)
}

func (h *health) up() {
	h.reason.Store(nil)
	h.metrics.ready.WithLabelValues(h.model.spec.Name).Set(1)
}

// observe is told how each inference ended.
func (h *health) observe(err error) {
	switch {
	case err == nil:
		h.success.Store(time.Now().UnixNano())
	case isIll(err):
		select {
		case h.suspect <- struct{}{}:
		default: // already known
		}
	}
}

// isIll tells a failure of the model or of Triton from mere load.
func isIll(err error) bool {
	var failure *tritonclient.Error
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Kind {
	case tritonclient.QueueFull, tritonclient.QueueTimeout, tritonclient.Canceled, tritonclient.DeadlineExceeded:
		return false
	default:
		return true
	}
}

func isGone(err error) bool {
	var failure *tritonclient.Error
	return errors.As(err, &failure) && failure.Kind == tritonclient.BackendDead
}

// run loads the model, watches it, and does so again when it fails, until the
// context ends. It returns an error only where trying again is of no use: the
// model was never in service, and its contract is not the one that Triton has.
func (h *health) run(ctx context.Context) error {
	if h.model.broken != "" {
		return nil // nothing can be loaded; the others are served
	}
	served := false
	retry := retryMin
	for ctx.Err() == nil {
		err := h.bringUp(ctx)
		var contract *contractError
		if errors.As(err, &contract) && !served {
			return err
		}
		if err == nil {
			h.log.Info("model is ready")
			h.up()
			served, retry = true, retryMin
			err = h.watch(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		reason := explain(err)
		if reason != h.unready() { // said once, not at each attempt
			level := slog.LevelInfo // at a start it is only a matter of time
			if served {
				level = slog.LevelWarn
			}
			h.log.Log(ctx, level, "model is not ready", "reason", reason, "error", err)
		}
		h.down(reason)
		if isGone(err) {
			// It does not come back by a load alone, which does nothing for a model
			// that Triton takes to be loaded.
			h.log.Warn("the model's process is gone; loading the model again")
			if err := h.triton.UnloadModel(ctx, h.model.spec.Name); err != nil {
				h.log.Warn("the model could not be unloaded", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, retryMax)
	}
	return nil
}

// explain says in plain words, fit for any caller, why a model is not ready.
func explain(err error) string {
	var contract *contractError
	var failure *tritonclient.Error
	switch {
	case errors.As(err, &contract):
		return "its configuration changed and contradicts its spec"
	case !errors.As(err, &failure):
		return "it cannot be used"
	case failure.Op == "RepositoryModelLoad" && failure.Kind != tritonclient.Unavailable:
		return "its checkpoint cannot be loaded"
	case failure.Op == "ModelInfer" && failure.Kind != tritonclient.Unavailable:
		return "it fails on every tile"
	default:
		return "the inference server is starting or cannot be reached"
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
		if err := h.triton.LoadModel(ctx, name); err != nil {
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
	if err := h.canary(ctx); err != nil {
		return err
	}
	server, err := h.triton.ServerMetadata(ctx)
	if err != nil {
		return err
	}
	h.metrics.connected(server.Version)
	return nil
}

// watch returns when the model does not answer a probe. It probes a model that
// failed or was idle, and leaves one alone that answers its callers.
func (h *health) watch(ctx context.Context) error {
	tick := time.NewTicker(canaryEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.suspect:
		case <-tick.C:
			if time.Since(time.Unix(0, h.success.Load())) < canaryEvery {
				continue
			}
		}
		sent := time.Now().UnixNano()
		if err := h.canary(ctx); err != nil && (isIll(err) || h.success.Load() < sent) {
			return err
		}
	}
}

// canary runs one inference on zeros, for every output of the model.
func (h *health) canary(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	sample := make([][]byte, len(h.model.spec.Inputs))
	for i, in := range h.model.spec.Inputs {
		sample[i] = make([]byte, prep.Elements(in.Shape)*in.DType.Size())
	}
	var roles []prep.Role
	for _, out := range h.model.spec.Outputs {
		roles = append(roles, out.Role)
	}
	_, err := h.triton.Infer(ctx, &tritonclient.InferRequest{
		Model:   h.model.spec.Name,
		ID:      "canary",
		Inputs:  h.model.inputs(sample),
		Outputs: h.model.outputs(roles),
	})
	result := "ok"
	if err != nil {
		result = "failed"
	} else {
		h.success.Store(time.Now().UnixNano())
	}
	h.metrics.canaries.WithLabelValues(h.model.spec.Name, result).Inc()
	return err
}
