package faults

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

var tritonserver = filepath.Join(stack.Root(), "build", "triton", "tritonserver")

// somebodyElses runs a Triton by hand until the test ends.
func somebodyElses(t *testing.T, repository, backends string, port int) (pid int) {
	t.Helper()
	cmd := exec.Command(tritonserver, "--id=stranger",
		"--model-repository="+repository, "--backend-directory="+backends,
		"--model-control-mode=explicit", "--disable-auto-complete-config",
		"--backend-config=python,shm-region-prefix-name=stranger-"+strconv.Itoa(port),
		"--grpc-address=127.0.0.1", "--grpc-port="+strconv.Itoa(port),
		"--allow-http=false", "--allow-metrics=false", "--exit-timeout-secs=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		removeSharedMemory(port)
		if t.Failed() {
			t.Logf("what the Triton of somebody else wrote, until it ended as %s:\n%s", cmd.ProcessState, &output)
		}
	})
	return cmd.Process.Pid
}

// removeSharedMemory removes what a stranger that was killed has left in memory.
func removeSharedMemory(port int) {
	left, _ := filepath.Glob("/dev/shm/stranger-" + strconv.Itoa(port) + "*") // a sound pattern
	for _, path := range left {
		_ = os.Remove(path) // it may be gone already
	}
}

