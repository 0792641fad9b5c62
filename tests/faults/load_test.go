package faults

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"histogate/tritonclient"
)

// What is load, not ill health: a queue that is full, a deadline that passes, a model
// that is slow. None of it may turn readiness off.

// staysOn checks that /ping never said no, and always soon.
func (p *pings) staysOn(t *testing.T) {
	t.Helper()
	p.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.changes) > 1 {
		t.Errorf("/ping changed its mind %d times", len(p.changes)-1)
	}
	if p.asked == 0 || p.slowest > truthLimit {
		t.Errorf("/ping was asked %d times and took up to %s", p.asked, p.slowest)
	}
}

// Triton's own queue is a backstop: when somebody else fills it the gateway's callers
// are told that the service is busy.
func queueFull(t *testing.T, r *report) {
	b := start(t, setup{change: []string{"dynamic_batching {", "dynamic_batching { default_queue_policy { max_queue_size: 8 }"}})
	b.ask(t, "pace", "0.2")
	fill(t, b, 16)
	p := watchPing(t, b.Stack, "/ping", 10*time.Millisecond)
	l := startLoad(b, 16)
	time.Sleep(3 * time.Second)
	l.end()
	p.staysOn(t)
	r.add("queue full", l, "never", "")
	l.sound(t, deadline)
	if l.codes["busy"] == 0 || l.codes["busy"] != l.failed() {
		t.Errorf("the failures are %v, not all busy", l.codes)
	}
}

// fill sends inferences to Triton beside the gateway until the test ends.
func fill(t *testing.T, b *bench, callers int) {
	t.Helper()
	client := b.triton(t)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	data := make([]byte, 4*3*224*224)
	data[3] = 1 // not a probe
	for range callers {
		done.Go(func() {
			for ctx.Err() == nil {
				_, _ = client.Infer(ctx, &tritonclient.InferRequest{ // it may be refused, as others are
					Model:   "h1",
					Inputs:  []tritonclient.TensorSpec{{Name: "tile", Datatype: tritonclient.Float32, Shape: []int64{1, 3, 224, 224}}},
					Write:   func(_ int, dst []byte) { copy(dst, data) },
					Outputs: []tritonclient.TensorSpec{{Name: "embedding", Datatype: tritonclient.Float32, Shape: []int64{1, 1536}}},
				})
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// Requests that Triton itself gives up, because they waited in its queue for too long.
func queueTimeout(t *testing.T, r *report) {
	b := start(t, setup{change: []string{"dynamic_batching {", "dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 100000 }"}})
	b.ask(t, "pace", "0.4")
	p := watchPing(t, b.Stack, "/ping", 10*time.Millisecond)
	l := startLoad(b, 16)
	time.Sleep(3 * time.Second)
	l.end()
	p.staysOn(t)
	r.add("queue timeout", l, "never", "")
	l.sound(t, deadline)
	if l.codes["queue_timeout"] == 0 || l.codes["queue_timeout"] != l.failed() {
		t.Errorf("the failures are %v, not all queue_timeout", l.codes)
	}
}

// A batch that outlives its callers' deadline, but not its own limit, answers when
// nobody waits any more. What it says reaches nobody else, be its inputs in messages or
// in shared memory, which others are given meanwhile.
func lateAnswer(t *testing.T, r *report) {
	for transport, segments := range map[string]int{"raw": 0, "auto": 1} {
		t.Run(transport, func(t *testing.T) { lateAnswerBy(t, r, transport, segments) })
	}
}

func lateAnswerBy(t *testing.T, r *report, transport string, segments int) {
	b := start(t, setup{env: []string{"REQUEST_TIMEOUT=2s", "TENSOR_TRANSPORT=" + transport}})
	if mapped := b.Segments(); len(mapped) != segments {
		t.Fatalf("Triton has mapped %v, want %d", mapped, segments)
	}
	p := watchPing(t, b.Stack, "/ping", 10*time.Millisecond)
	l := startLoad(b, callers)
	for range 2 {
		time.Sleep(500 * time.Millisecond)
		b.ask(t, "fault", "slow 3")
		b.awaitMet(t, "fault")
		time.Sleep(3 * time.Second)
	}
	time.Sleep(time.Second)
	l.end()
	p.staysOn(t)
	r.add("late answer, "+transport, l, "never", "")
	l.sound(t, 2*time.Second)
	if l.codes["backend_timeout"] == 0 {
		t.Errorf("nobody's deadline passed inside Triton: %v", l.codes)
	}
	for code := range l.codes {
		if code != "backend_timeout" && code != "queue_timeout" {
			t.Errorf("somebody was told %s", code)
		}
	}
}

// A replica that has as much as it can do is ready, and says so at once.
func saturated(t *testing.T, r *report) {
	b := start(t, usual())
	b.ask(t, "pace", "1")
	p := watchPing(t, b.Stack, "/ping", 50*time.Millisecond)
	l := startLoad(b, 256)
	time.Sleep(6 * time.Second)
	l.end()
	p.staysOn(t)
	t.Logf("/ping was asked %d times and took at most %s", p.asked, round(p.slowest))
	r.add("saturated", l, "never", "")
	l.hold(t, 0)
}

// A client that is killed with many requests in flight costs what is inside Triton,
// and no forward more.
func callerKilled(t *testing.T, r *report) {
	const sent = 256
	b := start(t, usual())
	b.ask(t, "pace", "1")
	client := b.triton(t)
	rows := func() int { // that callers cost
		stats, err := client.ModelStatistics(t.Context(), "h1")
		if err != nil {
			t.Fatal(err)
		}
		probes, err := b.Metric(`histogate_canary_inferences_total{model="h1",result="ok"}`)
		if err != nil {
			t.Fatal(err)
		}
		return int(stats.InferenceCount) - int(probes)
	}
	idle := rows() - len(b.bodies)
	ctx, die := context.WithCancel(t.Context())
	defer die()
	var done sync.WaitGroup
	for i := range sent {
		done.Go(func() {
			_, _, _ = b.post(ctx, b.bodies[i%len(b.bodies)]) // it is killed
		})
	}
	eventually(t, "the requests do not arrive", func() bool {
		waiting, err := b.Metric(`histogate_requests_parked{model="h1"}`)
		return err == nil && waiting+window+float64(rows()-idle) >= sent
	})
	die()
	done.Wait()
	before := rows() // what runs from here on nobody waits for
	eventually(t, "requests of the killed client are still in flight", func() bool {
		n, err := b.Metric("histogate_requests_in_flight")
		return err == nil && n == 0
	})
	l := startLoad(b, 4)
	time.Sleep(time.Second)
	l.end()
	cost := rows() - before - l.statuses[http.StatusOK]
	gone, err := b.Metric(`histogate_requests_total{code="caller_gone",mode="embedding",model="h1",route="/invocations",status="499"}`)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, %d rows run when their client was killed: %d more, %v dropped", sent, before-idle, cost, gone)
	r.add("caller killed", l, "never", "")
	l.hold(t, 0)
	if cost > window+1 || gone == 0 { // a probe may be counted on one side only
		t.Errorf("a killed client with %d in flight cost %d forwards, more than the %d inside; %v were dropped", sent, cost, window, gone)
	}
}
