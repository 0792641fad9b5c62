package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
	"histogate/tritonclient"
)

// writeAnswer writes the answer of an inference as the media type that was asked
// for, straight into the response's own buffer.
func writeAnswer(c *fiber.Ctx, as string, j *job, outputs []tritonclient.Tensor) error {
	write := appendAnswer
	switch {
	case as == mediaFloats:
		write = appendFloats
		c.Set(headerShape, j.shapes())
	case j.request.IsBare():
		write = appendArrays
	}
	body, err := write(c.Response().SwapBody(nil)[:0], j, outputs)
	c.Response().SwapBody(body)
	c.Set(fiber.HeaderContentType, as)
	return err
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

// appendArrays appends the answer to an image by itself: an array that holds an
// array for each of the mode's outputs, [[...]] for most.
func appendArrays(body []byte, j *job, outputs []tritonclient.Tensor) (_ []byte, err error) {
	separator := byte('[')
	for i := range outputs {
		body = append(body, separator, '[')
		if body, err = appendOutput(body, j, i, outputs); err != nil {
			return body, err
		}
		body, separator = append(body, ']'), ','
	}
	return append(body, ']'), nil
}

func appendOutput(body []byte, j *job, i int, outputs []tritonclient.Tensor) ([]byte, error) {
	return j.output(i).AppendJSON(body, outputs[i].Data)
}

// appendFloats appends the answer in binary: the values of the mode's outputs, one
// output after the other, as little-endian float32.
func appendFloats(body []byte, _ *job, outputs []tritonclient.Tensor) ([]byte, error) {
	for _, output := range outputs {
		body = append(body, output.Data...)
	}
	return body, nil
}

// shapes tells of an answer in binary where its values belong: the dimensions of
// an output, without the batch's, separated by commas, and a semicolon between two
// outputs, such as "6002;1536".
func (j *job) shapes() string {
	var text []byte
	for i := range j.mode.Roles() {
		if i > 0 {
			text = append(text, ';')
		}
		for k, size := range j.output(i).Shape {
			if k > 0 {
				text = append(text, ',')
			}
			text = strconv.AppendInt(text, size, 10)
		}
	}
	return string(text)
}

// output is what the model has for the i-th role of the mode.
func (j *job) output(i int) prep.Output {
	output, _ := j.model.spec.Output(j.mode.Roles()[i]) // a checked spec has it
	return output
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

// record classifies, logs and counts what a request failed with, once.
func (g *Gateway) record(t *trace, err error) answer {
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
	g.log.Log(context.Background(), level, "failed", attributes...)
	return a
}

// fail is where every error of every request ends: it is recorded and written.
func (g *Gateway) fail(c *fiber.Ctx, err error) error {
	t := traceOf(c)
	a := g.record(t, err)
	conn, _ := c.Context().Conn().(*conn)
	if a.unread() || !g.bodies.discard(c.Context()) {
		c.Response().SetConnectionClose()
		if conn != nil {
			conn.linger.Store(true)
		}
	}
	if conn != nil {
		// A client that has sent nothing would take it for the answer to what it
		// sends next.
		conn.mute.Store(conn.heard.Load() == 0)
	}
	c.Status(a.status)
	c.Set(fiber.HeaderXRequestID, t.id)
	if a.retryAfter > 0 {
		c.Set(fiber.HeaderRetryAfter, strconv.Itoa(a.retryAfter))
	}
	if a.code == CodeUnauthorized {
		c.Set(fiber.HeaderWWWAuthenticate, "Bearer")
	}
	f := failure{a.detail, a.detail, a.code, t.id, a.retryAfter}
	if t.runtime {
		return modelError(c, f, a.status)
	}
	return c.JSON(f)
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

// unread tells that a request was not read to its end and cannot be: where that is
// is not known, or it does not come.
func (a answer) unread() bool {
	return a.code == CodeHeaderTooLarge || a.code == CodeMalformedHTTP || a.code == CodeRequestTimeout
}

// level is how much an operator should mind: a probe that says "not ready" is
// asked every few seconds, and a caller's mistake is the caller's.
func (a answer) level(t *trace) slog.Level {
	switch {
	case t.route == "/ping", t.route == "/readyz", a.code == CodeCallerGone:
		return slog.LevelDebug
	case a.code == CodeInternal:
		return slog.LevelError
	case a.status >= http.StatusInternalServerError:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}
