// Package faults breaks the shared stage of a real stack, in every way that was
// met, and holds what callers see against what they are promised: who fails, how
// long until /ping tells the truth, how long until service is back unaided.
package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
	"histogate/tritonclient"
)

const (
	window   = 96               // two full batches of h1: what is inside Triton at most
	deadline = 25 * time.Second // of a request, by default
)

// bench is a stack that serves h1 on the backend with faults.
type bench struct {
	*stack.Stack
	folder string   // of the model
	bodies [][]byte // of requests for different tiles
	want   [][]byte // what each is answered while all is well
	client http.Client
	exit   int // code that the gateway shall end with
}

func newBench(t *testing.T, s *stack.Stack, repository string) *bench {
	t.Helper()
	b := &bench{Stack: s, folder: filepath.Join(repository, "h1")}
	b.client.Transport = &http.Transport{MaxIdleConnsPerHost: 1024} // callers keep their connections
	t.Cleanup(func() { b.end(t) })
	for i, path := range stack.TilePaths() {
		b.bodies = append(b.bodies, stack.Tile{
			ImageData: stack.ReadTile(path), SlideName: "slide-" + strconv.Itoa(i), Width: 224, Height: 224,
			PatchIdx: i, ModelName: "h1", Mode: "embedding",
		}.Body())
	}
	return b
}

// setup is how a bench's model and gateway differ from what is usual.
type setup struct {
	spec, config []string // texts of spec.yaml and config.pbtxt, each followed by what replaces it
	env          []string
}

// prepare makes a repository with h1 on the backend with faults, and the backends.
func prepare(t *testing.T, c setup) (repository, backends string) {
	t.Helper()
	repository, backends = t.TempDir(), t.TempDir()
	source, folder := filepath.Join(stack.Root(), "model_repository", "h1"), filepath.Join(repository, "h1")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, changes := range map[string][]string{
		"config.pbtxt": append([]string{`"histogate"`, `"faulty"`}, c.config...),
		"spec.yaml":    c.spec,
	} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(changes); i += 2 {
			if !strings.Contains(string(text), changes[i]) {
				t.Fatalf("%s does not hold %q", name, changes[i])
			}
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{
		filepath.Join(source, "1"): filepath.Join(folder, "1"),
		filepath.Join(stack.Root(), "build", "triton", "backends", "python"): filepath.Join(backends, "python"),
		filepath.Join(stack.Root(), "deploy/triton/backends/histogate"):      filepath.Join(backends, "histogate"),
		filepath.Join(stack.Root(), "tests/faults/testdata/faulty"):          filepath.Join(backends, "faulty"),
	} {
		if err := os.Symlink(from, to); err != nil {
			t.Fatal(err)
		}
	}
	return repository, backends
}

// start starts a bench and learns what its tiles are answered.
func start(t *testing.T, c setup) *bench {
	t.Helper()
	repository, backends := prepare(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Repository: repository, Backends: backends, Env: c.env})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, s, repository)
	b.learn(t)
	return b
}

func (b *bench) end(t *testing.T) {
	b.client.CloseIdleConnections()
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

// logged is the latest line of the log with a message, after a moment; nil if there
// is none.
func (b *bench) logged(message string, after time.Time) (latest map[string]any) {
	for _, line := range b.Log() {
		if line["msg"] == message && logTime(line).After(after) {
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

// stubs are the process ids of the model's backend processes: children of Triton
// whose command line names the model.
func (b *bench) stubs(t *testing.T) (pids []int) {
	t.Helper()
	triton := b.TritonPID()
	entries, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range entries {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if len(fields) > 1 && fields[1] == strconv.Itoa(triton) && strings.Contains(string(command), "/h1/") {
			pids = append(pids, pid)
		}
	}
	return pids
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

// measure does what a bar of time is held against. Where the bar is missed it does so
// again, twice at most: others use this machine too.
func measure(t *testing.T, once func() (late string)) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		late := once()
		switch {
		case late == "":
			return
		case attempt == 3:
			t.Error(late)
			return
		}
		t.Logf("once more: %s", late)
	}
}

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

// hold checks what is promised of every fault: no caller is left without an
// answer, none gets another's, and at most some fail, with a 503 in time.
func (l *load) hold(t *testing.T, most int, within time.Duration) {
	t.Helper()
	if l.lost > 0 || l.wrong > 0 {
		t.Errorf("%d callers without an answer, %d with a wrong one", l.lost, l.wrong)
	}
	if failed := l.failed(); failed > most {
		t.Errorf("%d requests failed, more than %d", failed, most)
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

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
