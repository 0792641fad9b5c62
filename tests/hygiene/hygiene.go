// Package hygiene holds a gateway to what HTTP asks of a server that others rely on,
// as bytes over its own sockets: where a request ends must never be in doubt, every
// failure must reach its client, and a slow client must cost others nothing. The table
// is run against the gateway in process (package gateway) and as its binary (e2e).
package hygiene

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Target is a gateway under test.
type Target struct {
	Address   string        // host:port of the API
	TLS       *tls.Config   // nil where it speaks plain HTTP
	Model     string        // one that is served, to ask for its metadata
	BodyLimit int           // MAX_BODY_BYTES, and MAX_IN_FLIGHT_BYTES
	Timeout   time.Duration // REQUEST_TIMEOUT
}

// Run runs the table and what does not fit into it.
func (g Target) Run(t *testing.T) {
	t.Run("table", g.runTable)
	t.Run("a request in two parts, cut at every byte", g.cutAnywhere)
	t.Run("a body for which there is no room", g.noRoom)
}

// runTable runs the rows one by one, and those that take the whole time-out meanwhile.
func (g Target) runTable(t *testing.T) {
	rows := g.table()
	slow := make([]error, len(rows))
	var running sync.WaitGroup
	for i, r := range rows {
		if r.stall || r.after != "" {
			running.Go(func() { slow[i] = g.exchange(r) })
		} else if err := g.exchange(r); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	running.Wait()
	for i, err := range slow {
		if err != nil {
			t.Errorf("%s: %v", rows[i].name, err)
		}
	}
}

// body is that of a request which costs no inference.
func (g Target) body() string {
	return fmt.Sprintf(`{"model_name":%q,"mode":"metadata","image_data":"","slide_name":"","x":0,"y":0,"width":0,"height":0,"patch_idx":0}`, g.Model)
}

// exchange sends a row and holds what comes back against it.
func (g Target) exchange(r row) error {
	conn, err := g.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if !r.stall {
		r.send += last
	}
	if r.after != "" {
		if _, err := io.WriteString(conn, r.after); err != nil {
			return err
		}
		time.Sleep(g.Timeout + g.Timeout/5)
	}
	// Like most clients this one reads only when it has sent all.
	if _, err := io.WriteString(conn, r.send); err != nil {
		return fmt.Errorf("it could not be sent: %w", err)
	}
	return read(conn, r)
}

// read reads all the answers to a row.
func read(conn net.Conn, r row) error {
	answers := bufio.NewReader(conn)
	var got []int
	code, closes := "", false
	for {
		if _, err := answers.Peek(1); errors.Is(err, io.EOF) {
			break
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			return fmt.Errorf("after %v: %w", got, err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return fmt.Errorf("after %v: %w", got, err)
		}
		got = append(got, response.StatusCode)
		closes = response.Close
		failed, err := failureOf(response, text)
		if err != nil {
			return err
		}
		if code == "" {
			code = failed
		}
	}
	if !slices.Equal(got, r.want) || code != r.code {
		return fmt.Errorf("answers %v with code %q; want %v, %q", got, code, r.want, r.code)
	}
	if !closes {
		return errors.New("the last answer does not say that the connection is closed")
	}
	return nil
}

// failureOf is the code of a failure, whose form is looked at, and of anything else
// nothing.
func failureOf(response *http.Response, text []byte) (string, error) {
	if response.StatusCode < 400 {
		return "", nil
	}
	var failure struct {
		Detail, Code string
		RequestID    string `json:"request_id"`
	}
	if err := json.Unmarshal(text, &failure); err != nil {
		return "", fmt.Errorf("a failure that is not JSON: %s", text)
	}
	if failure.Detail == "" || failure.RequestID == "" || failure.RequestID != response.Header.Get("X-Request-Id") {
		return "", fmt.Errorf("X-Request-Id is %q in %s", response.Header.Get("X-Request-Id"), text)
	}
	return failure.Code, nil
}

func (g Target) dial() (net.Conn, error) {
	conn, err := net.Dial("tcp", g.Address)
	if err != nil {
		return nil, err
	}
	if g.TLS != nil {
		conn = tls.Client(conn, g.TLS)
	}
	return conn, conn.SetDeadline(time.Now().Add(2*g.Timeout + 10*time.Second))
}

// cutAnywhere sends requests in two parts each. The second follows when the first has
// surely been read.
func (g Target) cutAnywhere(t *testing.T) {
	body := g.body()
	for name, request := range map[string]string{
		"of a declared length": post("Content-Length: "+fmt.Sprint(len(body)), body),
		"chunked":              post("Transfer-Encoding: chunked", chunked(50, body)),
	} {
		conn, err := g.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
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
	holder, err := g.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
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
		{name: "declared and awaited", stall: true, send: post(fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue", len(large)), ""), want: []int{503}, code: "busy"},
		{name: "small", send: post("Content-Length: "+fmt.Sprint(len(g.body())), g.body()), want: []int{ok, ok}},
	} {
		if err := g.exchange(r); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	if err := read(holder, row{want: []int{408}, code: "request_timeout"}); err != nil {
		t.Errorf("the one that holds it: %v", err)
	}
}
