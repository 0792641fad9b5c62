package gateway

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

const (
	quietBeforeClose = time.Second           // of a connection, while draining
	acceptBacklog    = 20 * time.Millisecond // without a connection, until no more are waiting
	acceptLimit      = time.Second           // for those who never stop connecting
	acceptPause      = 10 * time.Millisecond
	halfSentLimit    = 3 * time.Second // of a request that stops half-way, while draining
	drainPoll        = 20 * time.Millisecond
	cancelGrace      = 2 * time.Second // from cancelling what is pending until it is given up
)

// drain answers what was accepted, for as long as that may take, and cancels
// the rest. Clients do not retry a connection that was dropped, so the open ones
// are served on, each answer with "Connection: close", and one is closed only
// when it has been quiet for a while, the time before the drain included. The
// framework's own shutdown closes idle connections at once.
func (g *Gateway) drain(api *listener) {
	g.draining.Store(true)
	g.log.Info("draining", "in_flight", len(g.admission.inFlight), "limit", g.cfg.DrainLimit.String())
	time.Sleep(g.cfg.DrainDelay) // whoever sends requests here learns from /readyz to stop
	api.stop()
	<-api.ended
	if g.connections.wait(g.cfg.DrainLimit-g.cfg.DrainDelay, quietBeforeClose) {
		return
	}
	g.log.Warn("drain limit passed, cancelling what is pending", "in_flight", len(g.admission.inFlight))
	g.cancelPending()
	if !g.connections.wait(cancelGrace, 0) {
		g.log.Warn("connections were still busy and are cut", "connections", g.connections.cut())
	}
}

// listener takes the API's connections. It can stop without losing those that
// the kernel has accepted already, whose requests may be there in full.
type listener struct {
	*net.TCPListener
	log   *slog.Logger
	ended chan struct{} // closed when Accept has returned [io.EOF]
	until atomic.Pointer[time.Time]
}

func newListener(l *net.TCPListener, log *slog.Logger) *listener {
	return &listener{TCPListener: l, log: log, ended: make(chan struct{})}
}

// Accept returns a [*conn], or [io.EOF] once the listener was stopped and nothing
// more is waiting. A shortage, of file descriptors above all, is waited out: to
// the server any other error would be the end.
func (l *listener) Accept() (net.Conn, error) {
	for {
		if until := l.until.Load(); until != nil {
			if !time.Now().Before(*until) || l.SetDeadline(time.Now().Add(acceptBacklog)) != nil {
				return nil, l.end()
			}
		}
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			return &conn{TCPConn: c}, nil
		case errors.Is(err, net.ErrClosed), l.until.Load() != nil && errors.Is(err, os.ErrDeadlineExceeded):
			return nil, l.end()
		case errors.Is(err, os.ErrDeadlineExceeded): // stopped at this very moment
		default:
			l.log.Error("a connection could not be taken", "error", err)
			time.Sleep(acceptPause)
		}
	}
}

func (l *listener) end() error {
	_ = l.Close() // nobody is left to be told
	close(l.ended)
	return io.EOF
}

// stop has Accept take what is waiting, for a moment, and then end.
func (l *listener) stop() {
	until := time.Now().Add(acceptLimit)
	l.until.Store(&until)
	_ = l.SetDeadline(time.Now().Add(acceptBacklog)) // wakes it up; one that is closed ends by itself
}

// conn is a connection of the API.
type conn struct {
	*net.TCPConn
	// heard is when the client last sent anything, in Unix nanoseconds; 0: never.
	heard atomic.Int64
	// mute has what is written go nowhere.
	mute atomic.Bool
	// linger has Close wait, within bounds, for what the client still sends.
	// Closing a connection with unread data in it resets it, and a reset can
	// overtake the answer that was just written. [Gateway.fail] sets it where a
	// request was not read to its end.
	linger atomic.Bool
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

// giveUpReading ends a read that has waited for the client for too long. It does
// nothing to a request that has arrived: nobody reads then.
func (c *conn) giveUpReading(after time.Duration) {
	if time.Since(time.Unix(0, c.heard.Load())) > after {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // the past; if it is closed, all the better
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if c.mute.Load() {
		return len(p), nil
	}
	return c.TCPConn.Write(p)
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
// and reports whether that came to pass within the limit. A request that stopped
// half-way is given up: its client is told that it did not arrive in time.
func (s *connections) wait(limit, quiet time.Duration) bool {
	began := time.Now()
	for end := began.Add(limit); ; time.Sleep(drainPoll) {
		s.mu.Lock()
		for c, since := range s.quiet {
			if !since.IsZero() && time.Since(since) >= quiet {
				_ = c.Close() // its goroutine notices and reports it closed
			}
			if since.IsZero() && time.Since(began) >= halfSentLimit {
				c.(*conn).giveUpReading(halfSentLimit)
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
	open := slices.Collect(maps.Keys(s.quiet))
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	return len(open)
}
