package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A load generator that costs little beside what it measures: a connection each for
// the requests in flight, requests that are on the wire form already, answers that are
// read and thrown away.

// request is a POST of a JSON body to a path, as it goes over the wire.
func request(path string, body []byte) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// outcome is what a load has seen.
type outcome struct {
	answers int             // of status 200
	errors  int             // any other status, or none
	failure error           // one of those errors, nil without one
	took    time.Duration   // from the first to the last of them
	latency []time.Duration // of the 200s, sorted
}

func (o *outcome) perSecond() float64 { return float64(o.answers) / o.took.Seconds() }

// percentile is the least latency that p percent of the answers do not exceed: the
// nearest rank.
func (o *outcome) percentile(p int) time.Duration {
	if len(o.latency) == 0 {
		return 0
	}
	rank := (len(o.latency)*p + 99) / 100
	return o.latency[max(rank, 1)-1]
}

// whole is an error where anything but answers was seen, for what counts no errors.
func (o *outcome) whole() error {
	if o.errors > 0 || o.answers == 0 {
		return fmt.Errorf("%d answers, %d errors, one of them: %w", o.answers, o.errors, o.failure)
	}
	return nil
}

const (
	// answerWithin is how long a request may take. Behind it the server hangs.
	answerWithin = 30 * time.Second
	// turns is how many requests a load has for each that is in flight, at the least: with
	// one each it would be a single burst.
	turns = 4
)

// drive keeps a number of requests in flight for a while, and for as long as it takes to
// have several for each of them. It takes them in turn.
func drive(address string, requests [][]byte, inFlight int, d time.Duration) *outcome {
	var (
		turn    atomic.Int64
		mu      sync.Mutex
		total   outcome
		callers sync.WaitGroup
	)
	began := time.Now()
	for range inFlight {
		callers.Go(func() {
			mine := call(address, answerWithin, func() []byte {
				n := int(turn.Add(1))
				if n > turns*inFlight && time.Since(began) >= d {
					return nil
				}
				return requests[n%len(requests)]
			})
			mu.Lock()
			defer mu.Unlock()
			total.answers += mine.answers
			total.errors += mine.errors
			total.latency = append(total.latency, mine.latency...)
			total.failure = cmp.Or(total.failure, mine.failure)
		})
	}
	callers.Wait()
	total.took = time.Since(began)
	slices.Sort(total.latency)
	return &total
}

// call sends requests one after the other, each when the one before was answered, until
// there is none. Behind an error it connects anew.
func call(address string, within time.Duration, next func() []byte) (mine outcome) {
	c := &connection{address: address, within: within}
	defer c.close()
	for request := next(); request != nil; request = next() {
		took, err := c.ask(request)
		if err != nil {
			mine.errors++
			mine.failure = err
			c.close()
			time.Sleep(10 * time.Millisecond) // one who accepts nothing is not to be asked in a busy loop
			continue
		}
		mine.answers++
		mine.latency = append(mine.latency, took)
	}
	return mine
}

// connection asks one request at a time.
type connection struct {
	address string
	within  time.Duration // of each request, connecting included
	conn    net.Conn      // nil until the first request, and behind an error
	answers *bufio.Reader
}

// ask sends a request and waits for the answer, which must be a 200. What it tells is the
// time without connecting.
func (c *connection) ask(request []byte) (took time.Duration, err error) {
	by := time.Now().Add(c.within)
	if c.conn == nil {
		if c.conn, err = (&net.Dialer{Deadline: by}).Dial("tcp", c.address); err != nil {
			c.conn = nil
			return 0, err
		}
		c.answers = bufio.NewReaderSize(c.conn, 32<<10)
	}
	if err := c.conn.SetDeadline(by); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := c.conn.Write(request); err != nil {
		return 0, err
	}
	status, err := discardAnswer(c.answers)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	return time.Since(began), err
}

func (c *connection) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing more is to come of it
		c.conn = nil
	}
}

// discardAnswer reads an answer of known length, and keeps its status.
func discardAnswer(r *bufio.Reader) (status int, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if first {
			if len(line) < len("HTTP/1.1 200") {
				return 0, textproto.ProtocolError("no status in " + strconv.Quote(string(line)))
			}
			if status, err = strconv.Atoi(string(line[9:12])); err != nil {
				return 0, err
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 {
		return 0, textproto.ProtocolError("an answer without Content-Length")
	}
	_, err = io.CopyN(io.Discard, r, int64(length))
	return status, err
}