// freePort is a port that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A stranger that takes Triton's port between the choice of the port and the start is
// not taken for ours, though it is a Triton too and has the model.
func portTaken(t *testing.T, r *report) {
	o, modelFolder := prepare(t, usual())
	folder := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
# At the first start a stranger is quicker to take the port.
if [ ! -e %[1]s/pid ]; then
  for a in "$@"; do case $a in --grpc-port=*) port=${a#*=};; esac; done
  setsid %[2]s --id=stranger --model-repository=%[3]s --backend-directory=%[4]s --model-control-mode=explicit \
    --disable-auto-complete-config --load-model=h1 --backend-config=python,shm-region-prefix-name=stranger-$port \
    --grpc-address=127.0.0.1 --grpc-port=$port --allow-http=false --allow-metrics=false >/dev/null 2>&1 </dev/null &
  echo $! >%[1]s/pid
  echo $port >%[1]s/port
  until grep -qi ":$(printf %%04X $port) 00000000:0000 0A" /proc/net/tcp; do sleep 0.05; done
fi
exec %[2]s "$@"
`, folder, tritonserver, o.Repository, o.Backends)
	server := filepath.Join(folder, "tritonserver")
	if err := os.WriteFile(server, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	o.Env = append(o.Env, "TRITON_SERVER="+server)
	s, err := stack.Launch(o)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, s, modelFolder)
	t.Cleanup(func() {
		if pid, err := number(filepath.Join(folder, "pid")); err == nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL) // setsid: a group of its own
			port, _ := number(filepath.Join(folder, "port"))
			eventually(t, "the stranger lives", func() bool { return syscall.Kill(-pid, 0) != nil })
			removeSharedMemory(port)
		}
	})
	eventually(t, "the gateway does not serve", func() bool {
		a, err := b.Get("/ping")
		return err == nil && a.Status == http.StatusOK
	})
	back := time.Since(began)
	b.learn(t)
	l := startLoad(b, 16)
	time.Sleep(300 * time.Millisecond)
	l.end()
	r.add("Triton's port taken", l, "not on yet", round(back).String())
	l.hold(t, 0)

	port, err := number(filepath.Join(folder, "port"))
	if err != nil {
		t.Fatal(err)
	}
	stranger := connect(t, "127.0.0.1:"+strconv.Itoa(port))
	if b.logged(restarted, began) == nil || strings.HasSuffix(b.TritonAddress(), ":"+strconv.Itoa(port)) {
		t.Errorf("ours runs at %s, the stranger at port %d", b.TritonAddress(), port)
	}
	stats, err := stranger.ModelStatistics(t.Context(), "h1")
	if err != nil || stats.InferenceCount != 0 {
		t.Errorf("the stranger was sent something: %v, %v", stats, err)
	}
}

// number reads a file that holds a number.
func number(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// A Triton that something else runs may come up after the gateway, or go and come
// back: what waits for it is served.
func tritonLater(t *testing.T, r *report) {
	o, folder := prepare(t, usual())
	port := freePort(t)
	o.Env = append(o.Env, "TRITON_SERVER=", "TRITON_ADDRESS=127.0.0.1:"+strconv.Itoa(port))
	s, err := stack.Launch(o)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, s, folder)

	pid := b.parkedUntil(t, func() int { return somebodyElses(t, o.Repository, o.Backends, port) })
	b.learn(t)
	// Triton itself tells of it after a second: we do not see its processes. (One that is
	// killed with a lock in its hands takes Triton with it, now and then.)
	processFault{"abort, Triton of somebody else", met("abort"), window, truthLimit, reloading}.meet(t, b, r)
	// What hangs is not ours to kill: it keeps its process, but nobody's place.
	processFault{"hang, Triton of somebody else", met("hang"), window, executeLimit + truthLimit, reloading}.meet(t, b, r)
	var l *load
	m := measure(t, func() (off, back time.Duration, late string) {
		p := watchPing(t, b.Stack, "/ping", 10*time.Millisecond)
		l = startLoad(b, callers)
		time.Sleep(300 * time.Millisecond)
		began := kill(t, pid, syscall.SIGSTOP)
		eventually(t, "/ping does not tell that Triton is frozen", func() bool { return !p.off(began).IsZero() })
		thawed := kill(t, pid, syscall.SIGCONT)
		eventually(t, "the gateway does not serve again", func() bool { return p.on().After(thawed) })
		on := p.on()
		time.Sleep(300 * time.Millisecond)
		l.end()
		p.end()
		l.hold(t, window)
		off, back = p.off(began).Sub(began), on.Sub(began)
		if off > executeLimit+truthLimit {
			late = fmt.Sprintf("/ping told the truth after %s", off)
		}
		return off, back, late
	})
	r.addMeasured("Triton of somebody else SIGSTOP, SIGCONT when /ping says no", l, m)

	m = measure(t, func() (off, back time.Duration, late string) {
		p := watchPing(t, b.Stack, "/ping", 10*time.Millisecond)
		l = startLoad(b, callers)
		time.Sleep(300 * time.Millisecond)
		began := kill(t, pid, syscall.SIGKILL)
		eventually(t, "/ping does not tell that Triton is gone", func() bool { return !p.off(began).IsZero() })
		time.Sleep(time.Second)
		pid = somebodyElses(t, o.Repository, o.Backends, port)
		eventually(t, "it does not come up", func() bool {
			conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if err == nil {
				conn.Close()
			}
			return err == nil
		})
		live := time.Now()
		eventually(t, "the gateway does not serve again", func() bool { return p.on().After(live) })
		on := p.on()
		time.Sleep(300 * time.Millisecond)
		l.end()
		p.end()
		l.hold(t, window)
		off, back = p.off(began).Sub(began), on.Sub(began)
		switch limit := healLimit + took(b.logged("model is ready", live), "all_ms"); {
		case off > truthLimit:
			late = fmt.Sprintf("/ping told the truth after %s", off)
		case on.Sub(live) > limit:
			late = fmt.Sprintf("back in service %s after Triton was live, later than %s", on.Sub(live), limit)
		}
		return off, back, late
	})
	r.addMeasured("Triton of somebody else SIGKILL, started 1 s later", l, m)
}

// parkedUntil sends requests before there is a Triton, and has one start after a while.
// They are served; what starts Triton returns its process id.
func (b *bench) parkedUntil(t *testing.T, start func() int) (pid int) {
	t.Helper()
	const parked = 64
	var mu sync.Mutex
	statuses := map[int]int{}
	var done sync.WaitGroup
	for i := range parked {
		done.Go(func() {
			status, _, err := b.post(t.Context(), b.bodies[i%len(b.bodies)])
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	eventually(t, "they do not wait", func() bool {
		n, err := b.Metric(`histogate_requests_parked{model="h1"}`)
		return err == nil && n == parked
	})
	if a, err := b.Get("/ping"); err != nil || a.Status != http.StatusServiceUnavailable {
		t.Errorf("/ping without a Triton: %v, %v", a, err)
	}
	pid = start()
	done.Wait()
	if statuses[http.StatusOK] != parked {
		t.Errorf("%d requests waited for Triton and got %v", parked, statuses)
	}
	return pid
}

// A Triton that ends more often than is allowed ends the gateway, which says why: then
// the platform replaces the container.
func tritonEndsAgainAndAgain(t *testing.T, r *report) {
	const limit = 2
	o, folder := prepare(t, usual())
	o.Env = append(o.Env, "TRITON_RESTART_LIMIT="+strconv.Itoa(limit))
	s, err := stack.Launch(o)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, s, folder)
	b.exit = 1
	for n := range limit + 1 {
		eventually(t, "the gateway does not serve", func() bool {
			a, err := s.Get("/ping")
			return err == nil && a.Status == http.StatusOK
		})
		if n == 0 {
			b.learn(t)
		}
		if n < limit {
			kill(t, s.TritonPID(), syscall.SIGKILL)
			eventually(t, "it is not started again", func() bool {
				starts, err := s.Metric("histogate_triton_starts_total")
				return err == nil && starts == float64(n+2)
			})
		}
	}
	l := startLoad(b, 16)
	time.Sleep(300 * time.Millisecond)
	close(l.stop)
	began := time.Now()
	kill(t, s.TritonPID(), syscall.SIGKILL)
	select {
	case <-s.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	l.done.Wait()
	r.add("Triton ends again and again", l, "", "ended after "+round(time.Since(began)).String())
	l.hold(t, window)
	if !strings.Contains(s.Output(), "TRITON_RESTART_LIMIT=2") {
		t.Error("it does not say why")
	}
}
