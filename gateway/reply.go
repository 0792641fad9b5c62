package gateway

import (
	"errors"
	"log/slog"
	"mime"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
	"histogate/tritonclient"
)

// checkHeaders refuses what the body's or the answer's form makes useless, before
// a byte of the body is read.
func checkHeaders(c *fiber.Ctx) error {
	if encoding := c.Get(fiber.HeaderContentEncoding); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return refuse(CodeUnsupportedMediaType, "Content-Encoding %q is not taken; send the body as it is", clip(encoding))
	}
	if kind := c.Get(fiber.HeaderContentType); kind != "" {
		media, _, err := mime.ParseMediaType(kind)
		if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) || media != fiber.MIMEApplicationJSON {
			return refuse(CodeUnsupportedMediaType, "Content-Type %q is not taken; send application/json", clip(kind))
		}
	}
	if accept := c.Get(fiber.HeaderAccept); accept != "" && c.Accepts(fiber.MIMEApplicationJSON) == "" {
		return refuse(CodeNotAcceptable, "the answer is application/json, which Accept %q leaves out", clip(accept))
	}
	return nil
}

// writeAnswer writes the answer of an inference, straight into the response's
// own buffer.
func writeAnswer(c *fiber.Ctx, j *job, outputs []tritonclient.Tensor) error {
	body := c.Response().SwapBody(nil)[:0]
	body, err := appendAnswer(body, j, outputs)
	c.Response().SwapBody(body)
	if err != nil {
		// What the model answered cannot be told: the shared stage's failure.
		return &tritonclient.Error{Op: "ModelInfer", Model: j.model.spec.Name, Kind: tritonclient.BadOutput, Detail: err.Error()}
	}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return nil
}

// appendAnswer appends the JSON of an answer. Of a mode with two roles the
// second is the embedding; else the one output is the answer's "output",
// whatever its role.
func appendAnswer(body []byte, j *job, outputs []tritonclient.Tensor) ([]byte, error) {
	body = append(body, `{"output":[`...)
	body, err := appendOutput(body, j, 0, outputs)
	if err != nil {
		return body, err
	}
	body = append(body, `],`...)
	body = j.request.AppendEcho(body)
	if len(outputs) == 1 {
		return append(body, `,"embedding":null}`...), nil
	}
	body = append(body, `,"embedding":[`...)
	if body, err = appendOutput(body, j, 1, outputs); err != nil {
		return body, err
	}
	return append(body, `]}`...), nil
}

// appendOutput makes of what the model gave what clients expect, and appends it.
func appendOutput(body []byte, j *job, i int, outputs []tritonclient.Tensor) ([]byte, error) {
	output, _ := j.model.spec.Output(j.mode.Roles()[i]) // a checked spec has it
	if err := output.Transform(outputs[i].Data); err != nil {
		return body, err
	}
	return output.AppendJSON(body, outputs[i].Data)
}

func (m *model) writeMetadata(c *fiber.Ctx) error {
	if m.broken != "" {
		return m.unusable()
	}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return c.Send(m.metadata)
}

// succeeded finishes a request that went well.
func (g *Gateway) succeeded(c *fiber.Ctx, t *trace) {
	c.Set(fiber.HeaderXRequestID, t.id)
	if timing := t.serverTiming(); timing != "" {
		c.Set("Server-Timing", timing)
	}
	g.metrics.answered(t, c.Response().StatusCode(), "")
	g.log.Debug("answered", t.attributes(c.Response().StatusCode())...)
}

// failure is the body of an answer to a request that failed. The same text
// stands in two fields: clients of the older server read detail, and what calls
// through SageMaker reads message.
type failure struct {
	Detail     string `json:"detail"`
	Message    string `json:"message"`
	Code       Code   `json:"code"`
	RequestID  string `json:"request_id"`
	RetryAfter int    `json:"retry_after,omitempty"` // seconds
}

// fail is where every error of every request ends: it is classified, logged,
// counted and written, once.
func (g *Gateway) fail(c *fiber.Ctx, err error) error {
	t := traceOf(c)
	a := classify(err)
	g.metrics.answered(t, a.status, a.code)
	attributes := append(t.attributes(a.status), "code", a.code, "error", err)
	where, stack := panicOf(err)
	if where != "" {
		g.metrics.panics.WithLabelValues(where).Inc()
		attributes = append(attributes, "stack", stack)
	}
	level := a.level(t)
	if stack != "" {
		level = slog.LevelError
	}
	g.log.Log(c.Context(), level, "failed", attributes...)

	if conn, ok := c.Context().Conn().(*conn); ok {
		// No body can be found in what was sent, and the connection will be closed.
		conn.linger.Store(a.code == CodeHeaderTooLarge || a.code == CodeMalformedHTTP)
		// A client that has sent nothing would take it for the answer to what it
		// sends next.
		conn.mute.Store(conn.heard.Load() == 0)
	}
	g.bodies.discard(c)
	c.Status(a.status)
	c.Set(fiber.HeaderXRequestID, t.id)
	if a.retryAfter > 0 {
		c.Set(fiber.HeaderRetryAfter, strconv.Itoa(a.retryAfter))
	}
	return c.JSON(failure{a.detail, a.detail, a.code, t.id, a.retryAfter})
}

// panicOf tells in which package a failure panicked, if it did, and the stack.
func panicOf(err error) (where, stack string) {
	var recovered *panicError
	var stage1 *prep.Error
	switch {
	case errors.As(err, &recovered):
		return "gateway", string(recovered.stack)
	case errors.As(err, &stage1) && stage1.Stack != nil:
		return "prep", string(stage1.Stack)
	default:
		return "", ""
	}
}

// attributes are what the log says of a request, its payload never.
func (t *trace) attributes(status int) []any {
	attributes := []any{"request_id", t.id, "route", t.route, "status", status, "ms", milliseconds(time.Since(t.start))}
	if t.model != "" {
		attributes = append(attributes, "model", t.model, "mode", t.mode)
	}
	for s, d := range t.stages {
		if d > 0 {
			attributes = append(attributes, stage(s).String()+"_ms", milliseconds(d))
		}
	}
	return attributes
}

// serverTiming is the time of each stage, as the header of that name has it.
func (t *trace) serverTiming() string {
	var text []byte
	for s, d := range t.stages {
		if d == 0 {
			continue
		}
		if text != nil {
			text = append(text, ", "...)
		}
		text = append(append(text, stage(s).String()...), ";dur="...)
		text = strconv.AppendFloat(text, milliseconds(d), 'f', 3, 64)
	}
	return string(text)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// level is how much an operator should mind: a probe that says "not ready" is
// asked every few seconds, and a caller's mistake is the caller's.
func (a answer) level(t *trace) slog.Level {
	switch {
	case t.route == "/ping", a.code == CodeCallerGone:
		return slog.LevelDebug
	case a.code == CodeInternal:
		return slog.LevelError
	case a.retryAfter > 0:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}
