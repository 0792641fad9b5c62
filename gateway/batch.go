package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/sync/errgroup"

	"histogate/prep"
	"histogate/tritonclient"
)

// Many tiles of one model and mode in one call. Each goes the way of a request of
// its own, through stage 1 in the CPU slots, the model's window and Triton's
// batcher; what it fails with in stage 1 is its own, and what any of them fails
// with after that is the whole call's.

// outcome is what became of one tile of a call.
type outcome struct {
	job    *job
	answer *tritonclient.Answer
	err    error // of stage 1, the tile's own
}

// release gives the memory of all answers back.
func release(outcomes []outcome) {
	for _, o := range outcomes {
		if o.answer != nil {
			o.answer.Release()
		}
	}
}

// batch serves the calls of many tiles.
func (g *Gateway) batch(c *fiber.Ctx) error {
	m, err := g.models.find(c.Params("model"))
	if err != nil {
		return err
	}
	if _, err := bodyOf(c, mediaJSON); err != nil {
		return err
	}
	if _, err := answerAs(c, mediaJSON); err != nil {
		return err
	}
	return g.admitted(c, func(ctx context.Context, body *body) error {
		t := traceOf(c)
		batch, mode, err := g.parseBatch(ctx, t, m, body.B)
		if err != nil {
			return err
		}
		// The call itself is counted in already.
		if more := len(batch.Tiles) - 1; more > 0 {
			if err := g.admission.enter(more); err != nil {
				return err
			}
			defer g.admission.leave(more)
		}
		outcomes, err := g.runTiles(ctx, t, m, mode, batch.Tiles, presence(c))
		if err != nil {
			return err
		}
		defer release(outcomes)
		if err = writeBatch(c, outcomes); err == nil {
			err = g.compressors.masks(c, m.spec, mode)
		}
		t.end(stageReply)
		return err
	})
}

// parseBatch reads the document of a call, and refuses one whose answer could be
// larger than what is given before any of its tiles costs anything.
func (g *Gateway) parseBatch(ctx context.Context, t *trace, m *model, body []byte) (*prep.Batch, prep.Mode, error) {
	release, err := g.admission.slot(ctx)
	t.end(stageWait)
	if err != nil {
		return nil, "", err
	}
	defer release()
	defer t.end(stageDecode)
	t.model = m.spec.Name
	batch, err := prep.ParseBatch(body, g.cfg.mostTiles())
	if err != nil {
		return nil, "", err
	}
	mode, err := m.mode(prep.Mode(batch.Mode))
	if err != nil {
		return nil, "", err
	}
	t.mode = m.modeName(mode)
	return batch, mode, checkSize(m.spec, mode, batch.Tiles, g.cfg.MaxBodyBytes)
}

// mostTiles is how many tiles one call takes: never more than could be admitted.
func (c *Config) mostTiles() int { return min(c.MaxBatchRequests, c.MaxInFlight) }

// checkSize refuses tiles whose answers could together be larger than the limit.
func checkSize(spec *prep.Spec, mode prep.Mode, tiles []*prep.Request, limit int) error {
	const frame = len(`{"output":[],,"embedding":[]},`)
	each := frame
	for _, role := range mode.Roles() {
		output, _ := spec.Output(role) // a checked spec has it
		each += output.MostJSON()
	}
	size := len(`{"responses":[]}`)
	for i, tile := range tiles {
		if size += each + tile.MostEcho(); size > limit {
			advice := fmt.Sprintf("no more than the first %d of them in a call", i)
			if i == 0 {
				advice = "each in a request of its own"
			}
			return &prep.Error{
				Code: prep.InvalidRequest, Field: "requests",
				Detail: fmt.Sprintf("the answer to %d tiles could be larger than the %d bytes that are given; send %s", len(tiles), limit, advice),
			}
		}
	}
	return nil
}

// runTiles takes tiles through both stages, all at once. Its error is the first that is
// not one tile's own; the others are given up then.
func (g *Gateway) runTiles(ctx context.Context, t *trace, m *model, mode prep.Mode, tiles []*prep.Request, present func() bool) ([]outcome, error) {
	outcomes := make([]outcome, len(tiles))
	traces := make([]*trace, len(tiles))
	group, ctx := errgroup.WithContext(ctx)
	for i, tile := range tiles {
		traces[i] = newTrace(t.id + "-" + strconv.Itoa(i))
		traces[i].spans = t.spans.tile(i)
		group.Go(func() error {
			return recovered(func() (err error) {
				o := &outcomes[i]
				o.job, err = g.prepare(ctx, traces[i],
					func() (*prep.Request, error) { return tile, nil },
					func(r *prep.Request) (*model, prep.Mode, error) {
						return m, mode, g.checkAgreed(r, m, mode, "%q, and the call is for %s; leave it out, or send the tile in a call of its own")
					})
				if _, own := errors.AsType[*prep.Error](err); own {
					o.err = err
					g.tileFailed(t, i, err)
					return nil
				}
				if err == nil {
					o.answer, err = g.forward(ctx, traces[i], o.job, present)
				}
				return err
			})
		})
	}
	err := group.Wait()
	t.merge(traces)
	return outcomes, err
}

