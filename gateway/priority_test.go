package gateway

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"histogate/tests/process"
)

// A process that gives way does so with every thread but the calling one, those included
// that come meanwhile. What that one starts does not give way.
func TestGiveWay(t *testing.T) {
	const by, within = 5, "HISTOGATE_TEST_GIVE_WAY"
	nice, err := niceOf(syscall.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	if nice > leastPriority-by-1 {
		t.Skipf("the test's own nice value, %d, leaves too little above", nice)
	}
	if os.Getenv(within) == "" { // in a process of its own: other tests keep their priority
		cmd := exec.Command(os.Args[0], "-test.run=^TestGiveWay$", "-test.v")
		cmd.Env = append(os.Environ(), within+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestGiveWay") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	nices := func(pid int) map[int]int {
		t.Helper()
		nices, err := process.Nices(pid)
		if err != nil {
			t.Fatal(err)
		}
		return nices
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if n := nices(os.Getpid()); len(n) != 1 || n[nice] == 0 {
		t.Fatalf("threads by nice value: %v, want all at %d", n, nice)
	}
	const many = 300
	var held, there sync.WaitGroup
	end := make(chan struct{})
	there.Add(many)
	for range many {
		held.Go(func() {
			runtime.LockOSThread() // to a thread of its own, which comes to an end with it
			there.Done()
			<-end
		})
	}
	if err := giveWay(by); err != nil {
		t.Fatal(err)
	}
	there.Wait()
	if n := nices(os.Getpid()); len(n) != 2 || n[nice] != 1 || n[nice+by] < many {
		t.Errorf("threads by nice value: %v, want one at %d and all others, %d at the least, at %d", n, nice, many, nice+by)
	}
	for _, less := range []int{by, by - 1, 0} { // there is no way back
		if err := giveWay(less); err != nil {
			t.Error(err)
		}
	}
	if n := nices(os.Getpid()); len(n) != 2 || n[nice] != 1 || n[nice+by] < many {
		t.Errorf("threads by nice value: %v, want them as they were", n)
	}
	close(end)
	held.Wait()

	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	if n := nices(cmd.Process.Pid); len(n) != 1 || n[nice] != 1 {
		t.Errorf("what was started has %v, want %d", n, nice)
	}
	if err := giveWay(leastPriority + 1); err != nil {
		t.Error(err)
	}
	if n := nices(os.Getpid()); len(n) != 2 || n[nice] != 1 || n[leastPriority] == 0 {
		t.Errorf("threads by nice value: %v, want one at %d and all others at %d", n, nice, leastPriority)
	}
}
