package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"histogate/prep"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// dial opens a connection of its own to the API.
func (r *running) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// ask sends a sound tile over a connection and returns the answer's status and
// whether it announces that the connection is closed.
func ask(t *testing.T, conn net.Conn, answers *bufio.Reader) (status int, closes bool) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(goodTile), goodTile); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Close
}

// While draining, open connections are served, idle and unused ones too, however
// long they were, and then closed; new ones are not taken.
func TestDrainServesOpenConnections(t *testing.T) {
	r := run(t, nil)
	idle, idleAnswers := r.dial(t)
	if status, closes := ask(t, idle, idleAnswers); status != http.StatusOK || closes {
		t.Fatalf("before the drain: %d, closed: %v", status, closes)
	}
	unused, unusedAnswers := r.dial(t)
	quiet, quietAnswers := r.dial(t)
	time.Sleep(quietBeforeClose)
	began := time.Now()
	r.stop()
	for !r.draining.Load() {
		time.Sleep(time.Millisecond)
	}
	for name, c := range map[string]struct {
		net.Conn
		answers *bufio.Reader
	}{"idle": {idle, idleAnswers}, "unused": {unused, unusedAnswers}} {
		if status, closes := ask(t, c, c.answers); status != http.StatusOK || !closes {
			t.Errorf("on an %s connection: %d, closed: %v", name, status, closes)
		}
	}
	if _, err := quietAnswers.ReadByte(); err != io.EOF {
		t.Errorf("a quiet connection: %v", err)
	}
	if took := time.Since(began); took < quietBeforeClose || took > quietBeforeClose+2*time.Second {
		t.Errorf("a quiet connection was closed after %s", took)
	}
	_ = quiet.Close()
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	r.ended <- nil // for the clean-up
	if late, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
		_ = late.Close()
		t.Error("a connection was taken after the drain")
	}
}

// What waits in the kernel's backlog when the listener stops is still taken.
func TestListenerTakesTheBacklog(t *testing.T) {
	const callers = 32
	tcp, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(tcp, slog.New(slog.DiscardHandler))
	for range callers {
		conn, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	l.stop()
	taken := 0
	for {
		conn, err := l.Accept()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		taken++
	}
	if taken != callers {
		t.Errorf("%d of %d connections that were waiting are taken", taken, callers)
	}
	<-l.ended
}

// Whoever keeps connecting while the listener stops is either served or cannot connect: a
// connection that the kernel had taken and that is then reset is a request lost.
func TestListenerResetsNobody(t *testing.T) {
	const callers, rounds = 32, 10
	for round := range rounds {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			tcp, err := listen("127.0.0.1", 0, "PORT")
			if err != nil {
				t.Fatal(err)
			}
			l := newListener(tcp, slog.New(slog.DiscardHandler))
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						_, _ = conn.Read(make([]byte, 1)) // the caller finds out
						_, _ = conn.Write([]byte("x"))
					}()
				}
			}()
			var all sync.WaitGroup
			var served atomic.Int64
			for range callers {
				all.Go(func() {
					for {
						conn, err := net.Dial("tcp", tcp.Addr().String())
						if err != nil {
							if !errors.Is(err, unix.ECONNREFUSED) {
								t.Error(err)
							}
							return
						}
						_, err = conn.Write([]byte("?"))
						if err == nil {
							_, err = conn.Read(make([]byte, 1))
						}
						_ = conn.Close()
						if err != nil {
							t.Errorf("it had connected: %v", err)
							return
						}
						served.Add(1)
					}
				})
			}
			until(t, "all are served", func() bool { return served.Load() >= 2*callers })
			l.stop()
			<-l.ended
			all.Wait()
		})
	}
}

// A client that reads only when it has sent all is told what was wrong with its
// headers, though they are not read to their end.
func TestAnswerToLargeHeadersArrives(t *testing.T) {
	r := run(t, nil)
	for range 10 {
		conn, answers := r.dial(t)
		if _, err := fmt.Fprintf(conn, "POST /invocations HTTP/1.1\r\nHost: x\r\nCookie: %s\r\n\r\n", strings.Repeat("x", 600<<10)); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("status %d", response.StatusCode)
		}
	}
}

// A connection that is opened ahead and not used is closed without a word: what
// came would be taken for the answer to its first request.
func TestUnusedConnectionHearsNothing(t *testing.T) {
	r := run(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	_, answers := r.dial(t)
	if text, err := io.ReadAll(answers); err != nil || len(text) > 0 {
		t.Errorf("it hears %q, %v", text, err)
	}
}

// A caller who has gone is not served.
func TestCallerWhoWentIsDropped(t *testing.T) {
	r := run(t, nil)
	var inferences atomic.Int64
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		inferences.Add(1)
		return tritontest.Zeros(r.config, q), nil
	})
	w := r.models.list[0].window
	w.open(false)
	conn, _ := r.dial(t)
	if _, err := fmt.Fprintf(conn, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(goodTile), goodTile); err != nil {
		t.Fatal(err)
	}
	for w.parked() == 0 {
		w.open(false) // a probe that succeeds opens it
		time.Sleep(time.Millisecond)
	}
	_ = conn.Close()
	time.Sleep(50 * time.Millisecond)
	w.open(true)
	for range 1000 {
		if w.parked() == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := inferences.Load(); n != 0 {
		t.Errorf("%d inferences for nobody", n)
	}
}

