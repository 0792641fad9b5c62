package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// load is callers that send sound tiles, one after another each, until stopped.
type load struct {
	b    *bench
	stop chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	statuses map[int]int
	codes    map[string]int
	lost     int           // no answer at all
	slowest  time.Duration // answer
	wrong    int           // a 200 that is not the answer to that very tile
}

// startLoad keeps a number of requests in flight.
func startLoad(b *bench, callers int) *load {
	l := &load{b: b, stop: make(chan struct{}), statuses: map[int]int{}, codes: map[string]int{}}
	for i := range callers {
		l.done.Go(func() {
			for n := i; ; n++ {
				select {
				case <-l.stop:
					return
				default:
					l.send(n % len(b.bodies))
					time.Sleep(b.pause)
				}
			}
		})
	}
	return l
}

func (l *load) send(tile int) {
	began := time.Now()
	status, answer, err := l.b.post(context.Background(), l.b.bodies[tile])
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	if err != nil {
		l.lost++
		return
	}
	l.statuses[status]++
	if status != http.StatusOK {
		var failure struct{ Code string }
		_ = json.Unmarshal(answer, &failure) // without a code it is one failure too many
		l.codes[failure.Code]++
	} else if !bytes.Equal(answer, l.b.want[tile]) {
		l.wrong++
	}
}

// end stops the callers and waits for what they are still owed.
func (l *load) end() {
	close(l.stop)
	l.done.Wait()
}

func (l *load) failed() int { return l.statuses[http.StatusServiceUnavailable] }

func (l *load) String() string {
	parts := []string{fmt.Sprintf("%d x 200", l.statuses[http.StatusOK])}
	for _, code := range slices.Sorted(maps.Keys(l.codes)) {
		parts = append(parts, fmt.Sprintf("%d x %s", l.codes[code], code))
	}
	return strings.Join(parts, ", ") + fmt.Sprintf("; slowest %s", round(l.slowest))
}

// hold checks what is promised of every fault: what sound does, and that at most some
// fail.
func (l *load) hold(t *testing.T, most int) {
	t.Helper()
	l.sound(t, deadline)
	if failed := l.failed(); failed > most {
		t.Errorf("%d requests to %s failed, more than %d", failed, l.b.model, most)
	}
}

// sound checks that no caller is left without an answer, none gets another's, and those
// that fail do so with a 503 in time.
func (l *load) sound(t *testing.T, within time.Duration) {
	t.Helper()
	if l.lost > 0 || l.wrong > 0 {
		t.Errorf("%d callers without an answer, %d with a wrong one", l.lost, l.wrong)
	}
	for status, n := range l.statuses {
		if status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Errorf("%d answers of status %d", n, status)
		}
	}
	if l.statuses[http.StatusOK] == 0 {
		t.Error("nobody was served")
	}
	if l.slowest > within+3*time.Second { // for the way there and back
		t.Errorf("a caller waited for %s", l.slowest)
	}
}

// underLoad is a stack's callers and what /ping says meanwhile.
type underLoad struct {
	*load
	pings  *pings
	beside *load // of the sound model, where there is one; else nil
	others *pings
}

// startUnderLoad begins both, and lets them settle.
func startUnderLoad(t *testing.T, b *bench) *underLoad {
	t.Helper()
	u := &underLoad{pings: watchPing(t, b.Stack, "/ping", 10*time.Millisecond), load: startLoad(b, callers)}
	if b.beside != nil {
		u.others = watchPing(t, b.Stack, "/ping?model="+besideName, 10*time.Millisecond)
		u.beside = startLoad(b.beside, 1)
	}
	time.Sleep(300 * time.Millisecond)
	return u
}

// end stops the callers, and waits for what they are still owed.
func (u *underLoad) end() {
	u.load.end()
	if u.beside != nil {
		u.beside.end()
	}
}

// hold checks what is promised when all has ended. Of the sound model nothing fails, and
// /ping never says no to it, unless Triton itself ended.
func (u *underLoad) hold(t *testing.T, most int, tritonEnded bool) {
	t.Helper()
	u.load.hold(t, most)
	if u.beside == nil {
		return
	}
	if tritonEnded {
		u.others.end()
		u.beside.hold(t, 1) // its one caller's, inside when Triton ended
	} else {
		u.others.staysOn(t)
		u.beside.hold(t, 0)
	}
}
