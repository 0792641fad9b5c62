package e2e

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"histogate/tests/process"
	"histogate/tests/stack"
)

// gone waits until there is no process with the id.
func gone(t *testing.T, pid int) {
	t.Helper()
	for range 100 {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("process %d is still there", pid)
}

// A hangup is no reason to end, where there is nothing to read again. On SIGTERM Triton
// stops and the exit is clean. (tests/drain has what becomes of requests.)
func TestSIGHUPAndSIGTERM(t *testing.T) {
	s := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	if err := s.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if a := post(t, s, "/invocations", tileRequest("h1", 0, 0).Body()); a.Status != http.StatusOK {
		t.Errorf("after a hangup: %d %s", a.Status, a.Raw)
	}
	terminate(t, s)
	gone(t, s.TritonPID())
}

// terminate has a stack end, in its time and well.
func terminate(t *testing.T, s *stack.Stack) {
	t.Helper()
	began := time.Now()
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.Exited()
	if took := time.Since(began); took > 30*time.Second || s.ExitCode() != 0 {
		t.Errorf("exit code %d after %s", s.ExitCode(), took)
	}
}

// stopGuard freezes the guard of a Triton.
func stopGuard(t *testing.T, triton int) (guard int) {
	t.Helper()
	guard, err := process.Parent(triton)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return guard
}

// A guard that hangs is not waited for: the exit is in time, and nothing is left.
func TestSIGTERMWithAGuardThatHangs(t *testing.T) {
	s := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	triton := s.TritonPID()
	guard := stopGuard(t, triton)
	terminate(t, s)
	gone(t, guard)
	gone(t, triton)
}

// A Triton that hangs is killed, and another one started though nobody tells that the
// first has ended: one that a driver holds in the kernel does not end.
func TestTritonWhoseEndIsNotTold(t *testing.T) {
	s := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	triton := s.TritonPID()
	guard := stopGuard(t, triton)
	if err := syscall.Kill(triton, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); s.TritonPID() == triton; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no other Triton is started")
		}
	}
	await(t, s, "/ping", func(a *stack.Answer) bool { return a.Status == http.StatusOK })
	if a := post(t, s, "/invocations", tileRequest("h1", 0, 0).Body()); a.Status != http.StatusOK {
		t.Errorf("by the second one: %d %s", a.Status, a.Raw)
	}
	terminate(t, s)
	gone(t, guard)
	gone(t, triton)
}

// A gateway that is killed leaves no Triton behind.
func TestKilledGatewayLeavesNothing(t *testing.T) {
	s, err := stack.Launch(stack.Options{Race: raceEnabled})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if s.TritonPID() != 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(500 * time.Millisecond) // backends are started by now
	if err := s.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, s.TritonPID())
	<-s.Exited() // its pipes are closed only when its whole family has ended
}

