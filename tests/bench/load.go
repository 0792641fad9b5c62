package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
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
	took    time.Duration   // from the first to the last of them
	latency []time.Duration // of the 200s, sorted
}

func (o *outcome) perSecond() float64 { return float64(o.answers) / o.took.Seconds() }

// percentile is the latency that p percent of the answers do not exceed.
func (o *outcome) percentile(p int) time.Duration {
	if len(o.latency) == 0 {
		return 0
	}
	return o.latency[min(len(o.latency)-1, len(o.latency)*p/100)]
}

// drive keeps a number of requests in flight for a while. It takes them in turn.
func drive(address string, requests [][]byte, inFlight int, d time.Duration) (*outcome, error) {
	var (
		turn    atomic.Int64
		mu      sync.Mutex
		total   outcome
		failure error
		callers sync.WaitGroup
	)
	began := time.Now()
	for range inFlight {
		callers.Go(func() {
			mine, err := call(address, began.Add(d), func() []byte {
				return requests[int(turn.Add(1))%len(requests)]
			})
			mu.Lock()
			defer mu.Unlock()
			total.answers += mine.answers
			total.errors += mine.errors
			total.latency = append(total.latency, mine.latency...)
			failure = errors.Join(failure, err)
		})
	}
	callers.Wait()
	total.took = time.Since(began)
	slices.Sort(total.latency)
	return &total, failure
}

// call sends requests one after the other, each when the one before was answered.
func call(address string, until time.Time, next func() []byte) (mine outcome, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return mine, err
	}
	defer c.Close() // only read from by now
	answers := bufio.NewReaderSize(c, 32<<10)
	for began := time.Now(); began.Before(until); began = time.Now() {
		if _, err := c.Write(next()); err != nil {
			return mine, err
		}
		status, err := discardAnswer(answers)
		if err != nil {
			return mine, err
		}
		if status != 200 {
			mine.errors++
			continue
		}
		mine.answers++
		mine.latency = append(mine.latency, time.Since(began))
	}
	return mine, nil
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
