package gateway

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"histogate/tests/process"
)

// A process that gives way does so with every thread but the one that starts others, also
// with those that it starts meanwhile. What it starts does not give way.
func TestGiveWay(t *testing.T) {
	const inner = "HISTOGATE_TEST_GIVE_WAY"
	if os.Getenv(inner) == "" { // other tests keep their priority
		cmd := exec.Command(os.Args[0], "-test.run=^TestGiveWay$", "-test.v")
		cmd.Env = append(os.Environ(), inner+"=yes")
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
	had := theStarter().nice
	if n := nices(os.Getpid()); len(n) != 1 || n[had] == 0 {
		t.Fatalf("threads by nice value: %v, want all at %d", n, had)
	}
	if had > leastPriority-7 {
		t.Skipf("a nice value of %d leaves nothing below", had)
	}
	// Threads that start threads: as many as there are goroutines that do not give theirs up.
	var held sync.WaitGroup
	end := make(chan struct{})
	for range 4 {
		held.Go(func() {
			for range 25 {
				held.Go(func() {
					runtime.LockOSThread()
					<-end
				})
			}
		})
	}
	for _, by := range []int{5, 5, 3, 0} { // none but the first changes anything
		if err := theStarter().giveWay(by); err != nil {
			t.Fatal(err)
		}
	}
	if n := nices(os.Getpid()); len(n) != 2 || n[had] != 1 || n[had+5] < 4 {
		t.Errorf("threads by nice value: %v, want one at %d and all others at %d", n, had, had+5)
	}
	close(end)
	held.Wait()
	cmd := exec.Command("sleep", "60")
	if err := theStarter().start(cmd); err != nil {
		t.Fatal(err)
	}
	if n := nices(cmd.Process.Pid); n[had] != 1 {
		t.Errorf("what was started has %v, want %d", n, had)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := theStarter().start(exec.Command("/nowhere")); err == nil {
		t.Error("started what is not there")
	}
	if err := theStarter().giveWay(100); err != nil {
		t.Error(err)
	}
	if n := nices(os.Getpid()); len(n) != 2 || n[had] != 1 || n[leastPriority] == 0 {
		t.Errorf("threads by nice value: %v, want one at %d and all others at %d", n, had, leastPriority)
	}
}
