package gateway

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"histogate/tritonclient"
)

// Two things can hang. A batch can: then Triton answers for itself and for other
// models, and the one model is loaded again beside the process that hangs. Or
// Triton itself can: then it is killed, where it is ours, and started again.

const (
	livenessEvery   = 500 * time.Millisecond
	livenessTimeout = 500 * time.Millisecond
	livenessMisses  = 3
)

var errHung = errors.New("a batch runs for longer than the model's execute_limit_ms")

// pulse is the progress of what is inside Triton. It tells a model that is busy from
// one that hangs: while anything is inside something has to come out.
type pulse struct {
	mu      sync.Mutex
	inside  int
	since   time.Time // the latest answer, or the entry of the first that is inside
	answers int       // so far
}

func (p *pulse) entered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inside++; p.inside == 1 {
		p.since = time.Now()
	}
}

// left is told whether Triton answered, or the caller gave up.
func (p *pulse) left(answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside--
	if answered {
		p.since = time.Now()
		p.answers++
	}
}

// answered is how often Triton has answered.
func (p *pulse) answered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers
}

// busy tells whether anything is inside.
func (p *pulse) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inside > 0
}

// silence is how long nothing has come out, 0 when nothing is inside.
func (p *pulse) silence() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inside == 0 {
		return 0
	}
	return time.Since(p.since)
}

// doubtFrozen takes the models of a Triton that something else runs out of service
// while it does not answer at all. It returns when the context ends.
func (g *Gateway) doubtFrozen(ctx context.Context) {
	for {
		awaitHang(ctx, g.triton)
		if ctx.Err() != nil {
			return
		}
		for _, m := range g.models.list {
			if m.health.trouble.Load() == nil {
				m.health.observe(m.health.life.Load(), &tritonclient.Error{
					Op: "ServerLive", Kind: tritonclient.Unavailable, Sent: true, Detail: "the server has not answered several times in a row",
				})
			}
		}
	}
}

// awaitHang returns when the server has not answered a few times in a row.
func awaitHang(ctx context.Context, client *tritonclient.Client) {
	tick := time.NewTicker(livenessEvery)
	defer tick.Stop()
	for misses := 0; misses < livenessMisses; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		probe, cancel := context.WithTimeout(ctx, livenessTimeout)
		_, err := client.ServerLive(probe)
		cancel()
		if kindOf(err) == tritonclient.DeadlineExceeded {
			misses++
		} else {
			misses = 0
		}
	}
}

// backendProcesses are the processes that run a model's backend: children of the
// Triton with the given process id whose command line names a file in the folder.
func backendProcesses(triton int, folder string) (pids []int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if _, parent := processState(pid); parent != triton {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		// Arguments are separated by zero bytes. One that has ended has none.
		if bytes.Contains(command, []byte("\x00"+folder+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// anyEnded tells whether one of the processes has ended, waited for or not.
func anyEnded(pids []int) bool {
	return slices.ContainsFunc(pids, func(pid int) bool {
		state, _ := processState(pid)
		return state == 0 || state == 'Z' || state == 'X'
	})
}

// processState is a process's state, as a letter, and its parent; zeros when there
// is no such process.
func processState(pid int) (state byte, parent int) {
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // empty when it has just ended
	// Behind the name, which may hold anything: state, parent, ...
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent
}

func killAll(pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}
