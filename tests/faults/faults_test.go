package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

const (
	callers      = 160 // more than the window: some of them wait in the gateway
	executeLimit = 2 * time.Second
	truthLimit   = 2 * time.Second // until /ping says no
	healLimit    = time.Second     // beyond the times that Triton and the model take to start
)

// setup of the stack that meets most faults.
func usual() setup {
	return setup{
		spec: []string{"batching:\n", "batching:\n  execute_limit_ms: 2000\n"},
		env:  []string{"TRITON_RESTART_LIMIT=20"}, // what is measured again may end it again
	}
}

// TestFaults has a stack meet every fault, under load, and says what became of each.
func TestFaults(t *testing.T) {
	r := new(report)
	defer r.write(t)
	t.Run("one stack", func(t *testing.T) {
		b := start(t, usual())
		for _, f := range faultsOfABatch() {
			t.Run(f.name, func(t *testing.T) { f.meet(t, b, r) })
		}
		shared := b.Segments()
		for _, f := range faultsOfAProcess() {
			t.Run(f.name, func(t *testing.T) { f.meet(t, b, r) })
		}
		if now := b.Segments(); len(shared) != 1 || !slices.Equal(shared, now) {
			t.Errorf("the last Triton has mapped %v, the first one %v: each is given the same shared memory", now, shared)
		}
	})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *report)
	}{
		{"load does not come back", loadHangs},
		{"queue full", queueFull},
		{"queue timeout", queueTimeout},
		{"late answer", lateAnswer},
		{"saturated", saturated},
		{"caller killed", callerKilled},
		{"Triton's port taken", portTaken},
		{"Triton later", tritonLater},
		{"Triton ends again and again", tritonEndsAgainAndAgain},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, r) })
	}
}

// batchFault is met by one batch: its requests get a 503, nobody else notices.
type batchFault struct {
	name string // what the backend is asked for
	most int    // requests that may fail
	code string
}

func faultsOfABatch() []batchFault {
	const batch = 48
	return []batchFault{
		{"raise", batch, "forward_failed"},
		{"fewer", batch, "forward_failed"},
		{"nan", batch, "forward_failed"},
		{"shape", batch, "forward_failed"},
		{"rank", batch, "forward_failed"},
		{"rows", batch, "forward_failed"},
		{"dtype", batch, "forward_failed"},
		{"name", batch, "forward_failed"},
		{"no output", batch, "forward_failed"},
		{"one error", 1, "forward_failed"},
		{"one nan", 1, "forward_failed"},
		// Nobody says that it is lost: it may be in the second batch inside.
		{"none", batch, "backend_timeout"},
	}
}

func (f batchFault) meet(t *testing.T, b *bench, r *report) {
	p := watchPing(t, b.Stack, 10*time.Millisecond)
	l := startLoad(b, callers)
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	b.ask(t, "fault", f.name)
	b.awaitMet(t, "fault")
	eventually(t, "nobody was told", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.codes[f.code] > 0
	})
	time.Sleep(300 * time.Millisecond)
	l.end()
	eventually(t, "/ping says no", func() bool { return !p.on().IsZero() })
	p.end()
	off := "never"
	if at := p.off(began); !at.IsZero() { // a probe was in the batch
		off = round(at.Sub(began)).String()
	}
	r.add(f.name, l, off, "")
	l.hold(t, f.most, deadline)
	if l.codes[f.code] != l.failed() {
		t.Errorf("not all of the batch were told %s: %v", f.code, l.codes)
	}
	if l.slowest > 3*executeLimit+5*time.Second {
		t.Errorf("a caller waited for %s", l.slowest)
	}
}

// processFault ends the model's process, makes it useless, or ends Triton.
type processFault struct {
	name  string
	cause func(*testing.T, *bench) time.Time // when it came about
	most  int                                // requests that may fail
	off   time.Duration                      // until /ping must have told the truth
	// gone is the line of the log after which the cause is gone; without one it is
	// at once.
	gone string
}

const (
	reloading = "loading the model again"
	restarted = "triton is gone, starting it again"
)

