package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
	"histogate/tritonclient"
)

// keptBytes is how much of a request may be kept when its body is let go of: bodies are
// counted, what is kept is not.
const keptBytes = 4 << 10

// choose tells which model and mode a request is for.
type choose func(*prep.Request) (*model, prep.Mode, error)

// infer is the path of every inference of one tile, whatever its route.
func (g *Gateway) infer(c *fiber.Ctx, choose choose) error {
	media, err := bodyOf(c, mediaJSON, mediaImage)
	if err != nil {
		return err
	}
	as, err := answerAs(c, mediaJSON, mediaFloats)
	if err != nil {
		return err
	}
	return g.admitted(c, func(ctx context.Context, body *body) error {
		t := traceOf(c)
		job, err := g.prepare(ctx, t, parserOf(c, media, body.B), choose)
		if err != nil {
			return err
		}
		if job.mode == metadataMode {
			return job.model.writeMetadata(c) // always JSON
		}
		if job.request.Detach(keptBytes) {
			body.release() // for others, while this one waits
		}
		answer, err := g.forward(ctx, t, job, presence(c))
		if err != nil {
			return &tileError{job.request.Naming(), err}
		}
		defer answer.Release()
		if err = writeAnswer(c, as, job, answer.Outputs); err == nil && as == mediaJSON {
			err = g.compressors.masks(c, job.model.spec, job.mode)
		}
		t.end(stageReply)
		return err
	})
}

// admitted reads the body of a request and serves it, within the bounds on what is
// taken on. The body is there until serve returns or releases it.
func (g *Gateway) admitted(c *fiber.Ctx, serve func(ctx context.Context, body *body) error) error {
	t := traceOf(c)
	ctx, cancel := context.WithDeadline(g.pending, t.start.Add(g.cfg.RequestTimeout))
	defer cancel()

	body, err := g.bodies.read(c)
	if errors.Is(err, errAwaited) {
		return err
	}
	t.end(stageRead)
	if err != nil {
		return err
	}
	defer body.release() // the request aliases it until the answer is made
	if err := g.admission.enter(1); err != nil {
		return err
	}
	defer g.admission.leave(1)
	return serve(ctx, body)
}

// job is a request that has passed stage 1.
type job struct {
	model   *model
	mode    prep.Mode
	request *prep.Request
	sample  *prep.Sample // nil for the metadata mode
}

// prepare is stage 1, in one of the CPU slots.
func (g *Gateway) prepare(ctx context.Context, t *trace, parse func() (*prep.Request, error), choose choose) (*job, error) {
	release, err := g.admission.slot(ctx)
	t.end(stageWait)
	if err != nil {
		return nil, err
	}
	defer release()
	defer t.end(stageDecode)
	request, err := parse()
	if err != nil {
		return nil, err
	}
	m, mode, err := choose(request)
	if m != nil {
		t.model = m.spec.Name
	}
	if err != nil {
		return nil, request.Name(err)
	}
	t.mode = m.modeName(mode)
	if m.broken != "" {
		return nil, m.unusable()
	}
	j := &job{model: m, mode: mode, request: request}
	if mode != metadataMode {
		j.sample, err = m.preparer.Prepare(request)
	}
	return j, err
}

// forward is stage 2: what it fails with is not the caller's doing. Its answer has
// the outputs of the mode's roles, in their order, as clients are given them.
func (g *Gateway) forward(ctx context.Context, t *trace, j *job, present func() bool) (*tritonclient.Answer, error) {
	// Nothing is written by the sample once Infer has returned, however it returns.
	defer j.sample.Release()
	for {
		answer, err := g.attempt(ctx, t, j, present)
		// What was never sent, because the connection was lost just then, cannot be
		// what broke Triton: it waits again. Nothing else is tried twice.
		if failure, ok := errors.AsType[*tritonclient.Error](err); !ok || failure.Sent || failure.Kind != tritonclient.Unavailable {
			return answer, err
		}
	}
}

// attempt waits for a place inside Triton and runs the model.
func (g *Gateway) attempt(ctx context.Context, t *trace, j *job, present func() bool) (*tritonclient.Answer, error) {
	m := j.model
	err := m.enter(ctx, j.request.SlideName(), present)
	t.end(stageWindow)
	if err != nil {
		return nil, err
	}
	defer m.window.leave()
	defer t.end(stageTriton)
	ctx = t.spans.enterTriton(ctx)
	write := func(i int, dst []byte) {
		defer t.within(stageTransform, time.Now())
		j.sample.Write(i, dst)
	}
	answer, err := m.health.infer(ctx, t.id, write, j.mode.Roles())
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(ctx.Err(), context.Canceled): // by the drain, not by Triton
		return nil, ctx.Err()
	default:
		return nil, fmt.Errorf("stage 2: %w", err)
	}
}

// enter waits for a place inside Triton, unless the wait would be in vain.
func (m *model) enter(ctx context.Context, slide []byte, present func() bool) error {
	if trouble := m.health.trouble.Load(); trouble != nil && trouble.lasting {
		return m.unavailable(trouble)
	}
	err := m.window.enter(ctx, slide, present)
	if trouble := m.health.trouble.Load(); trouble != nil && errors.Is(err, context.DeadlineExceeded) {
		return m.unavailable(trouble)
	}
	return err
}

func (m *model) unavailable(t *trouble) error {
	if t.lasting {
		r := refuse(CodeBackendUnavailable, "%s cannot be used until its operator mends it: %s", m.spec.Name, t.reason)
		r.lasting = true
		return r
	}
	return refuse(CodeBackendUnavailable, "%s is not available at the moment: %s; send the request again later", m.spec.Name, t.reason)
}
