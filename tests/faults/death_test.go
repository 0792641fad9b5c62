package faults

import (
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

const (
	callers = 64
	window  = 96 // two full batches of h1
)

// A backend process that is killed under load costs at most what was inside
// Triton; the model is back by itself.
func TestBackendProcessKilled(t *testing.T) {
	s, want := start(t, stack.Options{})
	l := startLoad(s, callers, want)
	time.Sleep(time.Second)
	pids := stubs(t, s, "h1")
	if len(pids) != 1 {
		t.Fatalf("the model has backend processes %v", pids)
	}
	kill(t, pids[0], syscall.SIGKILL)
	holdThroughDeath(t, s, l, 10*time.Second)
}

// A Triton that is killed under load costs what was inside it, and is started
// again; requests wait meanwhile. The new one is given the same shared memory.
func TestTritonKilled(t *testing.T) {
	s, want := start(t, stack.Options{Env: []string{"TENSOR_TRANSPORT=auto"}})
	l := startLoad(s, callers, want)
	time.Sleep(time.Second)
	before := s.Segments()
	kill(t, s.TritonPID(), syscall.SIGKILL)
	holdThroughDeath(t, s, l, 20*time.Second)
	if after := s.Segments(); len(before) != 1 || !slices.Equal(before, after) {
		t.Errorf("the new Triton has mapped %v, the one before it %v", after, before)
	}
}

// holdThroughDeath checks what is promised when a process has just died: /ping tells
// the truth soon, and service is back unaided within the limit.
func holdThroughDeath(t *testing.T, s *stack.Stack, l *load, limit time.Duration) {
	t.Helper()
	off := await(t, s, http.StatusServiceUnavailable, 5*time.Second)
	on := await(t, s, http.StatusOK, limit)
	time.Sleep(time.Second)
	t.Logf("/ping off after %s, on again %s later; callers: %s", off.Round(time.Millisecond), on.Round(time.Millisecond), l.end())
	hold(t, l)
	if off > 2*time.Second {
		t.Errorf("/ping told the truth after %s", off)
	}
}

// hold checks what is promised of every fault: no caller is left without an
// answer, none gets another's, and at most some fail, with a 503.
func hold(t *testing.T, l *load) {
	t.Helper()
	if l.lost > 0 || l.wrong > 0 {
		t.Errorf("%d callers without an answer, %d with a wrong one", l.lost, l.wrong)
	}
	failed := l.statuses[http.StatusServiceUnavailable]
	if failed > window {
		t.Errorf("%d requests failed, more than the %d that can be inside Triton", failed, window)
	}
	for status, n := range l.statuses {
		if status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Errorf("%d answers of status %d", n, status)
		}
	}
	if l.statuses[http.StatusOK] == 0 {
		t.Error("nobody was served")
	}
}
