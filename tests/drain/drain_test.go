// Package drain ends a real stack with SIGTERM while it is in use, and holds what
// each caller sees, over a connection of its own, against what it was promised.
package drain

import (
	"bytes"
	"context"
	"fmt"
	"image/jpeg"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

const (
	model      = "h1"
	rounds     = 20
	inFlight   = 256 // admitted, when the signal is sent
	justSent   = 16  // written to new connections right before it
	idle       = 16  // connections with an earlier request and none now
	halfSent   = 4   // requests of which the half is sent, in every fourth round
	exitWithin = 30 * time.Second
	drainLimit = 20 * time.Second // the default of DRAIN_LIMIT
	window     = 96               // two full batches of the model
)

// gated is a stack whose model answers nobody while it is held.
type gated struct {
	*stack.Stack
	hold  string // the file that holds it
	tiles []*tile
}

// start starts a stack, of the gateway with the race detector where that is asked for.
func start(t *testing.T, race bool, env ...string) *gated {
	t.Helper()
	o, folder, err := stack.Variant(t.TempDir(), model, filepath.Join(stack.Root(), "tests/drain/testdata/gated"),
		"max_queue_delay_ms: 0", "max_queue_delay_ms: 0\n  execute_limit_ms: 60000") // a batch that is held is no hang
	if err != nil {
		t.Fatal(err)
	}
	o.Race, o.Env = race, append(o.Env, env...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("what the stack wrote:\n%s", s.Output())
		}
	})
	g := &gated{Stack: s, hold: filepath.Join(folder, "hold")}
	for i, path := range stack.TilePaths() {
		image := stack.ReadTile(path)
		if i > 0 { // one as large as tiles are; the others smaller, to be quick
			image = asJPEG(t, image)
		}
		alone, c := &tile{image: image}, g.dial(t)
		if err := c.send(alone, i); err != nil {
			t.Fatal(err)
		}
		r, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := bytes.Cut(r.body, []byte("["))
		alone.output, _, _ = bytes.Cut(rest, []byte("]"))
		if len(alone.output) < 1536 {
			t.Fatalf("alone: %v", r)
		}
		g.tiles = append(g.tiles, alone)
		_ = c.Close()
	}
	return g
}

