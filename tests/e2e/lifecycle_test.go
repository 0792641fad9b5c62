package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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

// On SIGTERM what is in flight is answered, Triton stops and the exit is clean.
func TestSIGTERMAnswersWhatIsInFlight(t *testing.T) {
	repository, backends := faultyModel(t) // its queue delay keeps requests in flight
	s := start(t, stack.Options{Repository: repository, Backends: backends})
	const requests = 16
	answers := make(chan *stack.Answer, requests)
	for i := range requests {
		go func() {
			a, err := s.Post("/invocations", tileRequest("faulty", i, i).Body())
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for inFlight, began := 0.0, time.Now(); inFlight < requests && time.Since(began) < 250*time.Millisecond; {
		var err error
		if inFlight, err = s.Metric("histogate_requests_in_flight"); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range requests {
		if a := <-answers; a == nil || a.Status != http.StatusOK {
			t.Errorf("a request that was in flight: %+v", a)
		}
	}
	<-s.Exited()
	if took := time.Since(began); took > 30*time.Second || s.ExitCode() != 0 {
		t.Errorf("exit code %d after %s", s.ExitCode(), took)
	} else {
		t.Logf("%d in flight answered, exit 0 after %s", requests, took.Round(time.Millisecond))
	}
	gone(t, s.TritonPID())
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
	repository, backends := faultyModel(t)
	path := filepath.Join(repository, "faulty", "spec.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "[1536]", "[768]", 1)
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := stack.Launch(stack.Options{Repository: repository, Backends: backends})
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
