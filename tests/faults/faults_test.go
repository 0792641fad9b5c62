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
		change: []string{"batching:\n", "batching:\n  execute_limit_ms: 2000\n"},
		env:    []string{"TRITON_RESTART_LIMIT=20"}, // what is measured again may end it again
	}
}

// TestFaults has a stack meet every fault, under load, and says what became of each.
func TestFaults(t *testing.T) {
	r := new(report)
	defer r.write(t)
	t.Run("one stack", func(t *testing.T) {
		c := usual()
		c.beside = true
		b := start(t, c)
		for _, f := range faultsOfABatch() {
			t.Run(f.name, func(t *testing.T) { f.meet(t, b, r) })
		}
		shared := b.Segments()
		for _, f := range faultsOfAProcess() {
			t.Run(f.name, func(t *testing.T) { f.meet(t, b, r) })
		}
		if now := b.Segments(); len(shared) != 2 || !slices.Equal(shared, now) {
			t.Errorf("the last Triton has mapped %v, the first one %v: each is given the same shared memory, a segment a model", now, shared)
		}
	})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *report)
	}{
		{"load does not come back", loadHangs},
		{"one instance of two hangs", oneInstanceHangs},
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
		// Nobody says that it is lost: it shows by what overtakes it, and the model is
		// loaded again when all others are answered, as an instance may hang.
		{"none", batch, "backend_timeout"},
	}
}

func (f batchFault) meet(t *testing.T, b *bench, r *report) {
	l := startUnderLoad(t, b)
	p := l.pings
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
	r.add(f.name, l.load, off, "")
	l.hold(t, f.most, false)
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

// met has the backend meet a fault.
func met(fault string) func(*testing.T, *bench) time.Time {
	return func(t *testing.T, b *bench) time.Time {
		began := time.Now()
		b.ask(t, "fault", fault)
		b.awaitMet(t, "fault")
		return began
	}
}

// backendKilled kills a process of the model.
func backendKilled(t *testing.T, b *bench) time.Time {
	return kill(t, b.BackendPIDs(b.model)[0], syscall.SIGKILL)
}

func faultsOfAProcess() []processFault {
	signal := func(signal syscall.Signal) func(*testing.T, *bench) time.Time {
		return func(t *testing.T, b *bench) time.Time { return kill(t, b.TritonPID(), signal) }
	}
	return []processFault{
		{"abort", met("abort"), window, truthLimit, ""},
		{"backend SIGKILL", backendKilled, window, truthLimit, ""},
		{"raise until reloaded", met("sticky raise"), window, truthLimit, reloading},
		// A probe of one row is answered, so that a second window is let inside.
		{"full batches fail until reloaded", met("sticky full"), 2 * window, truthLimit, reloading},
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
	old := b.BackendPIDs(b.model)
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
		return backendKilled(t, b)
	}, window, truthLimit, restarted}.meet(t, start(t, c), r)
}

// One instance of several that hangs shows by what it never answers, the others being
// answered. Its batch is lost, and nothing else.
func oneInstanceHangs(t *testing.T, r *report) {
	c := usual()
	c.change = append(c.change, "count: 1", "count: 2")
	processFault{"one instance of two hangs", met("hang"), batch, 3*executeLimit + truthLimit, reloading}.meet(t, start(t, c), r)
}

func (f processFault) meet(t *testing.T, b *bench, r *report) {
	var l *load
	m := measure(t, func() (off, back time.Duration, late string) {
		l, off, back, late = f.once(t, b)
		return off, back, late
	})
	r.addMeasured(f.name, l, m)
	// Whoever asks next is served: nothing of the fault is left.
	if status, answer, err := b.post(t.Context(), b.bodies[0]); err != nil || status != http.StatusOK {
		t.Errorf("afterwards: %v, %d %s", err, status, answer)
	}
}

// once brings the fault about under load. off and back are counted from the fault;
// late says which bar of time was missed.
func (f processFault) once(t *testing.T, b *bench) (_ *load, off, back time.Duration, late string) {
	l := startUnderLoad(t, b)
	p := l.pings
	began := f.cause(t, b)
	eventually(t, "/ping never said no", func() bool { return !p.off(began).IsZero() })
	eventually(t, "/ping never said yes again", func() bool {
		on := p.on()
		return on.After(p.off(began)) && time.Since(on) > 300*time.Millisecond
	})
	off, on := p.off(began).Sub(began), p.on()
	l.end()
	p.end()
	// A process that is killed with a lock in its hands takes Triton with it, now and then.
	ended := b.logged(restarted, began)
	l.hold(t, f.most, f.gone == restarted || ended != nil && ended["cause"] == "it ended")

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
		if b.beside != nil { // it may have been loaded first
			limit += took(b.beside.logged("model is ready", gone), "all_ms")
		}
	}
	t.Logf("/ping off after %s, on %s after the cause was gone (limit %s); callers: %s", round(off), round(on.Sub(gone)), round(limit), l.load)
	switch back := on.Sub(gone); {
	case off > f.off:
		late = fmt.Sprintf("/ping told the truth after %s, later than %s", off, f.off)
	case back > limit:
		late = fmt.Sprintf("back in service %s after the cause was gone, later than %s", back, limit)
	}
	return l.load, off, on.Sub(began), late
}
