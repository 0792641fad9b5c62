package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

func serve(t *testing.T, h http.HandlerFunc) (address string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// repeated gives the same request so many times.
func repeated(times int) func() []byte {
	return func() []byte {
		times--
		if times < 0 {
			return nil
		}
		return request("/", []byte("{}"))
	}
}

func TestLoadHasSeveralRequestsForEachInFlight(t *testing.T) {
	var now, most, all atomic.Int64
	address := serve(t, func(http.ResponseWriter, *http.Request) {
		all.Add(1)
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
	})
	seen := drive(address, [][]byte{request("/", []byte("{}"))}, 8, time.Millisecond)
	if err := seen.whole(); err != nil {
		t.Fatal(err)
	}
	if seen.answers != 32 || all.Load() != 32 || len(seen.latency) != 32 || most.Load() > 8 {
		t.Errorf("%d answers to %d requests, %d latencies, %d at once; want 32, 32, 32 and 8", seen.answers, all.Load(), len(seen.latency), most.Load())
	}
}

func TestLoadLastsAsLongAsItIsTo(t *testing.T) {
	address := serve(t, func(http.ResponseWriter, *http.Request) {})
	const d = 200 * time.Millisecond
	if seen := drive(address, [][]byte{request("/", []byte("{}"))}, 2, d); seen.took < d || seen.answers <= 2*turns {
		t.Errorf("%d answers in %v", seen.answers, seen.took)
	}
}

func TestHungServerIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine := call(l.Addr().String(), 50*time.Millisecond, repeated(2))
	if mine.errors != 2 || mine.answers != 0 || !errors.Is(mine.failure, os.ErrDeadlineExceeded) {
		t.Errorf("%d errors, %d answers, %v", mine.errors, mine.answers, mine.failure)
	}
}

func TestConnectionErrorsAreCounted(t *testing.T) {
	// Of each three requests the second loses its connection and the third fails.
	var n atomic.Int64
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) % 3 {
		case 2:
			panic(http.ErrAbortHandler)
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mine := call(address, answerWithin, repeated(6))
	if mine.answers != 2 || mine.errors != 4 || len(mine.latency) != 2 || mine.failure == nil {
		t.Errorf("%d answers, %d errors, %d latencies, %v", mine.answers, mine.errors, len(mine.latency), mine.failure)
	}
	total := drive("127.0.0.1:1", [][]byte{request("/", nil)}, 1, 0) // nobody listens there
	if total.errors == 0 || total.whole() == nil {
		t.Errorf("%d errors of a server that is not there", total.errors)
	}
}