// The shared memory of a gateway that was killed is freed by the next one; that of one
// that ends is gone with it.
func TestSharedMemoryOfAKilledGateway(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := stack.Options{Race: raceEnabled, Env: []string{"MODELS=h1,tissue-seg", "TENSOR_TRANSPORT=auto"}}
	killed, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	left := killed.Segments()
	if err := killed.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-killed.Exited()
	next := start(t, o)
	kept := next.Segments()
	if len(left) != 2 || len(kept) != 2 {
		t.Errorf("segments %v, then %v, want two each", left, kept)
	}
	if a := post(t, next, "/invocations", tileRequest("h1", 0, 0).Body()); a.Status != http.StatusOK {
		t.Errorf("status %d: %s", a.Status, a.Raw)
	}
	next.Stop()
	for _, path := range append(left, kept...) {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What Triton and its backends share in memory is freed by the next start, though the
// gateway, the guard and Triton were killed at once and the backends end a little later.
// That of a stack that runs stays, as it answers.
func TestRegionsOfAllThatIsKilled(t *testing.T) {
	live := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	killed, err := stack.Start(ctx, stack.Options{Race: raceEnabled, Env: []string{"MODELS=h1"}})
	if err != nil {
		t.Fatal(err)
	}
	used, left := live.Regions(), killed.Regions()
	triton := killed.TritonPID()
	if err := syscall.Kill(triton, syscall.SIGSTOP); err != nil { // else it ends well when its guard does
		t.Fatal(err)
	}
	for _, pid := range []int{killed.PID(), stopGuard(t, triton), triton} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if len(left) < 2 || len(used) != len(left) { // a lock, and at least one region
		t.Errorf("%q is shared, and %q", left, used)
	}
	for _, path := range left {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("before the next start: %v", err)
		}
	}
	next := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	for _, path := range left {
		_, err := os.Stat(path)
		for end := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			_, err = os.Stat(path)
		}
		if !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	<-killed.Exited()
	for _, path := range used {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("of the stack that runs: %v", err)
		}
	}
	for _, s := range []*stack.Stack{live, next} {
		if a := post(t, s, "/invocations", tileRequest("h1", 0, 0).Body()); a.Status != http.StatusOK {
			t.Errorf("status %d: %s", a.Status, a.Raw)
		}
	}
	live.Stop()
	for _, path := range used {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("after an end: %s: %v", path, err)
		}
	}
}

// The gateway gives way to its Triton, also to one that it had to start again: that one, its
// guard and the models' processes keep the priority that the gateway was started with.
func TestGivesWayToTriton(t *testing.T) {
	s := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	own, err := process.Nices(os.Getpid())
	if err != nil || len(own) != 1 {
		t.Fatalf("threads of the test by nice value: %v, %v", own, err)
	}
	nice := slices.Collect(maps.Keys(own))[0]
	const least = 19
	if nice == least {
		t.Skip("the test's own nice value is the greatest there is")
	}
	check := func() {
		t.Helper()
		backends := s.BackendPIDs("h1")
		if len(backends) == 0 {
			t.Error("the model has no process")
		}
		guard, err := process.Parent(s.TritonPID())
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range append(backends, s.TritonPID(), guard) {
			if n, err := process.Nices(pid); err != nil || len(n) != 1 || n[nice] == 0 {
				t.Errorf("threads by nice value of process %d, which is Triton or its own: %v, %v; want all at %d", pid, n, err, nice)
			}
		}
		n, err := process.Nices(s.PID())
		if lower := min(nice+10, least); err != nil || len(n) != 2 || n[nice] != 1 || n[lower] == 0 {
			t.Errorf("the gateway's threads by nice value: %v, %v; want one at %d and all others at %d", n, err, nice, lower)
		}
	}
	check()
	first := s.TritonPID()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, first)
	if a := post(t, s, "/invocations", tileRequest("h1", 0, 0).Body()); a.Status != http.StatusOK || s.TritonPID() == first {
		t.Fatalf("status %d of Triton %d: %s", a.Status, s.TritonPID(), a.Raw)
	}
	check()
}

