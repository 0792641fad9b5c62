// Package faults breaks the shared stage of a real stack, in every way that was
// met, and holds what callers see against what they are promised: who fails, how
// long until /ping tells the truth, how long until service is back unaided.
package faults

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
	"histogate/tritonclient"
)

const (
	batch    = 48               // of h1
	window   = 2 * batch        // what is inside Triton at most
	deadline = 25 * time.Second // of a request, by default

	besideName = "h0-mini"
)

// bench is a stack that serves h1 on the backend with faults.
type bench struct {
	*stack.Stack
	model  string
	folder string   // of the model
	bodies [][]byte // of requests for different tiles
	want   [][]byte // what each is answered while all is well
	client http.Client
	pause  time.Duration // of a caller, between two requests
	beside *bench        // the same stack's sound model, where it has one
	exit   int           // code that the gateway shall end with
}

func newBench(t *testing.T, s *stack.Stack, folder string) *bench {
	t.Helper()
	b := benchOf(s, "h1")
	b.folder = folder
	t.Cleanup(func() { b.end(t) })
	return b
}

func benchOf(s *stack.Stack, model string) *bench {
	b := &bench{Stack: s, model: model}
	b.client.Transport = &http.Transport{MaxIdleConnsPerHost: 1024} // callers keep their connections
	for i, path := range stack.TilePaths() {
		b.bodies = append(b.bodies, stack.Tile{
			ImageData: stack.ReadTile(path), SlideName: "slide-" + strconv.Itoa(i), Width: 224, Height: 224,
			PatchIdx: i, ModelName: model, Mode: "embedding",
		}.Body())
	}
	return b
}

// setup is how a bench's model and gateway differ from what is usual.
type setup struct {
	change []string // texts of spec.yaml and config.pbtxt, each followed by what replaces it
	env    []string
	beside bool // it serves a sound model too, which /ping does not ask
}

// prepare makes what a stack needs that serves h1 on the backend with faults.
func prepare(t *testing.T, c setup) (o stack.Options, folder string) {
	t.Helper()
	o, folder, err := stack.Variant(t.TempDir(), "h1", filepath.Join(stack.Root(), "tests/faults/testdata/faulty"), c.change...)
	if err != nil {
		t.Fatal(err)
	}
	if c.beside {
		if err := os.Symlink(filepath.Join(stack.Root(), "model_repository", besideName), filepath.Join(o.Repository, besideName)); err != nil {
			t.Fatal(err)
		}
		o.Env = append(o.Env, "MODELS=h1,"+besideName, "PING_MODE=h1")
	}
	o.Env = append(o.Env, c.env...)
	return o, folder
}

// start starts a bench and learns what its tiles are answered.
func start(t *testing.T, c setup) *bench {
	t.Helper()
	o, folder := prepare(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, s, folder)
	b.learn(t)
	if c.beside {
		b.beside = benchOf(s, besideName)
		b.beside.pause = 20 * time.Millisecond
		b.beside.learn(t) // its first tile waits until it is loaded
	}
	return b
}

func (b *bench) end(t *testing.T) {
	b.client.CloseIdleConnections()
	if b.beside != nil {
		b.beside.client.CloseIdleConnections()
	}
	if code := b.Stop(); code != b.exit {
		t.Errorf("the gateway ended with exit code %d, not %d", code, b.exit)
	}
	if t.Failed() {
		t.Logf("what the stack wrote:\n%s", b.Output())
	}
}

// post sends a request and returns the status and the body of its answer. Nothing is
// taken apart: the processor is for those who are tested.
func (b *bench) post(ctx context.Context, body []byte) (status int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.URL+"/invocations", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	response, err := b.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// learn asks for each tile alone.
func (b *bench) learn(t *testing.T) {
	t.Helper()
	for i, body := range b.bodies {
		status, answer, err := b.post(t.Context(), body)
		if err != nil || status != http.StatusOK {
			t.Fatalf("tile %d before any fault: %v, %d %s", i, err, status, answer)
		}
		output, _, _ := bytes.Cut(answer, []byte("]"))
		if slices.ContainsFunc(b.want, func(other []byte) bool { return bytes.HasPrefix(other, output) }) {
			t.Fatalf("tile %d is answered as another one: a mix-up would not show", i)
		}
		b.want = append(b.want, answer)
	}
}

// ask writes one of the files by which the backend is told what to do. It appears with
// its text: the backend may look at any time.
func (b *bench) ask(t *testing.T, file, text string) {
	t.Helper()
	path := filepath.Join(b.folder, file)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// awaitMet waits until the backend has met what it was asked for.
func (b *bench) awaitMet(t *testing.T, file string) {
	t.Helper()
	eventually(t, file+" is not met", func() bool {
		_, err := os.Stat(filepath.Join(b.folder, file))
		return os.IsNotExist(err)
	})
}

// triton connects to the stack's Triton, as somebody else would.
func (b *bench) triton(t *testing.T) *tritonclient.Client { return connect(t, b.TritonAddress()) }

func connect(t *testing.T, address string) *tritonclient.Client {
	t.Helper()
	client, err := tritonclient.New(address, tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// logged is the latest line of the log with a message, after a moment, that is of the
// bench's model or of none; nil if there is none.
func (b *bench) logged(message string, after time.Time) (latest map[string]any) {
	for _, line := range b.Log() {
		if line["msg"] == message && logTime(line).After(after) && (line["model"] == nil || line["model"] == b.model) {
			latest = line
		}
	}
	return latest
}

func logTime(line map[string]any) time.Time {
	text, _ := line["time"].(string)
	at, _ := time.Parse(time.RFC3339Nano, text) // the zero time if it is none
	return at
}

// took reads a time in milliseconds from a line of the log.
func took(line map[string]any, key string) time.Duration {
	ms, _ := line[key].(float64)
	return time.Duration(ms * float64(time.Millisecond))
}

func kill(t *testing.T, pid int, signal syscall.Signal) time.Time {
	t.Helper()
	began := time.Now()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	return began
}

// eventually waits for what must come about. It measures nothing, so it has patience.
func eventually(t *testing.T, otherwise string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%s after %s", otherwise, time.Since(began))
		}
	}
}

// measured is what a fault took, from its beginning: until /ping told the truth, and
// until service was back.
type measured struct {
	off, back           time.Duration // of the attempt that met the bars, or of the last
	attempts            int
	worstOff, worstBack time.Duration
}

// measure does what a bar of time is held against. Where the bar is missed it does so
// again, twice at most: others use this machine too. The report has the worst.
func measure(t *testing.T, once func() (off, back time.Duration, late string)) (m measured) {
	t.Helper()
	for {
		var late string
		m.off, m.back, late = once()
		m.attempts++
		m.worstOff, m.worstBack = max(m.worstOff, m.off), max(m.worstBack, m.back)
		switch {
		case late == "":
			return m
		case m.attempts == 3:
			t.Error(late)
			return m
		}
		t.Logf("once more: %s", late)
	}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
