package hygiene

import (
	"fmt"
	"net/http"
	"strings"
)

// row is what is sent over a connection and the statuses of all the answers that
// come back until the gateway closes it. After each row's bytes another request
// follows at once, as in a pipeline, which asks for the connection to be closed: a row
// whose connection can go on ends with that one's 200, and of any other the rest must
// never be taken for a request.
type row struct {
	name string
	send string
	// stall leaves the request unfinished, with nothing after it.
	stall bool
	// after is a request that is answered first, before the connection is idle for
	// longer than REQUEST_TIMEOUT.
	after string
	want  []int
	code  string // of the first failure
}

const (
	malformed = "malformed_http"
	ok        = http.StatusOK
)

// last is the request that follows each row.
const last = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

// table is every row for a target.
func (g Target) table() []row {
	body := g.body()
	chunks := chunked(len(body), body)
	length := "Content-Length: " + fmt.Sprint(len(body))
	const coding = "Transfer-Encoding: chunked"
	good := post(length, body)
	large := strings.Repeat("x", g.BodyLimit+1000)
	const refused = http.StatusBadRequest

	rows := []row{
		{name: "a body of a declared length", send: good, want: []int{ok, ok}},
		{name: "a chunked body", send: post(coding, chunks), want: []int{ok, ok}},
		{name: "names in any case and without spaces", send: post("tRANSFER-eNCODING:Chunked", chunks), want: []int{ok, ok}},
		{name: "chunk extensions", send: post(coding, strings.Replace(chunks, "\r\n", ";a=\"b\"\r\n", 1)), want: []int{ok, ok}},
		{name: "65,537 chunks of one byte", send: post(coding, chunked(1, pad(body, 65_537))), want: []int{ok, ok}},
		{name: "Expect: 100-continue", send: post(length+"\r\nExpect: 100-continue", body), want: []int{http.StatusContinue, ok, ok}},
		{name: "Expect: 100-continue, chunked", send: post(coding+"\r\nExpect: 100-continue", chunks), want: []int{http.StatusContinue, ok, ok}},
		{name: "an empty line before a request", send: "\r\n" + good, want: []int{ok, ok}},
		{name: "headers of 15 KiB", send: post(length+"\r\nCookie: "+strings.Repeat("x", 15<<10), body), want: []int{ok, ok}},
		{name: "HTTP/1.0", send: "GET /livez HTTP/1.0\r\n\r\n", want: []int{ok}},
		{name: "HTTP/1.0 that keeps the connection", send: "GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", want: []int{ok, ok}},
		{name: "HTTP/1.0 with a body", send: strings.Replace(post(length+"\r\nConnection: keep-alive", body), "/1.1", "/1.0", 1), want: []int{ok, ok}},
		{name: "GET with a body", send: "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: " + fmt.Sprint(len(good)) + "\r\n\r\n" + good, want: []int{ok, ok}},
		{name: "GET with a chunked body", send: "GET /livez HTTP/1.1\r\nHost: x\r\n" + coding + "\r\n\r\n" + chunked(7, good), want: []int{ok, ok}},
		{name: "an unknown method with a body", send: strings.Replace(good, "POST", "BREW", 1), want: []int{http.StatusMethodNotAllowed, ok}, code: "method_not_allowed"},
		{name: "requests one after the other", want: []int{ok, 404, ok, 405, ok, 415, ok, 400, ok, ok}, code: "not_found", send: good +
			"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" + post(coding, chunks) +
			"PUT /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" + good +
			post(length+"\r\nContent-Type: text/plain", body) + "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" +
			post("Content-Length: 1", "{") + good},

		{name: "a body that is too large", send: post("Content-Length: "+fmt.Sprint(len(large)), large), want: []int{413, ok}, code: "body_too_large"},
		{name: "a chunked body that is too large", send: post(coding, chunked(100_000, large)), want: []int{413, ok}, code: "body_too_large"},
		{name: "a large body for nobody", send: strings.Replace(post("Content-Length: "+fmt.Sprint(g.BodyLimit), large[:g.BodyLimit]), "/invocations", "/nothing", 1), want: []int{404, ok}, code: "not_found"},
		{name: "a body that inflates", send: post(length+"\r\nContent-Encoding: gzip", body), want: []int{415, ok}, code: "unsupported_media_type"},
		{name: "large headers", send: post("Cookie: "+strings.Repeat("x", 600<<10)+"\r\n"+length, body), want: []int{431}, code: "header_too_large"},

		{name: "Expect: 100-continue on an idle connection", after: good, send: post(length+"\r\nExpect: 100-continue", body), want: []int{ok, http.StatusContinue, ok, ok}},
		{name: "a malformed request on an idle connection", after: good, send: post(length+"\r\n"+length, body), want: []int{ok, refused}, code: malformed},
		{name: "slow headers", send: good[:30], stall: true, want: []int{408}, code: "request_timeout"},
		{name: "a slow body", send: good[:len(good)-1], stall: true, want: []int{408}, code: "request_timeout"},
		{name: "a slow large body", send: post("Content-Length: 100000", large[:50_000]), stall: true, want: []int{408}, code: "request_timeout"},
		{name: "a slow chunked body", send: post(coding, chunks[:len(chunks)-5]), stall: true, want: []int{408}, code: "request_timeout"},
		{name: "a slow body after a good request", send: good + good[:len(good)-1], stall: true, want: []int{ok, 408}, code: "request_timeout"},
	}
	// A client that waits to be told whether to send its body is told at once that it is not to.
	const waits = "\r\nExpect: 100-continue"
	for _, r := range []row{
		{name: "of a body that is too large", send: post("Content-Length: "+fmt.Sprint(len(large))+waits, ""), want: []int{413}, code: "body_too_large"},
		{name: "of a body that inflates", send: post(length+waits+"\r\nContent-Encoding: gzip", ""), want: []int{415}, code: "unsupported_media_type"},
		{name: "of a body for nobody", send: strings.Replace(post(length+waits, ""), "/invocations", "/nothing", 1), want: []int{404}, code: "not_found"},
		{name: "of a body that nobody reads", send: strings.Replace(post(length+waits, ""), "POST /invocations", "GET /livez", 1), want: []int{ok}},
		{name: "of a length and a coding", send: post(length+"\r\n"+coding+waits, ""), want: []int{refused}, code: malformed},
	} {
		r.name, r.stall = "Expect: 100-continue "+r.name, true
		rows = append(rows, r)
	}
	for _, r := range []struct{ name, fields, body string }{
		{"two lengths that differ", length + "\r\nContent-Length: 5", body},
		{"two lengths that agree", length + "\r\n" + length, body},
		{"a list of lengths", fmt.Sprintf("%s, %d", length, len(body)), body},
		{"an empty length", "Content-Length:", body},
		{"a length with a sign", "Content-Length: +" + fmt.Sprint(len(body)), body},
		{"a length below zero", "Content-Length: -1", body},
		{"a length in hexadecimal", fmt.Sprintf("Content-Length: %#x", len(body)), body},
		{"a length beyond any", "Content-Length: 99999999999999999999", body},
		{"a length and a coding", length + "\r\n" + coding, chunks},
		{"a coding and a length", coding + "\r\n" + length, chunks},
		{"a length of 0 and a coding", "Content-Length: 0\r\n" + coding, chunks},
		{"a space before the colon of a coding", "Transfer-Encoding : chunked", chunks},
		{"a tab before the colon of a coding", "Transfer-Encoding\t: chunked", chunks},
		{"a space before the colon of a length", strings.Replace(length, ":", " :", 1), body},
		{"a folded header", length + "\r\nX-A: b\r\n c", body},
		{"a fold that hides a coding", length + "\r\nX-A: b\r\n\tTransfer-Encoding: chunked", body},
		{"a folded coding", "Transfer-Encoding:\r\n chunked", chunks},
		{"a coding of identity", "Transfer-Encoding: identity", good},
		{"a coding of identity and a length", "Transfer-Encoding: identity\r\n" + length, body},
		{"an empty coding", "Transfer-Encoding:", chunks},
		{"another coding", "Transfer-Encoding: gzip", chunks},
		{"another coding before chunked", "Transfer-Encoding: gzip, chunked", chunks},
		{"a coding after chunked", "Transfer-Encoding: chunked, identity", chunks},
		{"chunked twice", "Transfer-Encoding: chunked, chunked", chunks},
		{"two codings", coding + "\r\n" + coding, chunks},
		{"two codings that differ", "Transfer-Encoding: identity\r\n" + coding, chunks},
		{"nearly chunked", "Transfer-Encoding: xchunked", chunks},
		{"chunked with a parameter", "Transfer-Encoding: chunked;q=1", chunks},
		{"chunked after a control character", "Transfer-Encoding: \x0bchunked", chunks},
		{"a line that ends in LF", "X-A: b\n" + length, body},
		{"an empty line that ends in LF", "X-A: b\n\n" + length, body},
		{"a CR inside a line", "X-A: b\rTransfer-Encoding: chunked\r\n" + length, body},
		{"a NUL", "X-A: b\x00\r\n" + length, body},
		{"a name with a space", "Transfer Encoding: chunked\r\n" + length, body},
		{"a name of nothing", ": b\r\n" + length, body},
		{"a line without a colon", "X-A\r\n" + length, body},
		{"two hosts", "Host: y\r\n" + length, body},

		{"a chunk size with a sign", coding, "+" + chunks},
		{"a chunk size below zero", coding, "-" + chunks},
		{"a chunk size with a prefix", coding, "0x" + chunks},
		{"a chunk size after a space", coding, " " + chunks},
		{"a chunk size beyond any", coding, "FFFFFFFFFFFFFFFFFF\r\n" + chunks},
		{"a chunk size that ends in LF", coding, strings.Replace(chunks, "\r\n", "\n", 1)},
		{"a LF in a chunk extension", coding, strings.Replace(chunks, "\r\n", ";a\nb\r\n", 1)},
		{"a chunk longer than its size", coding, strings.Replace(chunks, "}\r\n", "}}\r\n", 1)},
		{"a length among the trailers", coding, strings.TrimSuffix(chunks, "\r\n") + "Content-Length: 5\r\n\r\n"},
	} {
		rows = append(rows, row{name: r.name, send: post(r.fields, r.body), want: []int{refused}, code: malformed})
	}
	for name, send := range map[string]string{
		"a coding in HTTP/1.0":        strings.Replace(post(coding+"\r\nConnection: keep-alive", chunks), "/1.1", "/1.0", 1),
		"a first header that is fold": "GET /livez HTTP/1.1\r\n Host: x\r\n\r\n",
		"no host":                     "GET /livez HTTP/1.1\r\n\r\n",
		"no version":                  "GET /livez\r\n\r\n",
		"HTTP/2":                      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a space in the path":         "GET /live z HTTP/1.1\r\nHost: x\r\n\r\n",
		"a method that is none":       "GE{T /livez HTTP/1.1\r\nHost: x\r\n\r\n",
		"TLS where HTTP is spoken":    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x01", 500),
		"all lines end in LF":         "POST /invocations HTTP/1.1\nHost: x\n" + length + "\n\n" + body,
	} {
		rows = append(rows, row{name: name, send: send, want: []int{refused}, code: malformed})
	}
	return append(rows,
		row{name: "a malformed request after a good one", send: good + post(length+"\r\n"+coding, chunks) + good, want: []int{ok, refused}, code: malformed},
		// Answered, but what follows the trailers is not read: their end may be disputed.
		row{name: "trailers", send: post(coding, strings.TrimSuffix(chunks, "\r\n")+"X-A: b\r\n\r\n"), want: []int{ok}},
		row{name: "trailers that end in LF", send: post(coding, strings.TrimSuffix(chunks, "\r\n")+"X-A: b\n\n"), want: []int{ok}},
		row{name: "trailers that nobody reads", send: "GET /livez HTTP/1.1\r\nHost: x\r\n" + coding + "\r\n\r\n0\r\nX-A: b\n\n" + good, want: []int{ok}},
	)
}

// post is a request to /invocations.
func post(fields, body string) string {
	return "POST /invocations HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n\r\n" + body
}

// chunked is a body in chunks of a size.
func chunked(size int, body string) string {
	var text strings.Builder
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&text, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return text.String() + "0\r\n\r\n"
}

// pad makes a body longer with what JSON ignores.
func pad(body string, size int) string {
	return body + strings.Repeat(" ", size-len(body))
}
