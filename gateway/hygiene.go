package gateway

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// chunkedLength is the length that the framework gives a chunked body.
const chunkedLength = -1

// screen is around the router: it answers what must not come as far.
func (g *Gateway) screen(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	known := map[string]bool{}
	for _, method := range fiber.DefaultMethods {
		known[method] = true
	}
	return func(ctx *fasthttp.RequestCtx) {
		err := checkHeaders(ctx.Request.Header.RawHeaders())
		if !known[string(ctx.Method())] {
			// The framework has an answer of its own, which does not say what is taken. No
			// route takes TRACE.
			ctx.Request.Header.SetMethod(fiber.MethodTrace)
		}
		if err == nil {
			next(ctx)
		} else {
			c := g.app.AcquireCtx(ctx)
			defer g.app.ReleaseCtx(c)
			_ = g.fail(c, err) // it has been written
		}
		if g.draining.Load() { // what came before the drain too
			ctx.SetConnectionClose()
		}
		if ctx.Request.Header.ContentLength() == chunkedLength && !ctx.Response.ConnectionClose() {
			g.bodies.endChunked(ctx)
		}
		g.limitWriting(ctx)
	}
}

// limitWriting bounds how long a client may take to read an answer, and has that sent
// before anything more is read. The framework's own limit is not used: it stays on the
// connection, and a "100 Continue" or a failure to read what comes after a pause would
// find it passed and be lost; and it holds an answer back while it reads a request
// that follows at once.
func (g *Gateway) limitWriting(ctx *fasthttp.RequestCtx) {
	_ = ctx.SetWriteDeadline(time.Now().Add(g.cfg.RequestTimeout)) // if it is closed, the writing fails
}

// awaits marks a request whose client waits to be told whether to send its body.
type awaits struct{}

// errAwaited ends the way of a request that is so marked at its body: all that is known
// without that is found to be good.
var errAwaited = errors.New("the body is awaited")

// expect answers "Expect: 100-continue". The request goes its way without its body
// first, and what it is answered before that is needed, most often a refusal, is sent
// in place of "100 Continue". The framework would send a bare status, but sends what the
// response holds by then.
func (g *Gateway) expect(ctx *fasthttp.RequestCtx) (status int) {
	ctx.SetUserValue(awaits{}, true)
	defer ctx.RemoveUserValue(awaits{})
	g.app.Server().Handler(ctx)
	status = ctx.Response.StatusCode()
	if status == fasthttp.StatusContinue {
		ctx.SetStatusCode(fasthttp.StatusOK) // as it was
	} else if conn, ok := ctx.Conn().(*conn); ok {
		conn.linger.Store(true) // it may have sent its body all the same
	}
	return status
}

// checkHeaders refuses headers that somebody on the way could have read in another
// way, above all as to where the body ends: bytes that are a body to one and the next
// request to the other let a caller speak for others on the same connection. It is
// given the headers as they came, and refuses what the framework would take. What the
// framework refuses itself is in the table of package hygiene too.
func checkHeaders(raw []byte) error {
	var length, coding bool
	for len(raw) > 0 {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return refuse(CodeMalformedHTTP, "a line of the headers ends in LF alone; end each in CR LF")
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		name, value, _ := bytes.Cut(line, []byte{':'})
		switch {
		case len(line) > 0 && (line[0] == ' ' || line[0] == '\t'):
			return refuse(CodeMalformedHTTP, "a header goes on in a second line; write each in one")
		case bytes.IndexByte(name, ' ') >= 0:
			return refuse(CodeMalformedHTTP, "there is a space in the name of a header, or before its colon; leave it out")
		case isHeader(name, fiber.HeaderContentLength):
			length = true
		case isHeader(name, fiber.HeaderTransferEncoding):
			if coding = true; !strings.EqualFold(string(bytes.TrimSpace(value)), "chunked") {
				return refuse(CodeMalformedHTTP, "the Transfer-Encoding is not chunked; send it so, or with a Content-Length")
			}
		}
	}
	if length && coding {
		return refuse(CodeMalformedHTTP, "there are both a Content-Length and a Transfer-Encoding; send one of them")
	}
	return nil
}

func isHeader(name []byte, header string) bool {
	return len(name) == len(header) && strings.EqualFold(string(name), header)
}

// unreadable ends a request that the framework could not read. What its words quote
// of the request is left out: it may hold a key.
func (g *Gateway) unreadable(c *fiber.Ctx, err error) error {
	if framework, ok := errors.AsType[*fiber.Error](err); ok {
		words, _, _ := strings.Cut(framework.Message, `"`)
		words, _, _ = strings.Cut(words, ": buffer size=")
		words = strings.TrimPrefix(words, "error when reading request headers: ")
		err = fiber.NewError(framework.Code, strings.TrimSpace(words))
	}
	g.limitWriting(c.Context())
	return g.fail(c, err)
}
