package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"histogate/prep/raster"
)

// What a request line is followed by, of clients that are met.
const commonHeaders = "Host: endpoint.example.com:8080\r\nUser-Agent: python-requests/2.32.5\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n" +
	"Connection: keep-alive\r\nContent-Type: application/json\r\nContent-Length: 121034\r\nX-Request-Id: 6f1c1d2e-0000-4000-8000-000000000001\r\n\r\n"

func TestCheckHeaders(t *testing.T) {
	for raw, refused := range map[string]string{
		commonHeaders:                           "",
		"":                                      "",
		"Transfer-Encoding: \tCHUNKED \r\n\r\n": "",
		"Content-Length: 5\r\nA: chunked\r\n\r\n": "",
		"Transfer-Encoding: identity\r\n\r\n":     "not chunked",
		"Transfer-Encoding: chunked, br\r\n\r\n":  "not chunked",
		"A: b\r\n c\r\n\r\n":                      "second line",
		"A: b\r\n\t\r\n\r\n":                      "second line",
		"A: b\n\r\n":                              "LF alone",
		"A: b\r\n\n":                              "LF alone",
		"\n":                                      "LF alone",
		"Content-Length : 5\r\n\r\n":              "space in the name",
		"A B: c\r\n\r\n":                          "space in the name",
		"CONTENT-LENGTH: 5\r\ntransfer-encoding: chunked\r\n\r\n": "both",
	} {
		err := checkHeaders([]byte(raw))
		switch {
		case refused == "" && err != nil, refused != "" && (err == nil || !strings.Contains(err.Error(), refused)):
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func BenchmarkCheckHeaders(b *testing.B) {
	raw := []byte(commonHeaders)
	b.ReportAllocs()
	for b.Loop() {
		if checkHeaders(raw) != nil {
			b.Fatal("refused")
		}
	}
}

// unserved is a gateway that listens on no port and has no Triton, for connections that
// are given to its server by hand.
func unserved(t testing.TB, log *slog.Logger) *Gateway {
	t.Helper()
	g, err := New(t.Context(), &Config{
		ModelRepository: repository(t, testSpec, testConfig), TritonAddress: "127.0.0.1:1", PingMode: pingAll, ImageFormats: raster.Formats(),
		MaxInFlight: 8, MaxInFlightBytes: 1 << 20, MaxBodyBytes: 1 << 20, MaxBatchRequests: 8, PreprocessWorkers: 1, RequestTimeout: 5 * time.Millisecond, LogRequestsPerSecond: 1e6,
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// script is a connection whose client has sent all that it will.
type script struct {
	net.Conn
	*bytes.Reader
	answers bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)     { return s.Reader.Read(p) }
func (s *script) Write(p []byte) (int, error)    { return s.answers.Write(p) }
func (*script) Close() error                     { return nil }
func (*script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*script) SetDeadline(time.Time) error      { return nil }
func (*script) SetReadDeadline(time.Time) error  { return nil }
func (*script) SetWriteDeadline(time.Time) error { return nil }

// Whatever stands between the headers and in the body of a request, what comes after
// it is taken for a request only where net/http, which has no interest in it, sees one
// there too: a request never gets two answers, nor somebody else's. And what is logged
// or answered never holds its key.
func FuzzFraming(f *testing.F) {
	const (
		key     = "not-to-be-seen-anywhere"
		hidden  = "GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: hidden\r\n\r\n"
		chunks  = "2;a=b\r\n{}\r\n0\r\n\r\n"
		trailed = "2\r\n{}\r\n0\r\nX-A: b\r\n\r\n"
	)
	for _, fields := range []string{
		"Content-Length: 2", "Content-Length: 0", "Transfer-Encoding: chunked", "Content-Length: 53\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: identity", "Transfer-Encoding : chunked", "Content-Length: 2\r\nContent-Length: 55", "X-A: b\r\n Content-Length: 2",
		"X-A: b\n\nX-B: c", "Content-Length: 2\r\nExpect: 100-continue", "Content-Length: 9999999\r\nExpect: 100-continue", "Transfer-Encoding: chunked\r\nExpect: 100-continue", "Connection: close", "Transfer Encoding: chunked", "Content-Length: +2",
		"Trailer: X-A\r\nTransfer-Encoding: chunked", "Authorization Bearer " + key, "Content-Length: 55\r\nConnection: keep-alive\r\nX-A:\x0bb",
	} {
		for _, body := range []string{"{}" + hidden, chunks + hidden, trailed} {
			f.Add(fields, body)
		}
	}
	for _, body := range []string{"", hidden, "2\n{}\r\n0\r\n\r\n", "+2\r\n{}\r\n0\r\n\r\n", "0\r\nX-A: b\n\n" + hidden} {
		f.Add("Transfer-Encoding: chunked", body)
	}
	log := new(lockedBuffer)
	g := unserved(f, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	f.Fuzz(func(t *testing.T, fields, body string) {
		body = strings.ReplaceAll(body, "%", "x") // in a path net/http reads no further where it is no escape
		stream := []byte("POST /invocations HTTP/1.1\r\nHost: x\r\nX-Request-Id: first\r\nAuthorization: Bearer " + key + "\r\n" + fields + "\r\n\r\n" + body +
			"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: last\r\n\r\n")
		conn := &script{Reader: bytes.NewReader(stream)}
		_ = g.app.Server().ServeConn(conn) // what it ends with is in the answers
		if strings.Contains(log.take(), key) || strings.Contains(conn.answers.String(), key) {
			t.Errorf("the key of %q is told", stream)
		}
		seen, got := requestsIn(stream), answersIn(t, &conn.answers)
		for i, a := range got {
			if unread := i == len(got)-1 && (answer{code: a.code}).unread(); unread && i <= len(seen) {
				continue
			}
			if i >= len(seen) || seen[i] != "" && a.id != seen[i] { // one without an id is given one
				t.Fatalf("answers %v to requests %v in %q", got, seen, stream)
			}
		}
	})
}

// requestsIn are the ids of the requests that net/http finds in a stream, empty where
// it has none that is taken over.
func requestsIn(stream []byte) (ids []string) {
	for r := bufio.NewReader(bytes.NewReader(stream)); ; {
		for next, _ := r.Peek(1); len(next) == 1 && (next[0] == '\r' || next[0] == '\n'); next, _ = r.Peek(1) {
			_, _ = r.Discard(1) // empty lines before a request are nothing
		}
		request, err := http.ReadRequest(r)
		if err != nil {
			return ids
		}
		ids = append(ids, saneID.FindString(request.Header.Get("X-Request-Id")))
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return ids
		}
	}
}

// identified is an answer by its request's id.
type identified struct {
	id   string
	code Code
}

func answersIn(t *testing.T, stream io.Reader) (all []identified) {
	for r := bufio.NewReader(stream); ; {
		response, err := http.ReadResponse(r, nil)
		if err != nil {
			return all
		}
		if response.StatusCode == http.StatusContinue {
			continue
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		a := identified{id: response.Header.Get("X-Request-Id")}
		var failed failure
		if response.StatusCode != http.StatusOK {
			if err := json.Unmarshal(text, &failed); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			a.code = failed.Code
		}
		all = append(all, a)
	}
}