func asJPEG(t *testing.T, data []byte) []byte {
	t.Helper()
	tile, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, tile, nil); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (g *gated) dial(t *testing.T) *caller {
	t.Helper()
	c, err := dial(g.Stack)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// together has each of a number of callers do the same thing, all at once, and
// reports what went wrong.
func together(t *testing.T, what string, callers []*caller, do func(i int, c *caller) error) {
	t.Helper()
	errs := make([]error, len(callers))
	var all sync.WaitGroup
	for i, c := range callers {
		all.Go(func() { errs[i] = do(i, c) })
	}
	all.Wait()
	wrong := map[string]int{}
	for _, err := range errs {
		if err != nil {
			wrong[err.Error()]++
		}
	}
	for text, n := range wrong {
		t.Errorf("%s: %d of %d: %s", what, n, len(callers), text)
	}
}

func (g *gated) dialMany(t *testing.T, n int) []*caller {
	t.Helper()
	callers := make([]*caller, n)
	for i := range callers {
		callers[i] = g.dial(t)
	}
	return callers
}

// send has each caller send a request.
func (g *gated) send(t *testing.T, callers []*caller) {
	t.Helper()
	together(t, "sending", callers, func(i int, c *caller) error { return c.send(g.tiles[i%len(g.tiles)], i) })
}

// served has each caller read its answer.
func served(t *testing.T, what string, callers []*caller, last bool) {
	t.Helper()
	together(t, what, callers, func(_ int, c *caller) error { return c.served(last) })
}

// close has the model answer nobody until open is called.
func (g *gated) close(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(g.hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (g *gated) open(t *testing.T) {
	t.Helper()
	if err := os.Remove(g.hold); err != nil {
		t.Fatal(err)
	}
}

// fill sends requests to a model that is held, and returns when the gateway says
// that it has them all.
func (g *gated) fill(t *testing.T, callers []*caller) {
	t.Helper()
	g.close(t)
	g.send(t, callers)
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		n, err := g.Metric("histogate_requests_in_flight")
		if err != nil {
			t.Fatal(err)
		}
		if int(n) == len(callers) {
			return
		}
		if time.Since(began) > patience/2 {
			t.Fatalf("%v of %d requests are in flight", n, len(callers))
		}
	}
}

func (g *gated) terminate(t *testing.T) {
	t.Helper()
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// draining waits until the gateway has taken notice of the signal.
func (g *gated) draining(t *testing.T) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(5 * time.Millisecond) {
		if slices.ContainsFunc(g.Log(), func(entry map[string]any) bool { return entry["msg"] == "draining" }) {
			return
		}
	}
	t.Error("the gateway does not drain")
}

// ended waits for the end of the gateway and returns how long after the signal it was.
func (g *gated) ended(t *testing.T, signalled time.Time) time.Duration {
	t.Helper()
	select {
	case <-g.Exited():
	case <-time.After(patience):
		t.Fatal("the gateway does not end")
	}
	took := time.Since(signalled)
	if code := g.ExitCode(); code != 0 || took > exitWithin {
		t.Errorf("exit code %d after %s", code, took)
	}
	return took
}

// What the gateway had in full when it was told to stop is answered, every time.
func TestSIGTERMUnderLoad(t *testing.T) {
	var mu sync.Mutex
	var slowest time.Duration
	answers := 0
	t.Run("rounds", func(t *testing.T) {
		for round := range rounds {
			t.Run(fmt.Sprint(round), func(t *testing.T) {
				t.Parallel()
				n, took := terminateUnderLoad(t, round)
				mu.Lock()
				defer mu.Unlock()
				answers += n
				slowest = max(slowest, took)
			})
		}
	})
	t.Logf("%d rounds of SIGTERM, %d requests that were there before it; slowest exit %s",
		rounds, answers, slowest.Round(time.Millisecond))
}

func terminateUnderLoad(t *testing.T, round int) (answers int, exit time.Duration) {
	g := start(t, round%10 == 0)
	used := g.dialMany(t, inFlight/2+idle)
	g.send(t, used)
	served(t, "before the signal", used, false)
	full, resting := append(g.dialMany(t, inFlight/2), used[idle:]...), used[:idle]
	half := g.dialMany(t, halfSent*(1-min(1, round%4)))
	together(t, "sending the half", half, func(i int, c *caller) error { return c.sendHalf(g.tiles[0], i) })
	g.fill(t, full)
	late := g.dialMany(t, justSent)
	for i, c := range late { // small enough for what a socket takes before anybody reads
		if err := c.send(g.tiles[1], i); err != nil {
			t.Fatal(err)
		}
	}
	signalled := time.Now()
	g.terminate(t)

	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		g.draining(t) // what is answered before says nothing of the end of its connection
		time.Sleep(time.Duration(round) * 25 * time.Millisecond)
		g.open(t)
		if round%2 == 1 {
			g.terminate(t) // again
		}
	})
	all.Go(func() { served(t, "in flight", full, true) })
	all.Go(func() { served(t, "right before the signal", late, true) })
	all.Go(func() {
		together(t, "half of a request", half, func(_ int, c *caller) error { return c.refused(http.StatusRequestTimeout, "request_timeout") })
	})
	all.Go(func() {
		together(t, "idle before the signal", resting, func(i int, c *caller) error {
			if i%2 == 0 {
				err := c.ended()
				if took := time.Since(signalled); err == nil && took < time.Second {
					return fmt.Errorf("a quiet connection is closed after %s", took)
				}
				return err
			}
			time.Sleep(time.Duration(i) * 50 * time.Millisecond)
			err := c.send(g.tiles[1], i)
			if time.Since(signalled) > 900*time.Millisecond { // this machine was too busy to send it in time
				return nil
			}
			if err == nil {
				err = c.served(true)
			}
			return err
		})
	})
	exit = g.ended(t, signalled)
	return len(full) + len(late), exit
}

