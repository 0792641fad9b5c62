// Package process tells what processes use, processor time and memory, who has started them and
// with what priority.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time, user and system, that a running process has used so far,
// to the nanosecond.
func CPU(pid int) (time.Duration, error) {
	var t unix.Timespec
	// A process's CPU clock: its id complemented, three bits for the kind of clock.
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// ThreadCPU is the processor time that the calling thread has used, to the nanosecond.
// A goroutine stays on one thread between runtime.LockOSThread and UnlockOSThread.
func ThreadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // Linux has this clock
	}
	return time.Duration(t.Nano())
}

// RSS is the memory of a process, in bytes, that is resident: its own and, of what it
// has mapped, files and shared memory included, what it has touched. Of several processes
// it counts what they share several times.
func RSS(pid int) (int, error) { return memory(pid, "status", "VmRSS:") }

// Anonymous is the part of [RSS] that is no file's and is not shared: what the process has
// made itself.
func Anonymous(pid int) (int, error) { return memory(pid, "status", "RssAnon:") }

// PSS is the resident memory of a process, in bytes, in which what it shares with others
// counts in equal parts for each: over all who share it, once. To ask takes Linux some
// milliseconds for each 500 MB.
func PSS(pid int) (int, error) { return memory(pid, "smaps_rollup", "Pss:") }

// memory is a line of one of a process's files in /proc.
func memory(pid int, file, line string) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"+line))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("process %d has no resident memory", pid)
	}
	kib, err := strconv.Atoi(string(fields[0]))
	return kib << 10, err
}

// Children are the processes that a process has started, or that were left to it.
func Children(parent int) (pids []int, err error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			return nil, err
		}
		if other, err := Parent(pid); err == nil && other == parent { // else it has ended
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Parent is the process that has started a process, or that it was left to.
func Parent(pid int) (int, error) { return stat(fmt.Sprintf("/proc/%d/stat", pid), 4) }

// Nices is how many threads of a process have each nice value.
func Nices(pid int) (map[int]int, error) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return nil, err
	}
	threads := map[int]int{}
	for _, path := range paths {
		nice, err := stat(path, 19)
		switch {
		case err == nil:
			threads[nice]++
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH): // else it has ended
			return nil, err
		}
	}
	if len(threads) == 0 {
		return nil, fmt.Errorf("process %d has no threads", pid)
	}
	return threads, nil
}

// stat is a number in the stat file of a process or thread, by its place, from 1 on; the
// first two are none.
func stat(path string, place int) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	// The second is the name, in parentheses, and may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= place-3 {
		return 0, fmt.Errorf("%s has %d fields behind the name", path, len(fields))
	}
	return strconv.Atoi(string(fields[place-3]))
}
