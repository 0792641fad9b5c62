// Package hygiene holds a gateway to what HTTP asks of a server that others rely on,
// as bytes over its own sockets: where a request ends must never be in doubt, every
// failure must reach its client, and a slow client must cost others nothing. The table
// is run against the gateway in process (package gateway) and as its binary (e2e).
package hygiene

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Target is a gateway under test.
type Target struct {
	Address   string        // host:port of the API
	Model     string        // one that is served, to ask for its metadata
	BodyLimit int           // MAX_BODY_BYTES, and MAX_IN_FLIGHT_BYTES
	Timeout   time.Duration // REQUEST_TIMEOUT
}

// Run runs the table and what does not fit into it.
func (g Target) Run(t *testing.T) {
	t.Run("table", func(t *testing.T) {
		for _, r := range g.table() {
			t.Run(r.name, func(t *testing.T) {
				if r.stall || r.after != "" {
					t.Parallel() // each takes the whole time-out
				}
				g.exchange(t, r)
			})
		}
	})
	t.Run("a request in two parts, cut at every byte", g.cutAnywhere)
	t.Run("a body for which there is no room", g.noRoom)
}

// body is that of a request which costs no inference.
func (g Target) body() string {
	return fmt.Sprintf(`{"model_name":%q,"mode":"metadata","image_data":"","slide_name":"","x":0,"y":0,"width":0,"height":0,"patch_idx":0}`, g.Model)
}

// exchange sends a row and holds what comes back against it.
func (g Target) exchange(t *testing.T, r row) {
	conn := g.dial(t)
	if !r.stall {
		r.send += last
	}
	if r.after != "" {
		if _, err := io.WriteString(conn, r.after); err != nil {
			t.Fatal(err)
		}
		time.Sleep(g.Timeout + g.Timeout/5)
	}
	// Like most clients this one reads only when it has sent all.
	if _, err := io.WriteString(conn, r.send); err != nil {
		t.Errorf("it could not be sent: %v", err)
	}
	g.read(t, conn, r)
}

// read reads all the answers to a row.
func (g Target) read(t *testing.T, conn net.Conn, r row) {
	answers := bufio.NewReader(conn)
	var got []int
	code, closes := "", false
	for {
		response, err := http.ReadResponse(answers, nil)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && answers.Buffered() == 0 {
			break
		}
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatalf("the answer of status %d: %v", response.StatusCode, err)
		}
		got = append(got, response.StatusCode)
		closes = response.Close
		if failure := failureOf(t, response, text); code == "" {
			code = failure
		}
	}
	if !slices.Equal(got, r.want) || code != r.code {
		t.Errorf("answers %v with code %q; want %v, %q", got, code, r.want, r.code)
	}
	if !closes {
		t.Error("the last answer does not say that the connection is closed")
	}
}

// failureOf is the code of a failure, whose form is looked at, and of anything else
// nothing.
func failureOf(t *testing.T, response *http.Response, text []byte) string {
	if response.StatusCode < 400 {
		return ""
	}
	var failure struct {
		Detail, Code string
		RequestID    string `json:"request_id"`
	}
	if err := json.Unmarshal(text, &failure); err != nil {
		t.Errorf("a failure that is not JSON: %s", text)
	}
	if failure.Detail == "" || failure.RequestID == "" || failure.RequestID != response.Header.Get("X-Request-Id") {
		t.Errorf("X-Request-Id is %q in %s", response.Header.Get("X-Request-Id"), text)
	}
	return failure.Code
}

func (g Target) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(g.Timeout + 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// cutAnywhere sends requests in two parts each. The second follows when the first has
// surely been read.
func (g Target) cutAnywhere(t *testing.T) {
	body := g.body()
	for name, request := range map[string]string{
		"of a declared length": post("Content-Length: "+fmt.Sprint(len(body)), body),
		"chunked":              post("Transfer-Encoding: chunked", chunked(50, body)),
	} {
		conn := g.dial(t)
		answers := bufio.NewReader(conn)
		for i := 1; i < len(request); i++ {
			for _, part := range []string{request[:i], request[i:]} {
				if _, err := io.WriteString(conn, part); err != nil {
					t.Fatal(err)
				}
				time.Sleep(200 * time.Microsecond)
			}
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("%s, cut at %d: %v", name, i, err)
			}
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if err != nil || response.StatusCode != ok {
				t.Fatalf("%s, cut at %d: %d, %v", name, i, response.StatusCode, err)
			}
		}
	}
}

// noRoom has one request take all the room that there is for bodies. Another is told
// so, early by the gateway's lights, but in a way that its client can read; and what
// is slow to arrive keeps nobody else from being served.
func (g Target) noRoom(t *testing.T) {
	holder := g.dial(t)
	size := g.BodyLimit - 4<<10
	part := strings.Repeat("x", 16<<10)
	if _, err := io.WriteString(holder, post("Content-Length: "+fmt.Sprint(size), part)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(g.Timeout / 5) // its headers are read
	large := strings.Repeat("x", g.BodyLimit)
	for _, r := range []row{
		{name: "declared", send: post("Content-Length: "+fmt.Sprint(len(large)), large), want: []int{503, ok}, code: "busy"},
		{name: "chunked", send: post("Transfer-Encoding: chunked", chunked(100_000, large)), want: []int{503, ok}, code: "busy"},
		{name: "small", send: post("Content-Length: "+fmt.Sprint(len(g.body())), g.body()), want: []int{ok, ok}},
	} {
		t.Run(r.name, func(t *testing.T) { g.exchange(t, r) })
	}
	g.read(t, holder, row{want: []int{408}, code: "request_timeout"})
}