// Callers that connect anew for each request, to the very end, are served or cannot
// connect: nothing that was sent is lost.
func TestSIGTERMWhileCallersReconnect(t *testing.T) {
	t.Parallel()
	const callers = 32
	g := start(t, false)
	var answers atomic.Int64
	signalled := make(chan time.Time, 1)
	time.AfterFunc(time.Second, func() {
		signalled <- time.Now()
		g.terminate(t)
	})
	together(t, "connecting anew", make([]*caller, callers), func(i int, _ *caller) error {
		for {
			c, err := dial(g.Stack)
			if err != nil {
				return nil //nolint:nilerr // refused: nothing was sent
			}
			if err = c.send(g.tiles[1], i); err == nil {
				err = c.served(false)
			}
			_ = c.Close()
			if err != nil {
				return err
			}
			answers.Add(1)
		}
	})
	t.Logf("%d answers; exit after %s", answers.Load(), g.ended(t, <-signalled).Round(time.Millisecond))
	if answers.Load() < callers {
		t.Errorf("%d answers to %d callers", answers.Load(), callers)
	}
}

// A Triton that is stopped, as by a machine that thrashes, holds the end up no longer
// than it takes to find that out: what was inside it is told so, the others are served
// by the next one.
func TestSIGTERMWhileTritonIsStopped(t *testing.T) {
	t.Parallel()
	g := start(t, false)
	callers := g.dialMany(t, inFlight)
	g.fill(t, callers)
	if err := syscall.Kill(g.TritonPID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.open(t)
	signalled := time.Now()
	g.terminate(t)
	var served, failed atomic.Int64
	together(t, "pending", callers, func(_ int, c *caller) error {
		r, err := c.read()
		switch {
		case err != nil:
			return err
		case r.status == http.StatusOK && bytes.Equal(r.body, c.sent.answer(c.patch)):
			served.Add(1)
		case r.status == http.StatusServiceUnavailable:
			failed.Add(1)
		default:
			return fmt.Errorf("neither its own answer nor a 503: %v", r)
		}
		return c.ended()
	})
	t.Logf("%d requests pending: %d x 200, %d x 503; exit after %s", inFlight, served.Load(), failed.Load(), g.ended(t, signalled).Round(time.Millisecond))
	if failed.Load() > window {
		t.Errorf("%d requests failed, more than the %d that can be inside Triton", failed.Load(), window)
	}
}

// A model that never answers holds the end up until DRAIN_LIMIT, the default one
// here. Then each pending request, inside Triton or not, is told so, and so is one
// that stopped half-way; being told to stop again and again meanwhile changes nothing.
func TestSIGTERMWhileModelHangs(t *testing.T) {
	t.Parallel()
	g := start(t, false, "REQUEST_TIMEOUT=60s")
	callers, half := g.dialMany(t, inFlight), g.dialMany(t, halfSent)
	together(t, "sending the half", half, func(i int, c *caller) error { return c.sendHalf(g.tiles[0], i) })
	g.fill(t, callers)
	signalled := time.Now()
	g.terminate(t)
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	go func() {
		for {
			select {
			case <-again.C:
				_ = g.Signal(syscall.SIGTERM) // it may have ended
			case <-t.Context().Done():
				return
			}
		}
	}()
	together(t, "half of a request", half, func(_ int, c *caller) error { return c.refused(http.StatusRequestTimeout, "request_timeout") })
	together(t, "pending", callers, func(_ int, c *caller) error { return c.refused(http.StatusServiceUnavailable, "busy") })
	told := time.Since(signalled)
	t.Logf("%d requests pending: each told busy after %s; exit after %s", inFlight, told.Round(time.Millisecond), g.ended(t, signalled).Round(time.Millisecond))
	if told < drainLimit {
		t.Errorf("given up after %s, before the limit of %s", told, drainLimit)
	}
}