// Several stacks run side by side, and a port that is taken is said to be.
func TestStacksSideBySide(t *testing.T) {
	first := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	second := start(t, stack.Options{Env: []string{"MODELS=h1"}})
	request := tileRequest("h1", 0, 0)
	a, b := post(t, first, "/invocations", request.Body()), post(t, second, "/invocations", request.Body())
	if a.Status != http.StatusOK || !sameBits(a.Output, b.Output) {
		t.Errorf("two stacks answer differently: %d, %d", a.Status, b.Status)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(first.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	third, err := stack.Launch(stack.Options{Env: []string{"PORT=" + port}})
	if err == nil {
		third.Stop()
		t.Fatal("a gateway took a port that was taken")
	}
	if !strings.Contains(err.Error(), "PORT="+port) || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("not said which port is taken: %v", err)
	}
}

// A spec that contradicts the config.pbtxt keeps the gateway from starting.
func TestRefusesToStartOnAContradiction(t *testing.T) {
	o, folder := faultyModel(t)
	path := filepath.Join(folder, "spec.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "[1536]", "[768]", 1)
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := stack.Launch(o)
	if err == nil {
		s.Stop()
		t.Fatal("the gateway serves a model whose spec contradicts its configuration")
	}
	for _, name := range []string{"config.pbtxt", "shape of output embedding", "[768]", "[1536]"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not named: %v", name, err)
		}
	}
}

// A tritonserver that cannot run is said to be the reason, at once.
func TestRefusesToServeWithoutTriton(t *testing.T) {
	silent := filepath.Join(t.TempDir(), "tritonserver")
	if err := os.WriteFile(silent, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, server := range map[string]string{
		"that is not there":    "/nonexistent/tritonserver",
		"that exits":           "/bin/false",
		"that never goes live": silent,
	} {
		s, err := stack.Launch(stack.Options{Env: []string{"TRITON_SERVER=" + server, "TRITON_START_TIMEOUT=1s"}})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Exited():
		case <-time.After(20 * time.Second):
			t.Errorf("with a tritonserver %s it does not end", name)
			s.Stop()
		}
		if s.ExitCode() != 1 || !strings.Contains(s.Output(), "tritonserver did not start") {
			t.Errorf("with a tritonserver %s: exit code %d:\n%.500s", name, s.ExitCode(), s.Output())
		}
	}
}

// /ping follows PING_MODE, and tells of one model when it is asked, where Triton can
// load one model and not the other.
func TestPingMode(t *testing.T) {
	repository := t.TempDir()
	copyModel(t, repository, "h1", "good")
	copyModel(t, repository, "h1", "bad", "task:", "aliases: [worse]\ntask:")
	if err := os.Remove(filepath.Join(repository, "bad", "1")); err != nil { // the link to its checkpoint
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(repository, "bad", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mode   string
		status int
	}{{"any", http.StatusOK}, {"good", http.StatusOK}, {"worse, good", http.StatusServiceUnavailable}} {
		t.Run(test.mode, func(t *testing.T) {
			s, err := stack.Launch(stack.Options{Race: raceEnabled, Repository: repository, Env: []string{"PING_MODE=" + test.mode}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Stop()
			await(t, s, "/ping?model=good", func(a *stack.Answer) bool { return a.Status == http.StatusOK })
			await(t, s, "/ping?model=worse", func(a *stack.Answer) bool {
				return a.Status == http.StatusServiceUnavailable && a.Detail == "not ready: bad: the inference server cannot load it"
			})
			a, err := s.Get("/ping")
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != test.status || a.Status != http.StatusOK && a.Detail != "not ready: bad: the inference server cannot load it" {
				t.Errorf("%d %s", a.Status, a.Raw)
			}
			if a := post(t, s, "/invocations", tileRequest("good", 0, 0).Body()); a.Status != http.StatusOK {
				t.Errorf("the good model: %d %s", a.Status, a.Detail)
			}
			if a := post(t, s, "/invocations", tileRequest("bad", 0, 0).Body()); a.Status != http.StatusServiceUnavailable ||
				!strings.HasPrefix(a.Detail, "bad cannot be used until its operator mends it: the inference server cannot load it") || a.Header.Get("Retry-After") != "" {
				t.Errorf("the bad model: %d %s, to be tried again after %q s", a.Status, a.Detail, a.Header.Get("Retry-After"))
			}
		})
	}
}

// await waits for an answer of a path.
func await(t *testing.T, s *stack.Stack, path string, is func(*stack.Answer) bool) {
	t.Helper()
	var last *stack.Answer
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var err error
		if last, err = s.Get(path); err != nil {
			t.Fatal(err)
		}
		if is(last) {
			return
		}
	}
	t.Fatalf("%s never answers so: %d %s", path, last.Status, last.Raw)
}
