// Package faults breaks the shared stage of a real stack, in every way that was
// met, and holds what callers see against what they are promised: who fails, how
// long until /ping tells the truth, how long until service is back unaided.
package faults

import (
	"context"
	"fmt"
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
)

// load is callers that send sound tiles, one after another each, until stopped.
type load struct {
	s    *stack.Stack
	stop chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	statuses map[int]int
	codes    map[string]int
	lost     int           // no answer at all
	slowest  time.Duration // answer
	wrong    int           // a 200 whose values are not the model's
}

// startLoad keeps a number of requests for h1 in flight.
func startLoad(s *stack.Stack, callers int, want []float32) *load {
	l := &load{s: s, stop: make(chan struct{}), statuses: map[int]int{}, codes: map[string]int{}}
	for i := range callers {
		body := tile(i)
		l.done.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				l.send(body, want)
			}
		})
	}
	return l
}

func (l *load) send(body []byte, want []float32) {
	began := time.Now()
	a, err := l.s.Post("/invocations", body)
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	if err != nil {
		l.lost++
		return
	}
	l.statuses[a.Status]++
	if a.Status != http.StatusOK {
		l.codes[a.Code]++
	} else if !slices.Equal(a.Output, want) {
		l.wrong++
	}
}

// end stops the callers and says what they saw.
func (l *load) end() *load {
	close(l.stop)
	l.done.Wait()
	return l
}

func (l *load) String() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(l.statuses)) {
		parts = append(parts, fmt.Sprintf("%d x %d", l.statuses[status], status))
	}
	return fmt.Sprintf("%s %v, %d without an answer, %d wrong, slowest %s",
		strings.Join(parts, ", "), l.codes, l.lost, l.wrong, l.slowest.Round(time.Millisecond))
}

// tile is a sound request for h1; i chooses the slide and the patch, not the picture.
func tile(i int) []byte {
	return stack.Tile{
		ImageData: stack.ReadTile(stack.TilePaths()[0]), SlideName: "slide-" + strconv.Itoa(i%3), Width: 224, Height: 224,
		PatchIdx: i, ModelName: "h1", Mode: "embedding",
	}.Body()
}

// start starts a stack that serves h1 alone, and returns the answer to the tile
// while all is well.
func start(t *testing.T, o stack.Options) (*stack.Stack, []float32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o.Env = append(o.Env, "MODELS=h1")
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if code := s.Stop(); code != 0 {
			t.Errorf("the gateway ended with exit code %d", code)
		}
		if t.Failed() {
			t.Logf("what the stack wrote:\n%s", s.Output())
		}
	})
	a, err := s.Post("/invocations", tile(0))
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("before any fault: %v, %v", a, err)
	}
	return s, a.Output
}

// await waits for a status of /ping and returns how long that took.
func await(t *testing.T, s *stack.Stack, status int, limit time.Duration) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if a, err := s.Get("/ping"); err == nil && a.Status == status {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("/ping does not say %d within %s", status, limit)
		}
	}
}

// stubs are the process ids of a model's backend processes: children of Triton
// whose command line names the model.
func stubs(t *testing.T, s *stack.Stack, model string) (pids []int) {
	t.Helper()
	triton := s.TritonPID()
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
		if len(fields) > 1 && fields[1] == strconv.Itoa(triton) && strings.Contains(string(command), "/"+model+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
}