func faultsOfAProcess() []processFault {
	met := func(fault string) func(*testing.T, *bench) time.Time {
		return func(t *testing.T, b *bench) time.Time {
			began := time.Now()
			b.ask(t, "fault", fault)
			b.awaitMet(t, "fault")
			return began
		}
	}
	signal := func(signal syscall.Signal) func(*testing.T, *bench) time.Time {
		return func(t *testing.T, b *bench) time.Time { return kill(t, b.TritonPID(), signal) }
	}
	return []processFault{
		{"abort", met("abort"), window, truthLimit, ""},
		{"backend SIGKILL", func(t *testing.T, b *bench) time.Time { return kill(t, b.stubs(t)[0], syscall.SIGKILL) }, window, truthLimit, ""},
		{"raise until reloaded", met("sticky raise"), window, truthLimit, reloading},
		// Each is its caller's alone, until there are a few in a row.
		{"NaN until reloaded", met("sticky nan"), window + 2, truthLimit, reloading},
		{"hang", met("hang"), window, executeLimit + truthLimit, reloading},
		{"unloaded", func(t *testing.T, b *bench) time.Time {
			began := time.Now()
			if err := b.triton(t).UnloadModel(t.Context(), "h1"); err != nil {
				t.Fatal(err)
			}
			return began
		}, window, truthLimit, ""},
		{"Triton SIGKILL", signal(syscall.SIGKILL), window, truthLimit, restarted},
		{"Triton SIGSTOP", signal(syscall.SIGSTOP), window, executeLimit + truthLimit, restarted},
		{"Triton SIGTERM", signal(syscall.SIGTERM), window, truthLimit, restarted},
		{"raise until Triton restarts", met("server"), window, truthLimit, restarted},
		{"unload does not come back", killWhileLoading, window, truthLimit, restarted},
	}
}

// killWhileLoading kills the model's process while somebody else has Triton load the
// model again and that load hangs. Triton answers no unload then.
func killWhileLoading(t *testing.T, b *bench) time.Time {
	old := b.stubs(t)
	b.ask(t, "load", "hang")
	now := time.Now() // else Triton sees nothing to load
	if err := os.Chtimes(filepath.Join(b.folder, "config.pbtxt"), now, now); err != nil {
		t.Fatal(err)
	}
	client := b.triton(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	go func() { _ = client.LoadModel(ctx, "h1") }() // it fails when Triton ends
	b.awaitMet(t, "load")
	return kill(t, old[0], syscall.SIGKILL)
}

// A load that hangs, though the model was in service before, has Triton started again.
func loadHangs(t *testing.T, r *report) {
	c := usual()
	c.env = append(c.env, "MODEL_LOAD_TIMEOUT=6s") // for a load that takes half a second
	processFault{"load does not come back", func(t *testing.T, b *bench) time.Time {
		b.ask(t, "load", "hang")
		return kill(t, b.stubs(t)[0], syscall.SIGKILL)
	}, window, truthLimit, restarted}.meet(t, start(t, c), r)
}

func (f processFault) meet(t *testing.T, b *bench, r *report) {
	var l *load
	var off, back time.Duration
	measure(t, func() (late string) {
		l, off, back, late = f.once(t, b)
		return late
	})
	r.add(f.name, l, round(off).String(), round(back).String())
	// Whoever asks next is served: nothing of the fault is left.
	if status, answer, err := b.post(t.Context(), b.bodies[0]); err != nil || status != http.StatusOK {
		t.Errorf("afterwards: %v, %d %s", err, status, answer)
	}
}

// once brings the fault about under load. off and back are counted from the fault;
// late says which bar of time was missed.
func (f processFault) once(t *testing.T, b *bench) (l *load, off, back time.Duration, late string) {
	p := watchPing(t, b.Stack, 10*time.Millisecond)
	l = startLoad(b, callers)
	time.Sleep(300 * time.Millisecond)
	began := f.cause(t, b)
	eventually(t, "/ping never said no", func() bool { return !p.off(began).IsZero() })
	eventually(t, "/ping never said yes again", func() bool {
		on := p.on()
		return on.After(p.off(began)) && time.Since(on) > 300*time.Millisecond
	})
	off, on := p.off(began).Sub(began), p.on()
	l.end()
	p.end()
	l.hold(t, f.most, deadline)

	gone := began
	if f.gone != "" {
		line := b.logged(f.gone, began)
		if line == nil {
			t.Fatalf("the log does not say %q", f.gone)
		}
		gone = logTime(line)
	}
	limit := healLimit + took(b.logged("model is ready", gone), "all_ms") // of that very load, its first batches included
	if f.gone == restarted {
		limit += took(b.logged("triton is live", gone), "start_ms")
	}
	t.Logf("/ping off after %s, on %s after the cause was gone (limit %s); callers: %s", round(off), round(on.Sub(gone)), round(limit), l)
	switch back := on.Sub(gone); {
	case off > f.off:
		late = fmt.Sprintf("/ping told the truth after %s, later than %s", off, f.off)
	case back > limit:
		late = fmt.Sprintf("back in service %s after the cause was gone, later than %s", back, limit)
	}
	return l, off, on.Sub(began), late
}