// tileFailed logs and counts what one tile of a call failed with. The call itself may succeed.
func (g *Gateway) tileFailed(t *trace, tile int, err error) {
	code := classify(err).code
	g.metrics.tiles.WithLabelValues(t.model, string(code)).Inc()
	where, stack := panicOf(err)
	if where != "" {
		g.metrics.panics.WithLabelValues(where).Inc()
	}
	g.requestLog.tileFailed(t, tile, code, err, stack)
}

// writeBatch writes the answer of a call: that of each tile, in their order.
func writeBatch(c *fiber.Ctx, outcomes []outcome) error {
	body, err := appendBatch(c.Response().SwapBody(nil)[:0], outcomes)
	c.Response().SwapBody(body)
	if err != nil {
		return err
	}
	c.Set(fiber.HeaderContentType, mediaJSON)
	return nil
}

func appendBatch(body []byte, outcomes []outcome) (_ []byte, err error) {
	body = append(body, `{"responses":[`...)
	for i, o := range outcomes {
		if i > 0 {
			body = append(body, ',')
		}
		if o.err != nil {
			body = appendTileFailure(body, classify(o.err))
			continue
		}
		if body, err = appendAnswer(body, o.job, o.answer.Outputs); err != nil {
			return body, err
		}
	}
	return append(body, `]}`...), nil
}

// Result is what [Gateway.Forward] makes of one tile.
type Result struct {
	Output    []float32 // of the mode's first role, row-major, after its transforms
	Embedding []float32 // nil unless the mode is [prep.PredictionWithEmbedding]
	// Err is what is wrong with this tile, a [*prep.Error]; the others are nil then.
	Err error
}

// Forward runs tiles through a model, as POST /api/batch/{model} does: N requests
// in, N results out, in their order. Requests are made by [prep.ParseRequest] or
// [prep.RawRequest], and stay the caller's. A tile that cannot be used, or that asks
// for another model or mode, fails alone.
// What fails the call is everybody's, and always an [*Error]: the model is unknown or
// lacks the mode, there are more tiles than MAX_BATCH_REQUESTS or more than can be
// admitted now, the context or REQUEST_TIMEOUT ended, or the model failed on a batch.
//
// It may be called while [Gateway.Serve] runs, which keeps the models in service and
// does not end before its calls, but for DRAIN_LIMIT.
func (g *Gateway) Forward(ctx context.Context, model string, mode prep.Mode, requests []*prep.Request) ([]Result, error) {
	t := newTrace(requestID(""))
	t.route = "Forward"
	results, err := g.forwardTiles(ctx, t, model, mode, requests)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			err = fmt.Errorf("%w: %w", errCallerGone, err)
		}
		return nil, g.record(t, err).asError(err)
	}
	g.answered(t, http.StatusOK)
	return results, nil
}

func (g *Gateway) forwardTiles(ctx context.Context, t *trace, model string, mode prep.Mode, requests []*prep.Request) ([]Result, error) {
	m, err := g.models.find(model)
	if err != nil {
		return nil, err
	}
	t.model = m.spec.Name
	if err := m.spec.CheckMode(mode); err != nil {
		return nil, err
	}
	t.mode = m.modeName(mode)
	if most := g.cfg.mostTiles(); len(requests) > most {
		return nil, &prep.Error{Code: prep.InvalidRequest, Field: "requests", Detail: fmt.Sprintf("%d tiles, and one call takes %d", len(requests), most)}
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(g.pending, cancel)() // at the end of a drain
	if err := g.admission.enter(len(requests)); err != nil {
		return nil, err
	}
	defer g.admission.leave(len(requests))
	outcomes, err := g.runTiles(ctx, t, m, mode, requests, func() bool { return true })
	if err != nil {
		return nil, err
	}
	defer release(outcomes)
	results := make([]Result, len(outcomes))
	for i, o := range outcomes {
		results[i].Err = o.err
		if o.err != nil {
			continue
		}
		for k, output := range o.answer.Outputs {
			into := [...]*[]float32{&results[i].Output, &results[i].Embedding}[k]
			*into = floats(output.Data)
		}
	}
	return results, nil
}

// floats are little-endian float32 values.
func floats(data []byte) []float32 {
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values
}