// At the drain limit what is pending is cancelled and told so, inside Triton and
// before it, and a request that is not there in full is told that.
func TestDrainLimit(t *testing.T) {
	r := run(t, func(c *Config) { c.DrainLimit = 200 * time.Millisecond })
	const inside, parked = 8, 4
	entered := make(chan struct{}, inside)
	r.answerCallers(func(ctx context.Context, _ *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	half, halfAnswers := r.dial(t)
	if _, err := fmt.Fprintf(half, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(goodTile), goodTile[1:]); err != nil {
		t.Fatal(err)
	}
	pending := make(chan answered, inside+parked)
	for range inside + parked {
		go func() { pending <- r.post(t, "/invocations", goodTile) }()
	}
	for range inside {
		<-entered
	}
	for r.models.list[0].window.parked() < parked {
		time.Sleep(time.Millisecond)
	}
	r.stop()
	for range inside + parked {
		wantFailure(t, <-pending, http.StatusServiceUnavailable, CodeBusy, "shutting down")
	}
	response, err := http.ReadResponse(halfAnswers, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a request that stopped half-way: %d", response.StatusCode)
	}
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	r.ended <- nil // for the clean-up
}

// Shutdown ends what Serve does, however often and from wherever it is called, and
// costs no request: what is in flight is answered.
func TestShutdown(t *testing.T) {
	r := run(t, nil)
	entered, release := make(chan struct{}), make(chan struct{})
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		close(entered)
		<-release
		return tritontest.Zeros(r.config, q), nil
	})
	conn, answers := r.dial(t)
	var calls sync.WaitGroup
	calls.Go(func() {
		<-entered
		for range 32 {
			calls.Go(r.Shutdown)
		}
		for !r.draining.Load() {
			time.Sleep(time.Millisecond)
		}
		r.Shutdown()
		close(release)
	})
	if status, closes := ask(t, conn, answers); status != http.StatusOK || !closes {
		t.Errorf("what was in flight: %d, closed: %v", status, closes)
	}
	calls.Wait()
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	r.ended <- nil // for the clean-up
	r.Shutdown()
}

// A gateway that was told to end before it served ends at once.
func TestShutdownBeforeServe(t *testing.T) {
	args := []string{"-model-repository", repository(t, testSpec, testConfig), "-host", "127.0.0.1", "-port", "0", "-metrics-port", "0"}
	cfg, err := ReadConfig(args, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g.Shutdown()
	if err := g.Serve(t.Context()); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// A call of Forward that is under way when the gateway is told to end is answered.
func TestDrainWaitsForForward(t *testing.T) {
	r := run(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		close(entered)
		<-leave
		return tritontest.Zeros(r.config, q), nil
	})
	tile, err := prep.ParseRequest([]byte(goodTile))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := r.Forward(t.Context(), "small", prep.Embedding, []*prep.Request{tile})
		answered <- err
	}()
	<-entered
	http.DefaultClient.CloseIdleConnections() // nothing else is waited for
	r.Shutdown()
	time.Sleep(quietBeforeClose + 500*time.Millisecond)
	close(leave)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// A shortage of file descriptors is waited out, and logged once.
func TestShortageIsLoggedOnce(t *testing.T) {
	tcp, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	log := new(lockedBuffer)
	l := newListener(tcp, slog.New(slog.NewTextHandler(log, nil)))
	client, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var limit, short unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	short = limit
	short.Cur = 3 // all of them are taken
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &short); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(500*time.Millisecond, func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }) // as it was
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if n := strings.Count(log.String(), "no connection can be taken"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log)
	}
}

// A connection that a drain closes and that lingers is closed once.
func TestDrainClosesOnce(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	tcp, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	dialled, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	closed := new(slowToClose)
	closed.Conn = server
	c := &conn{Conn: closed, tcp: dialled.(*net.TCPConn)}
	s := connections{quiet: map[net.Conn]time.Time{c: time.Now().Add(-time.Minute)}}
	if s.wait(time.Now().Add(10*drainPoll), 0, time.Minute) {
		t.Error("nothing was waited for")
	}
	if n := closed.times.Load(); n != 1 {
		t.Errorf("it was closed %d times", n)
	}
}

// slowToClose is a connection of which nobody hears that it is closed.
type slowToClose struct {
	net.Conn
	times atomic.Int64
}

func (c *slowToClose) Close() error {
	c.times.Add(1)
	return c.Conn.Close()
}
