package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"histogate/tritonclient/kserve"
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

// While draining, open connections are served, idle and unused ones too, and
// then closed; new ones are not taken; /ping says no.
func TestDrainServesOpenConnections(t *testing.T) {
	r := run(t, nil)
	idle, idleAnswers := r.dial(t)
	if status, closes := ask(t, idle, idleAnswers); status != http.StatusOK || closes {
		t.Fatalf("before the drain: %d, closed: %v", status, closes)
	}
	unused, unusedAnswers := r.dial(t)
	quiet, quietAnswers := r.dial(t)
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

// What waits in the kernel's backlog at the signal is served.
func TestDrainServesTheBacklog(t *testing.T) {
	r := run(t, nil)
	const callers = 32
	conns := make([]net.Conn, callers)
	answers := make([]*bufio.Reader, callers)
	for i := range conns {
		conns[i], answers[i] = r.dial(t)
		if _, err := fmt.Fprintf(conns[i], "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(goodTile), goodTile); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	for i := range conns {
		response, err := http.ReadResponse(answers[i], nil)
		if err != nil {
			t.Fatalf("caller %d: %v", i, err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("caller %d: %d", i, response.StatusCode)
		}
	}
}

// At the drain limit what is pending is cancelled, and told so.
func TestDrainLimit(t *testing.T) {
	r := run(t, func(c *Config) { c.DrainLimit = 200 * time.Millisecond })
	entered := make(chan struct{})
	r.answerCallers(func(ctx context.Context, _ *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	pending := make(chan answered, 1)
	go func() { pending <- r.post(t, "/invocations", goodTile) }()
	<-entered
	r.stop()
	wantFailure(t, <-pending, http.StatusServiceUnavailable, CodeBackendUnavailable)
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	r.ended <- nil // for the clean-up
}
