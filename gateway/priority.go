package gateway

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

// Stage 1 must not starve the device that it works for: where processors are short, one
// that decodes the next tiles is one that does not hand over a batch which is ready. So
// the gateway gives way to the Triton that it starts, by Linux' nice values: a lower
// priority than Triton's for all threads of this process, but for one, which starts
// Triton. That one keeps the priority, for every later start too: a process is not
// allowed to raise it again, and what it starts inherits it.

// leastPriority is the nice value beyond which Linux has none.
const leastPriority = 19

// starter is the thread that keeps the priority of this process.
type starter struct {
	thread int
	nice   int // its nice value
	err    error
	work   chan func()
}

// theStarter is the starter, of which a process needs one, as long as it lasts.
var theStarter = sync.OnceValue(func() *starter {
	s := &starter{work: make(chan func())}
	ready := make(chan struct{})
	go func() {
		// No thread inherits from one that is locked: the runtime has another for that.
		runtime.LockOSThread()
		s.thread = syscall.Gettid()
		s.nice, s.err = niceOf(s.thread)
		close(ready)
		for work := range s.work {
			work()
		}
	}()
	<-ready
	return s
})

// start starts a command with the priority that this process had.
func (s *starter) start(cmd *exec.Cmd) (err error) {
	done := make(chan struct{})
	s.work <- func() {
		err = cmd.Start()
		close(done)
	}
	<-done
	return err
}

// giveWay lowers the priority of this process by so many nice values below what its
// starter keeps. Threads that are to come inherit it.
func (s *starter) giveWay(by int) error {
	if s.err != nil || by == 0 {
		return s.err
	}
	// One that was not lowered yet may have started another since the list was read.
	for lowered := true; lowered; {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		lowered = false
		for _, entry := range threads {
			thread, err := strconv.Atoi(entry.Name())
			if err != nil {
				return err
			}
			if thread == s.thread {
				continue
			}
			changed, err := lower(thread, min(s.nice+by, leastPriority))
			if err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
				return fmt.Errorf("nice value of thread %d: %w", thread, err)
			}
			lowered = lowered || changed
		}
	}
	return nil
}

// lower gives a thread a nice value, unless it has that or a greater one.
func lower(thread, nice int) (changed bool, err error) {
	had, err := niceOf(thread)
	if err != nil || had >= nice {
		return false, err
	}
	return true, syscall.Setpriority(syscall.PRIO_PROCESS, thread, nice)
}

// niceOf is the nice value of a thread, from -20 to 19.
func niceOf(thread int) (int, error) {
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, thread)
	return 20 - priority, err // as the kernel has it, from 40 to 1
}
