package gateway

import (
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
)

func (g *Gateway) routes() {
	g.app.Use(g.observe)
	g.app.Post("/api/embed/:model", g.keyed(g.modelInference(prep.Embedding)))
	g.app.Post("/api/predict/:model", g.keyed(g.modelInference(prep.Prediction)))
	g.app.Post("/api/predict_with_embedding/:model", g.keyed(g.modelInference(prep.PredictionWithEmbedding)))
	g.app.Post("/api/batch/:model", g.keyed(g.batch))
	g.app.Get("/api/metadata/:model", g.keyed(g.metadata))
	g.app.Post("/invocations", g.keyed(g.invocations))
	g.app.Get("/ping", g.ping)
	g.app.Get("/readyz", g.ping)
	g.app.Get("/livez", live)
	g.app.Get("/execution-parameters", g.keyed(g.executionParameters))
	if g.cfg.RuntimeEmulation {
		g.app.Post("/endpoints/:name/invocations", g.keyed(g.endpoint))
	}
	documents := sync.OnceValues(g.documents) // a tenth of a second that few ask for
	g.app.Get("/openapi.json", g.keyed(serveOpenAPI(documents)))
	g.app.Get("/docs", g.keyed(servePage(documents)))
}

// metadataMode is the mode of an /invocations body that asks for the metadata.
const metadataMode prep.Mode = "metadata"

// modelInference serves the routes whose path says both model and mode.
func (g *Gateway) modelInference(mode prep.Mode) fiber.Handler {
	return func(c *fiber.Ctx) error {
		m, err := g.models.find(c.Params("model"))
		if err != nil {
			return err
		}
		if err := m.spec.CheckMode(mode); err != nil {
			return err
		}
		return g.infer(c, func(r *prep.Request) (*model, prep.Mode, error) {
			if !r.IsRaw() { // the fields of a document have always been passed over here
				return m, mode, nil
			}
			return m, mode, g.checkAgreed(r, m, mode, "%q is given, and the path says %s; send one of them")
		})
	}
}

// checkAgreed refuses a request that names another model or mode than the two which its
// path or its call is for. The detail, a format, has what was named and what it should be.
func (g *Gateway) checkAgreed(r *prep.Request, m *model, mode prep.Mode, detail string) error {
	name, err := r.ModelName()
	if err != nil {
		return err
	}
	if name != "" && g.models.byName[name] != m {
		return &prep.Error{Code: prep.InvalidRequest, Field: "model_name", Detail: fmt.Sprintf(detail, clip(name), m.spec.Name)}
	}
	given, err := r.Mode()
	if err != nil {
		return err
	}
	if given != "" && prep.Mode(given) != mode {
		return &prep.Error{Code: prep.InvalidRequest, Field: "mode", Detail: fmt.Sprintf(detail, clip(given), mode)}
	}
	return nil
}

// invocations serves the route whose body says model and mode or, where it is an
// image, whose headers or query do.
func (g *Gateway) invocations(c *fiber.Ctx) error {
	return g.infer(c, func(r *prep.Request) (*model, prep.Mode, error) {
		name, err := r.ModelName()
		if err != nil {
			return nil, "", err
		}
		m := g.models.fallback
		if name != "" || m == nil {
			if name == "" {
				where := "the JSON, where alone it counts"
				if r.IsRaw() {
					where = "X-Model-Name and the query"
				}
				return nil, "", &prep.Error{
					Code: prep.InvalidRequest, Field: "model_name",
					Detail: fmt.Sprintf("missing in %s; the models are: %s", where, strings.Join(g.models.names, ", ")),
				}
			}
			if m, err = g.models.find(name); err != nil {
				return nil, "", err
			}
		}
		text, err := r.Mode()
		if err != nil {
			return nil, "", err
		}
		switch mode := prep.Mode(text); {
		case mode == metadataMode:
			return m, mode, nil
		case mode == "" && r.IsRaw():
			return m, m.spec.Modes[0], nil // what an image alone has always been answered with
		default:
			mode, err = m.mode(mode)
			return m, mode, err
		}
	})
}

// mode is that of a document which asks for one, or for none. Clients count on what none
// means, whatever the model.
func (m *model) mode(asked prep.Mode) (prep.Mode, error) {
	if asked != "" {
		return asked, m.spec.CheckMode(asked)
	}
	err := m.spec.CheckMode(prep.Prediction)
	if failure, ok := errors.AsType[*prep.Error](err); ok {
		failure.Detail = "none was sent, which means prediction: " + failure.Detail
	}
	return prep.Prediction, err
}

func (g *Gateway) metadata(c *fiber.Ctx) error {
	m, err := g.models.find(c.Params("model"))
	if err != nil {
		return err
	}
	traceOf(c).model = m.spec.Name
	return m.writeMetadata(c)
}

// ping tells a load balancer whether to send requests here, by PING_MODE; with
// ?model=NAME it tells of that model alone.
func (g *Gateway) ping(c *fiber.Ctx) error {
	if g.draining.Load() {
		return refuse(CodeBackendUnavailable, "the service is shutting down")
	}
	asked := g.models.pinged
	if name := c.Query("model"); name != "" {
		m, err := g.models.find(name)
		if err != nil {
			return err
		}
		asked = readiness{models: []*model{m}}
	}
	if missing := asked.missing(); missing != nil {
		return refuse(CodeBackendUnavailable, "not ready: %s", strings.Join(missing, "; "))
	}
	return nil
}

// live tells that this process answers, whatever becomes of the models.
func live(*fiber.Ctx) error { return nil }

type traceKey struct{}

// traceOf is the request's trace. One that never came as far as the middleware,
// because its HTTP was no good, is given one here.
func traceOf(c *fiber.Ctx) *trace {
	if t, ok := c.Locals(traceKey{}).(*trace); ok {
		return t
	}
	t := newTrace(requestID(c.Get(fiber.HeaderXRequestID)))
	c.Locals(traceKey{}, t)
	return t
}

var saneID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID takes over a caller's id, so that it can be found in two logs, or
// makes one. The id outlives the request, so it must not alias its header.
func requestID(header string) string {
	if saneID.MatchString(header) {
		return strings.Clone(header)
	}
	return rand.Text()
}

// observe is around every handler: what happens in one ends up here, once.
func (g *Gateway) observe(c *fiber.Ctx) error {
	t := traceOf(c)
	if t.spans == nil { // else its body was awaited
		t.spans = g.tracing.begin(c, t)
	}
	err := recovered(c.Next)
	if errors.Is(err, errAwaited) {
		c.Status(fiber.StatusContinue)
		return nil
	}
	if errors.Is(err, fiber.ErrMethodNotAllowed) {
		err = wrongMethod(c.GetRespHeader(fiber.HeaderAllow))
	}
	if route := c.Route(); route.Path != "/" { // that of this middleware: nothing matched
		t.route = route.Path
	}
	if err != nil {
		return g.fail(c, err)
	}
	g.succeeded(c, t)
	return nil
}

// recovered makes an error of a panic.
func recovered(serve func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &panicError{cause, debug.Stack()}
		}
	}()
	return serve()
}

// panicError is a panic of a handler.
type panicError struct {
	cause any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.cause) }
