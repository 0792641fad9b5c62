package gateway

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

const (
	quietBeforeClose = time.Second           // of a connection, while draining
	acceptBacklog    = 20 * time.Millisecond // to take what the kernel accepted before the drain
	drainPoll        = 20 * time.Millisecond
	cancelGrace      = 2 * time.Second // from cancelling what is pending until it is given up
)

// drain answers what was accepted, for as long as that may take, and cancels
// the rest. Clients do not retry a connection that was dropped, so the open ones
// are served on, each answer with "Connection: close", and one is closed only
// when it has been quiet for a while. The framework's own shutdown closes idle
// connections at once.
func (g *Gateway) drain(api *listener) {
	g.draining.Store(true)
	g.log.Info("draining", "in_flight", len(g.admission.inFlight), "limit", g.cfg.DrainLimit.String())
	api.stop()
	if g.connections.wait(g.cfg.DrainLimit, quietBeforeClose) {
		return
	}
	g.log.Warn("drain limit passed, cancelling what is pending", "in_flight", len(g.admission.inFlight))
	g.cancelPending()
	if !g.connections.wait(cancelGrace, 0) {
		g.log.Warn("connections were still busy and are cut", "connections", g.connections.cut())
	}
}

// listener can stop without losing a connection that the kernel has accepted
// already, and whose request may be there in full.
type listener struct {
	*net.TCPListener
	stopping atomic.Bool
}

// Accept returns [io.EOF] once the listener was stopped.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	switch {
	case err == nil:
		return &conn{TCPConn: c}, nil
	case l.stopping.Load():
		_ = l.Close() // nobody is left to be told
		return nil, io.EOF
	default:
		return nil, err
	}
}

func (l *listener) stop() {
	l.stopping.Store(true)
	if l.SetDeadline(time.Now().Add(acceptBacklog)) != nil {
		_ = l.Close() // it was closed already
	}
}

// conn is a connection of the API.
type conn struct {
	*net.TCPConn
	// linger has Close wait, within bounds, for what the client still sends.
	// Closing a connection with unread data in it resets it, and a reset can
	// overtake the answer that was just written.
	linger atomic.Bool
}

const (
	lingerBytes = 1 << 20
	lingerTime  = 500 * time.Millisecond
)

// Close closes the connection, after a while where it has to linger.
func (c *conn) Close() error {
	if c.linger.CompareAndSwap(true, false) && c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.TCPConn, lingerBytes) // what it ends with does not matter
	}
	return c.TCPConn.Close()
}

// presence tells whether a request's caller is still there. It may be asked
// until the handler returns.
func presence(c *fiber.Ctx) func() bool {
	if conn, ok := c.Context().Conn().(*conn); ok {
		return conn.present
	}
	return func() bool { return true }
}

// present is false when the client has closed the connection or reset it. It
// takes nothing from what the client may have sent meanwhile.
func (c *conn) present() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var n int
	if raw.Control(func(fd uintptr) {
		var next [1]byte
		n, _, err = syscall.Recvfrom(int(fd), next[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	}) != nil {
		return false // closed on this side
	}
	return n > 0 || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
}

// connections knows every open connection of the API and whether a request is
// being served on it.
type connections struct {
	mu    sync.Mutex
	quiet map[net.Conn]time.Time // since when; the zero time while it is busy
}

// changed is the server's hook for the states of its connections.
func (s *connections) changed(c net.Conn, state fasthttp.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case fasthttp.StateNew, fasthttp.StateIdle:
		s.quiet[c] = time.Now()
	case fasthttp.StateActive:
		s.quiet[c] = time.Time{}
	default: // closed
		delete(s.quiet, c)
	}
}

// wait closes what has been quiet for long enough until no connection is left,
// and reports whether that came to pass within the limit.
func (s *connections) wait(limit, quiet time.Duration) bool {
	for end := time.Now().Add(limit); ; time.Sleep(drainPoll) {
		s.mu.Lock()
		for c, since := range s.quiet {
			if !since.IsZero() && time.Since(since) >= quiet {
				_ = c.Close() // its goroutine notices and reports it closed
			}
		}
		open := len(s.quiet)
		s.mu.Unlock()
		if open == 0 || time.Now().After(end) {
			return open == 0
		}
	}
}

// cut closes every connection and counts them.
func (s *connections) cut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.quiet {
		_ = c.Close()
	}
	return len(s.quiet)
}
