package faults

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

const executeLimit = 2 * time.Second

// startFaulty starts a stack with h1 on the backend with faults. ask has the next
// batch meet one.
func startFaulty(t *testing.T) (s *stack.Stack, want []float32, ask func(fault string)) {
	t.Helper()
	repository, backends := t.TempDir(), t.TempDir()
	source, folder := filepath.Join(stack.Root(), "model_repository", "h1"), filepath.Join(repository, "h1")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]*strings.Replacer{
		"config.pbtxt": strings.NewReplacer(`"histogate"`, `"faulty"`),
		"spec.yaml":    strings.NewReplacer("max_queue_delay_ms: 2", "max_queue_delay_ms: 2\n  execute_limit_ms: 2000"),
	} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		changed := change.Replace(string(text))
		if changed == string(text) {
			t.Fatalf("nothing to change in %s", name)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(changed), 0o644); err != nil {
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
	s, want = start(t, stack.Options{Repository: repository, Backends: backends})
	return s, want, func(fault string) {
		if err := os.WriteFile(filepath.Join(folder, "fault"), []byte(fault), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// What one batch meets is the failure of that batch: its requests get a 503, the
// next batch is served, and a batch alone does not turn readiness off for long.
func TestFaultsOfABatch(t *testing.T) {
	s, want, ask := startFaulty(t)
	for _, fault := range []string{"raise", "nan", "shape", "rows", "dtype", "fewer"} {
		t.Run(fault, func(t *testing.T) {
			ask(fault)
			a, err := s.Post("/invocations", tile(0))
			if err != nil || a.Status != http.StatusServiceUnavailable || a.Code != "forward_failed" {
				t.Fatalf("the batch: %v, %+v", err, a)
			}
			if strings.Contains(string(a.Raw), "CUDA") || strings.Contains(string(a.Raw), ".py") {
				t.Errorf("the answer tells what is inside: %s", a.Raw)
			}
			l := startLoad(s, 8, want)
			time.Sleep(500 * time.Millisecond)
			if l.end(); l.lost+l.wrong+l.statuses[http.StatusServiceUnavailable] > 0 || l.statuses[http.StatusOK] == 0 {
				t.Errorf("after it: %s", l)
			}
		})
	}
}

// Faults of a process cost what is inside Triton, and heal unaided.
func TestFaultsOfAProcess(t *testing.T) {
	for fault, limit := range map[string]time.Duration{
		"abort":  2 * time.Second,
		"sticky": 2 * time.Second,
		"hang":   executeLimit + 2*time.Second,
	} {
		t.Run(fault, func(t *testing.T) {
			s, want, ask := startFaulty(t)
			l := startLoad(s, callers, want)
			time.Sleep(500 * time.Millisecond)
			ask(fault)
			off := await(t, s, http.StatusServiceUnavailable, 10*time.Second)
			on := await(t, s, http.StatusOK, 20*time.Second)
			time.Sleep(500 * time.Millisecond)
			t.Logf("/ping off after %s, on again %s later; callers: %s", off.Round(time.Millisecond), on.Round(time.Millisecond), l.end())
			hold(t, l)
			if off > limit {
				t.Errorf("/ping told the truth after %s, later than %s", off, limit)
			}
		})
	}
}

// A model can forget a batch and go on: then only that batch's callers wait in
// vain, and not for long.
func TestModelForgetsABatch(t *testing.T) {
	s, want, ask := startFaulty(t)
	ask("none")
	l := startLoad(s, callers, want)
	time.Sleep(3*executeLimit + time.Second)
	t.Logf("callers: %s", l.end())
	hold(t, l)
	if n := l.codes["backend_timeout"]; n == 0 || n > 48 || n != l.statuses[http.StatusServiceUnavailable] {
		t.Errorf("%d of one batch were told that it is late", n)
	}
	if l.slowest > 3*executeLimit+2*time.Second {
		t.Errorf("a caller waited for %s", l.slowest)
	}
	if a, err := s.Get("/ping"); err != nil || a.Status != http.StatusOK {
		t.Errorf("/ping: %v, %+v", err, a)
	}
}

// A Triton that is stopped, as a machine that thrashes would, is found out and
// replaced.
func TestTritonHangs(t *testing.T) {
	s, want := start(t, stack.Options{})
	l := startLoad(s, callers, want)
	time.Sleep(500 * time.Millisecond)
	kill(t, s.TritonPID(), syscall.SIGSTOP)
	off := await(t, s, http.StatusServiceUnavailable, 10*time.Second)
	on := await(t, s, http.StatusOK, 20*time.Second)
	time.Sleep(500 * time.Millisecond)
	t.Logf("/ping off after %s, on again %s later; callers: %s", off.Round(time.Millisecond), on.Round(time.Millisecond), l.end())
	hold(t, l)
}

// A Triton that something else runs may come up after the gateway, and what
// waited for it is served.
func TestTritonComesLater(t *testing.T) {
	s, want := start(t, stack.Options{})
	late, err := stack.Launch(stack.Options{Env: []string{"MODELS=h1", "TRITON_SERVER=", "TRITON_ADDRESS=127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	<-ctx.Done()
	if a, err := late.Get("/ping"); err != nil || a.Status != http.StatusServiceUnavailable {
		t.Errorf("/ping without a Triton: %v, %+v", err, a)
	}
	if code := late.Stop(); code != 0 {
		t.Errorf("a gateway without a Triton ended with exit code %d", code)
	}
	beside, err := stack.Start(t.Context(), stack.Options{Env: []string{"MODELS=h1", "TRITON_SERVER=", "TRITON_ADDRESS=" + s.TritonAddress()}})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := beside.Post("/invocations", tile(1)); err != nil || len(a.Output) != len(want) {
		t.Errorf("beside a Triton that something else runs: %v, %+v", err, a)
	}
	if code := beside.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
