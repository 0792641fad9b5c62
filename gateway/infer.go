package gateway

import (
	"context"
	"fmt"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
	"histogate/tritonclient"
)

// choose tells which model and mode a request is for.
type choose func(*prep.Request) (*model, prep.Mode, error)

// infer is the path of every inference, whatever its route.
func (g *Gateway) infer(c *fiber.Ctx, choose choose) error {
	t := traceOf(c)
	if err := checkHeaders(c); err != nil {
		return err
	}
	if err := g.admission.enter(); err != nil {
		return err
	}
	defer g.admission.leave()
	ctx, cancel := context.WithDeadline(g.pending, t.start.Add(g.cfg.RequestTimeout))
	defer cancel()

	body, err := g.bodies.read(c)
	t.end(stageRead)
	if err != nil {
		return err
	}
	defer g.bodies.release(body) // the request aliases it until the answer is written

	job, err := g.prepare(ctx, t, body.B, choose)
	if err != nil {
		return err
	}
	if job.mode == metadataMode {
		return job.model.writeMetadata(c)
	}
	outputs, err := g.forward(ctx, t, job)
	if err != nil {
		return err
	}
	err = writeAnswer(c, job, outputs)
	t.end(stageReply)
	return err
}

// job is a request that has passed stage 1.
type job struct {
	model   *model
	mode    prep.Mode
	request *prep.Request
	sample  *prep.Sample // nil for the metadata mode
}

// prepare is stage 1, in one of the CPU slots.
func (g *Gateway) prepare(ctx context.Context, t *trace, body []byte, choose choose) (*job, error) {
	release, err := g.admission.slot(ctx)
	t.end(stageWait)
	if err != nil {
		return nil, err
	}
	defer release()
	defer t.end(stagePrep)
	request, err := prep.ParseRequest(body)
	if err != nil {
		return nil, err
	}
	m, mode, err := choose(request)
	if m != nil {
		t.model, t.mode = m.spec.Name, string(mode)
	}
	if err != nil {
		return nil, request.Name(err)
	}
	if m.broken != "" {
		return nil, m.unusable()
	}
	j := &job{model: m, mode: mode, request: request}
	if mode != metadataMode {
		j.sample, err = m.preparer.Prepare(request)
	}
	return j, err
}

// forward is stage 2: what it fails with is not the caller's doing. It returns
// the outputs of the mode's roles, in their order.
func (g *Gateway) forward(ctx context.Context, t *trace, j *job) ([]tritonclient.Tensor, error) {
	// Infer has let go of the tensors when it returns, however it returns.
	defer j.sample.Release()
	defer t.end(stageTriton)
	if reason := j.model.health.unready(); reason != "" {
		return nil, refuse(CodeBackendUnavailable, "%s is not available at the moment: %s; send the request again later", j.model.spec.Name, reason)
	}
	outputs, err := g.triton.Infer(ctx, &tritonclient.InferRequest{
		Model:   j.model.spec.Name,
		ID:      t.id,
		Inputs:  j.model.inputs(j.sample.Tensors),
		Outputs: j.model.outputs(j.mode.Roles()),
	})
	j.model.health.observe(err)
	if err != nil {
		return nil, fmt.Errorf("stage 2: %w", err)
	}
	return outputs, nil
}
