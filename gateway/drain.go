package gateway

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

const (
	quietBeforeClose = time.Second            // of a connection, once draining
	acceptBacklog    = 100 * time.Millisecond // without a connection, until no more are expected: the way of a packet there and back
	acceptLimit      = time.Second            // for those who never stop connecting, where nothing keeps them away
	acceptPause      = 100 * time.Millisecond
	halfSentLimit    = 3 * time.Second // of a request that stops half-way, while draining
	drainPoll        = 20 * time.Millisecond
	cancelGrace      = 2 * time.Second // from cancelling what is pending until it is given up
)

// drain answers what was accepted, for as long as that may take, and cancels
// the rest. Clients do not retry a connection that was dropped, so the open ones
// are served on, each answer with "Connection: close", and one is closed only
// when it has been quiet for a while, the time before the drain not counted: its
// client cannot know yet. The framework's own shutdown closes idle ones at once.
func (g *Gateway) drain(api *listener) {
	end := time.Now().Add(g.cfg.DrainLimit)
	g.draining.Store(true)
	g.log.Info("draining", "in_flight", g.admission.inFlight(), "limit", g.cfg.DrainLimit.String())
	time.Sleep(g.cfg.DrainDelay) // whoever sends requests here learns from /readyz to stop
	api.stop()
	<-api.ended
	if g.connections.wait(end, quietBeforeClose, halfSentLimit) && g.admission.wait(end) {
		return
	}
	g.log.Warn("drain limit passed, cancelling what is pending", "in_flight", g.admission.inFlight())
	g.cancelPending()
	end = time.Now().Add(cancelGrace)
	if !g.connections.wait(end, 0, 0) {
		g.log.Warn("connections were still busy and are cut", "connections", g.connections.cut())
	}
	g.admission.wait(end)
}

// wait waits until no request is counted in, calls of [Gateway.Forward] included, and
// reports whether that came to pass before the end.
func (a *admission) wait(end time.Time) bool {
	for a.inFlight() > 0 {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(drainPoll)
	}
	return true
}

// listener takes the API's connections. It can stop without losing those that
// the kernel has accepted already, whose requests may be there in full.
type listener struct {
	*net.TCPListener
	tls   *tls.Config // nil where HTTP is plain
	log   *slog.Logger
	ended chan struct{} // closed when Accept has returned [io.EOF]
	until atomic.Pointer[time.Time]
}

func newListener(l *net.TCPListener, log *slog.Logger) *listener {
	return &listener{TCPListener: l, log: log, ended: make(chan struct{})}
}

// Accept returns a [*conn], or [io.EOF] once the listener was stopped and nothing
// more is waiting. A shortage, of file descriptors above all, is waited out, and
// logged once: to the server any other error would be the end.
func (l *listener) Accept() (net.Conn, error) {
	for short := false; ; {
		if until := l.until.Load(); until != nil {
			if !time.Now().Before(*until) || !l.waiting() || l.SetDeadline(*until) != nil {
				return nil, l.end()
			}
		}
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			if l.tls != nil {
				return &conn{Conn: tls.Server(c, l.tls), tcp: c}, nil
			}
			return &conn{Conn: c, tcp: c}, nil
		case errors.Is(err, net.ErrClosed):
			return nil, l.end()
		case errors.Is(err, os.ErrDeadlineExceeded): // stopped meanwhile
		default:
			if !short {
				l.log.Error("no connection can be taken at the moment", "error", err)
			}
			short = true
			time.Sleep(acceptPause)
		}
	}
}

// waiting tells whether a connection waits to be taken, or comes within a moment.
// It asks the kernel: the deadline of an accept can pass before it was ever tried,
// on a machine that is busy, and connections with whole requests would be reset.
func (l *listener) waiting() bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	ready := 0
	closed := raw.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			ready, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(acceptBacklog.Milliseconds()))
		}
	})
	return closed == nil && ready > 0
}

func (l *listener) end() error {
	_ = l.Close() // nobody is left to be told
	close(l.ended)
	return io.EOF
}

// stop has Accept take what is waiting, for a moment, and then end. Who connects from now
// on is kept waiting by the kernel, asks again after a second, is refused then, as the port
// is closed, and so has sent nothing. Else there would always be somebody who had just got
// through. A handshake that was begun before and takes longer than acceptBacklog is lost.
func (l *listener) stop() {
	if err := l.dropNewcomers(); err != nil {
		l.log.Warn("the kernel cannot be told to take no more connections; one that comes at the last moment may be reset", "error", err)
	}
	until := time.Now().Add(acceptLimit)
	l.until.Store(&until)
	_ = l.SetDeadline(time.Now()) // wakes it up; one that is closed ends by itself
}

