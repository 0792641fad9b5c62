package gateway

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Stage 1 must not starve the device that it works for: where processors are short, one
// that decodes the next tiles is one that the model's process waits for. So the gateway
// gives way to the Triton that it starts, by Linux' nice values: those of all threads of
// this process are raised but for one, which starts Triton, every time. What a thread
// starts has its nice value, and without a privilege nothing lowers it again.

// leastPriority is the greatest nice value there is.
const leastPriority = 19

// threadsSettle is longer than it takes to make a thread.
const threadsSettle = 10 * time.Millisecond

// giveWay raises the nice values of this process to that of the calling thread and so
// much more, but for the calling thread, which its goroutine must be locked to. No
// thread of the runtime inherits from that one: while a thread is locked, others are
// started from one that is kept for it.
func giveWay(by int) error {
	if by == 0 {
		return nil
	}
	own := syscall.Gettid()
	nice, err := niceOf(own)
	if err != nil {
		return err
	}
	nice = min(nice+by, leastPriority)
	// A thread that was being made when its maker had its old value still has that too, and
	// may be listed only later.
	for {
		changed, err := raiseOthers(own, nice)
		if err != nil || !changed {
			return err
		}
		time.Sleep(threadsSettle)
	}
}

// raiseOthers gives all threads of this process but one a nice value, where theirs is
// less, and tells whether there was any.
func raiseOthers(own, nice int) (changed bool, err error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false, err
	}
	for _, entry := range threads {
		thread, err := strconv.Atoi(entry.Name())
		if err != nil {
			return changed, err
		}
		if thread == own {
			continue
		}
		had, err := niceOf(thread)
		if err == nil && had < nice {
			changed = true
			err = syscall.Setpriority(syscall.PRIO_PROCESS, thread, nice)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
			return changed, fmt.Errorf("thread %d: %w", thread, err)
		}
	}
	return changed, nil
}

// niceOf is the nice value of a thread, from -20 to 19.
func niceOf(thread int) (int, error) {
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, thread)
	return 20 - priority, err // Linux returns 40 for -20, and 1 for 19
}
