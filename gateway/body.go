package gateway

import (
	"errors"
	"io"
	"net"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"histogate/tritonclient"
)

// bodies reads request bodies into pooled memory.
//
// The server streams: a handler runs when the header and the first bytes of the
// body are read, so that a request can be refused before memory is set aside for
// its body. Reading the stream into a pooled buffer costs what buffering inside
// the framework costs (28.6 against 28.7 us of CPU for a 121 KB body, medians of
// five runs in one); a fresh slice for each body costs 71 us.
type bodies struct {
	limit     int
	admission *admission
	pool      tritonclient.Buffers // a small body never holds the memory of a large one
}

// body is a request's body in memory of the pool. It is the holder's until it is
// released; nothing that aliases it may be kept longer.
type body struct {
	B        []byte
	memory   *[]byte // of B, from the pool; nil where there is none
	owner    *bodies
	reserved int
}

// release gives the memory back. It may be called again.
func (b *body) release() {
	if b.memory == nil {
		return
	}
	b.owner.pool.Put(b.memory)
	b.owner.admission.bytes.give(b.reserved)
	*b = body{owner: b.owner}
}

// read reads the whole body of the request.
func (b *bodies) read(c *fiber.Ctx) (*body, error) {
	length := c.Request().Header.ContentLength()
	if length > b.limit {
		return nil, b.tooLarge()
	}
	if c.Context().UserValue(awaits{}) != nil {
		if err := b.admission.room(max(length, 0)); err != nil { // chunked: the first bytes tell
			return nil, err
		}
		return nil, errAwaited
	}
	read := &body{owner: b}
	if err := read.fill(length, c.Context().RequestBodyStream()); err != nil {
		read.release()
		return nil, err
	}
	return read, nil
}

func (b *body) fill(length int, stream io.Reader) error {
	if stream == nil { // no body at all
		return nil
	}
	if length >= 0 {
		if err := b.grow(length); err != nil {
			return err
		}
		b.B = b.B[:length]
		_, err := io.ReadFull(stream, b.B)
		return readError(err)
	}
	// A chunked body: its length is known only when it has ended.
	for {
		if len(b.B) == b.owner.limit {
			return b.end(stream)
		}
		if len(b.B) == b.reserved {
			if err := b.grow(min(max(2*b.reserved, firstChunked), b.owner.limit)); err != nil {
				return err
			}
		}
		n, err := stream.Read(b.B[len(b.B):b.reserved])
		b.B = b.B[:len(b.B)+n]
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return readError(err)
		}
	}
}

// end is for a chunked body of the largest size, which has to end here.
func (b *body) end(stream io.Reader) error {
	var more [1]byte
	_, err := io.ReadFull(stream, more[:])
	switch {
	case err == nil:
		return b.owner.tooLarge()
	case errors.Is(err, io.EOF):
		return nil
	default:
		return readError(err)
	}
}

// firstChunked is the room for a body of unknown length at first.
const firstChunked = 64 << 10

// grow makes room for a body of the given size, if there is any.
func (b *body) grow(size int) error {
	if size == 0 {
		return nil
	}
	if err := b.owner.admission.reserve(size - b.reserved); err != nil {
		return err
	}
	memory := b.owner.pool.Get(size)
	b.B = (*memory)[:copy(*memory, b.B)]
	if b.memory != nil {
		b.owner.pool.Put(b.memory)
	}
	b.memory, b.reserved = memory, size
	return nil
}

func (b *bodies) tooLarge() error {
	return refuse(CodeBodyTooLarge, "the body is larger than the %d bytes that are taken", b.limit)
}

// discardTimes is how many times the largest body is read of one that is not looked
// at, before its client is told so all the same.
const discardTimes = 4

// discard reads what is left of a body that will not be looked at, and tells whether
// that was all of it. A client reads the answer only when it has sent its body:
// answering before that and closing reaches it as a reset connection, without the
// answer. It costs no memory; its time is bounded by the connection's read deadline.
func (b *bodies) discard(ctx *fasthttp.RequestCtx) bool {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return true
	}
	_, err := io.CopyN(io.Discard, stream, discardTimes*int64(b.limit))
	return errors.Is(err, io.EOF)
}

// endChunked sees to what follows a chunked body: nothing is read after one with
// trailers, whose end, unlike that of the headers, cannot be looked at as it came.
func (b *bodies) endChunked(ctx *fasthttp.RequestCtx) {
	if !b.discard(ctx) || len(ctx.Request.Header.PeekTrailerKeys()) > 0 {
		ctx.SetConnectionClose()
	}
}

// readError tells a body that came too slowly from one that is not whole.
func readError(err error) error {
	var timeout net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return &refusal{code: CodeRequestTimeout, detail: "the body did not arrive in time; send it in one piece, or over a faster connection", err: err}
	default:
		return &refusal{code: CodeMalformedHTTP, detail: "the body ended before its declared length or is not well chunked", err: err}
	}
}