// dropNewcomers has the kernel drop the packets that ask for a connection, those with
// SYN and without ACK. The others complete the connections that were asked for before.
func (l *listener) dropNewcomers() error {
	const flagsAt, syn, ack, all = 13, 0x02, 0x10, 0xffffffff // of the header of TCP (RFC 9293)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flagsAt},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: all},
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	set := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	return errors.Join(set, err)
}

// conn is a connection of the API.
type conn struct {
	net.Conn // what HTTP is spoken over: tcp, or TLS over that, with the handshake in the first read
	tcp      *net.TCPConn
	// heard is when the client last sent anything, in Unix nanoseconds; 0: never.
	heard atomic.Int64
	// mute has what is written go nowhere.
	mute atomic.Bool
	// clear is set where the client speaks plain HTTP and TLS is spoken here.
	clear atomic.Bool
	// closing tells that a drain has closed it.
	closing atomic.Bool
	// linger has Close wait, within bounds, for what the client still sends.
	// Closing a connection with unread data in it resets it, and a reset can
	// overtake the answer that was just written. [Gateway.fail] sets it where a
	// request was not read to its end.
	linger atomic.Bool
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && record.Conn != nil {
		c.clear.Store(true) // it shall be told, in its own language
		c.heard.Store(time.Now().UnixNano())
		return 0, errNotTLS
	}
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

// errNotTLS is told to a client that speaks plain HTTP, as what it sent was not.
var errNotTLS = errors.New("this port takes HTTPS; write https in the URL")

// giveUpReading ends a read that has waited for the client for too long. It does
// nothing to a request that has arrived: nobody reads then.
func (c *conn) giveUpReading(after time.Duration) {
	if time.Since(time.Unix(0, c.heard.Load())) >= after && !c.unread() {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // the past; if it is closed, all the better
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if c.mute.Load() {
		return len(p), nil
	}
	if c.clear.Load() {
		return c.tcp.Write(p)
	}
	return c.Conn.Write(p)
}

const (
	lingerBytes = 1 << 20
	lingerTime  = 500 * time.Millisecond
)

// Close closes the connection, after a while where it has to linger.
func (c *conn) Close() error {
	if c.linger.CompareAndSwap(true, false) && c.closeWrite() == nil && c.tcp.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.tcp, lingerBytes) // what it ends with does not matter
	}
	return c.Conn.Close()
}

// closeWrite tells the client that nothing more comes.
func (c *conn) closeWrite() error {
	if secure, ok := c.Conn.(*tls.Conn); ok {
		_ = secure.CloseWrite() // in the words of TLS first
	}
	return c.tcp.CloseWrite()
}

// presence tells whether a request's caller is still there. It may be asked
// until the handler returns.
func presence(c *fiber.Ctx) func() bool {
	if conn, ok := c.Context().Conn().(*conn); ok {
		return conn.present
	}
	return func() bool { return true }
}

// present is false when the client has closed the connection or reset it, whether or
// not there is something left to read before that: the farewell of TLS, or a request
// that nobody will read the answer to. One that has closed only its own direction is
// taken for gone, though it could still read: nothing tells it from one that has closed
// both, as all clients of HTTP do.
func (c *conn) present() bool { return c.poll(unix.POLLRDHUP) == 0 }

// unread tells whether something has arrived that nobody has read yet.
func (c *conn) unread() bool { return c.poll(unix.POLLIN)&unix.POLLIN != 0 }

// poll asks the kernel which of some events a connection is at, and whether it is
// closed. It takes nothing of what the client has sent.
func (c *conn) poll(events int16) int16 {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return unix.POLLHUP
	}
	at := []unix.PollFd{{Events: events}}
	if raw.Control(func(fd uintptr) {
		at[0].Fd = int32(fd)
		_, _ = unix.Poll(at, 0) // where that fails it is at none
	}) != nil {
		return unix.POLLHUP // closed on this side
	}
	return at[0].Revents
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
// and reports whether that came to pass before the end. A request that stopped
// half-way for long enough is given up: its client is told that it did not arrive
// in time. Nothing that has arrived is given up because it was not yet looked at.
func (s *connections) wait(end time.Time, quiet, halfSent time.Duration) bool {
	for began := time.Now(); ; time.Sleep(drainPoll) {
		s.mu.Lock()
		for c, since := range s.quiet {
			switch c := c.(*conn); {
			case since.IsZero():
				if time.Since(began) >= halfSent {
					c.giveUpReading(halfSent)
				}
			case time.Since(began) >= quiet && time.Since(since) >= quiet && !c.unread() && c.closing.CompareAndSwap(false, true):
				// Its goroutine notices and reports it closed. The farewell of TLS
				// may wait for a client that does not read.
				go func() { _ = c.Close() }()
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
		_ = c.(*conn).tcp.Close() // without a farewell, for which there is no time
	}
	return len(open)
}
