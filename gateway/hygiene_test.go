package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"histogate/tests/hygiene"
)

func TestHygiene(t *testing.T) {
	const limit, timeout = 9 << 20, 2 * time.Second
	r := run(t, func(c *Config) {
		c.MaxBodyBytes, c.MaxInFlightBytes, c.RequestTimeout = limit, limit, timeout
	})
	hygiene.Target{
		Address: strings.TrimPrefix(r.url, "http://"), Model: "small", BodyLimit: limit, Timeout: timeout,
	}.Run(t)
	if taken := r.admission.bytes.taken.Load(); taken != 0 {
		t.Errorf("%d bytes are not given back", taken)
	}
	// What never came as far as a route is counted and logged like anything else.
	for code, status := range map[Code]string{CodeMalformedHTTP: "400", CodeHeaderTooLarge: "431", CodeRequestTimeout: "408"} {
		if r.counted(t, "histogate_requests_total", "route", "", "model", "", "status", status, "code", string(code)) == 0 {
			t.Errorf("no %s is counted", code)
		}
		if !strings.Contains(r.log.String(), fmt.Sprintf(`"code":%q`, code)) {
			t.Errorf("no %s is logged", code)
		}
	}
}

// send writes to a connection of its own.
func (r *running) send(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, _ := r.dial(t)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// half closes the writing half of a connection, so that the other side ends.
func half(conn net.Conn) net.Conn {
	_ = conn.(*net.TCPConn).CloseWrite()
	return conn
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 2000 {
		if done() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s: never", what)
}

// A body in the smallest of chunks takes the room of its bytes, not of its chunks.
func TestTinyChunksAreBounded(t *testing.T) {
	r := run(t, nil)
	body := strings.Repeat("1\r\n \r\n", 65_537)
	conn := r.send(t, "POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
	until(t, "128 KiB are set aside", func() bool { return r.admission.bytes.taken.Load() == 2*firstChunked })
	if _, err := io.WriteString(conn, strings.Repeat("1\r\n \r\n", 10_000)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if taken := r.admission.bytes.taken.Load(); taken != 2*firstChunked {
		t.Errorf("%d bytes are set aside for 75,537", taken)
	}
}

// A request whose body is awaited goes its way twice, and is one all the same.
func TestAwaitedBodyIsOfOneRequest(t *testing.T) {
	r := run(t, nil)
	conn, answers := r.dial(t)
	head := fmt.Sprintf("POST /invocations HTTP/1.1\r\nHost: x\r\nX-Request-Id: awaited\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(goodTile))
	for _, part := range []struct {
		text   string
		status int
	}{{head, http.StatusContinue}, {goodTile, http.StatusOK}} {
		if _, err := io.WriteString(conn, part.text); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil || response.StatusCode != part.status {
			t.Fatalf("%v, %v, not %d", response, err, part.status)
		}
		_ = response.Body.Close()
	}
	total := r.counted(t, "histogate_requests_total", "route", "/invocations", "model", "small", "mode", "embedding", "status", "200", "code", "")
	if logged := strings.Count(r.log.String(), `"awaited"`); total != 1 || logged != 1 {
		t.Errorf("%v requests are counted, %d logged", total, logged)
	}
	if err := r.admission.enter(r.cfg.MaxInFlight); err != nil {
		t.Fatal(err)
	}
	defer r.admission.leave(r.cfg.MaxInFlight)
	if told, err := io.ReadAll(r.send(t, head)); err != nil || !strings.HasPrefix(string(told), "HTTP/1.1 503 ") || !strings.Contains(string(told), `"busy"`) {
		t.Errorf("beyond the limit of requests: %q, %v", told, err)
	}
}

// As many bodies as can be, each declared as large as can be, are refused beyond the
// room that there is, before memory is taken for them; and what is slow to arrive
// holds none of the places for requests.
func TestDeclaredBodiesDoNotFillMemory(t *testing.T) {
	const callers, limit, room = 1024, 25 << 20, 512 << 20
	r := run(t, func(c *Config) { c.MaxBodyBytes, c.MaxInFlightBytes, c.MaxInFlight = limit, room, 1 })
	var before, during runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	// The first bytes of each body: the handlers run.
	head := fmt.Sprintf("POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", limit, strings.Repeat("x", 16<<10))
	conns := make([]net.Conn, callers)
	for i := range conns {
		conns[i] = r.send(t, head)
	}
	admitted := room / limit
	refused := func() float64 {
		return r.counted(t, "histogate_requests_total", "route", "/invocations", "model", "", "status", "503", "code", string(CodeBusy))
	}
	until(t, "those for whom there is no room are refused", func() bool { return refused() == float64(callers-admitted) })
	runtime.ReadMemStats(&during)
	grown := int64(during.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d requests of %d bytes: %d MiB of heap, of which %d are for the %d bodies that are let in", callers, limit, grown>>20, room/limit*limit>>20, admitted)
	if grown > room+100<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
	if r.admission.inFlight() != 0 {
		t.Errorf("%d requests whose bodies are not there count as in flight", r.admission.inFlight())
	}
	if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
		t.Errorf("a request that is small meanwhile: %d %s", a.status, a.raw)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	until(t, "all room is given back", func() bool { return r.admission.bytes.taken.Load() == 0 })
}

// A body that goes on for ever is not read for ever.
func TestEndlessBodyIsCut(t *testing.T) {
	const limit = 1 << 20
	r := run(t, func(c *Config) { c.MaxBodyBytes = limit })
	for name, framing := range map[string]string{"declared": "Content-Length: 1000000000", "chunked": "Transfer-Encoding: chunked"} {
		conn := r.send(t, "POST /invocations HTTP/1.1\r\nHost: x\r\n"+framing+"\r\n\r\n")
		part := []byte(fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat("x", 64<<10)))
		sent := 0
		for ; sent < 1<<30; sent += len(part) {
			if _, err := conn.Write(part); err != nil {
				break
			}
		}
		if most := discardTimes*limit + lingerBytes + 16<<20; sent > most { // and what the sockets hold
			t.Errorf("%s: %d bytes could be sent, not %d", name, sent, most)
		}
	}
}

// A client that sends and never reads is given up.
func TestClientThatDoesNotReadIsCut(t *testing.T) {
	r := run(t, func(c *Config) { c.RequestTimeout = 500 * time.Millisecond })
	conn, _ := r.dial(t)
	request := strings.Repeat("GET /api/metadata/small HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
	var err error
	for err == nil {
		_, err = io.WriteString(conn, request)
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("it is never cut")
	}
}

// keeper is a log that keeps what it is given, as one that writes later would, and a
// copy of it.
type keeper struct {
	slog.Handler // for what it does not have: With
	mu           sync.Mutex
	kept, copy   []string
}

func (*keeper) Enabled(context.Context, slog.Level) bool { return true }
func (k *keeper) WithAttrs([]slog.Attr) slog.Handler     { return k }
func (k *keeper) WithGroup(string) slog.Handler          { return k }

func (k *keeper) Handle(_ context.Context, record slog.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	record.Attrs(func(a slog.Attr) bool {
		if a.Value.Kind() == slog.KindString {
			k.kept, k.copy = append(k.kept, a.Value.String()), append(k.copy, strings.Clone(a.Value.String()))
		}
		return true
	})
	return nil
}

// Memory of a request is another's afterwards: what is kept beyond it is a copy.
func TestNothingOfARequestIsKept(t *testing.T) {
	k := new(keeper)
	g := unserved(t, slog.New(k))
	png := rawTile(t)
	var stream strings.Builder
	post := func(path, fields, body string) {
		fmt.Fprintf(&stream, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", path, fields, len(body), body)
	}
	for i := range 40 {
		id := fmt.Sprintf("X-Request-Id: id-%d\r\n", i)
		post("/invocations", id, goodTile)
		post("/api/embed/tiny", id, goodTile)
		post("/invocations?slide_name=S1&x=1&y=2&width=8&height=8&patch_idx=7", id+"Content-Type: image/png\r\nX-Model-Name: tiny\r\nX-Mode: embedding\r\n", png)
		post("/api/batch/small", id, `{"mode":"embedding","requests":[`+goodTile+`,{}]}`)
		post(fmt.Sprintf("/api/embed/other-%d", i), "", goodTile)
		post("/invocations", "", replaced(`"small"`, fmt.Sprintf(`"nothing-%d"`, i)))
		fmt.Fprintf(&stream, "GET /ping?model=nothing-%d HTTP/1.1\r\nHost: x\r\n\r\n", i)
	}
	if err := g.app.Server().ServeConn(&script{Reader: bytes.NewReader([]byte(stream.String()))}); err != nil {
		t.Fatal(err)
	}
	if len(k.kept) < 900 || !slices.Contains(k.copy, "id-39") || !slices.Contains(k.copy, "embedding") {
		t.Fatalf("only %d values are logged", len(k.kept))
	}
	for i := range k.kept {
		if k.kept[i] != k.copy[i] {
			t.Fatalf("%q was logged and has become %q", k.copy[i], k.kept[i])
		}
	}
	families, err := g.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]bool{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "route" || label.GetName() == "model" {
					labels[label.GetValue()] = true
				}
			}
		}
	}
	want := []string{"", "/api/batch/:model", "/api/embed/:model", "/invocations", "/ping", "small"}
	if got := slices.Sorted(maps.Keys(labels)); !slices.Equal(got, want) {
		t.Errorf("routes and models are counted as %q, not %q", got, want)
	}
}
