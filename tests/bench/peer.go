package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"histogate/tests/stack"
)

// peer is the same two stages in one Python process: tests/reference/peer.
type peer struct {
	URL string

	cmd    *exec.Cmd
	stderr bytes.Buffer // to be read once the process has ended
	exited chan struct{}
}

// peerStats is what the peer has counted since its start.
type peerStats struct {
	Tiles      int     `json:"tiles"`
	Batches    int     `json:"batches"`
	SessionCPU float64 `json:"session_cpu_s"` // seconds of the model alone
	ProcessCPU float64 `json:"process_cpu_s"` // seconds of all, user and system
}

func peerPython() string { return filepath.Join(stack.Root(), "build", "peer", "bin", "python") }

// startPeer starts the peer with a checkpoint and returns when it answers. env is added
// to its environment, each entry as NAME=value.
func startPeer(ctx context.Context, checkpoint string, env ...string) (*peer, error) {
	p := &peer{exited: make(chan struct{})}
	p.cmd = exec.Command(peerPython(), filepath.Join(stack.Root(), "tests/reference/peer/server.py"))
	p.cmd.Env = append(append(os.Environ(), "PORT=0", "MODEL="+checkpoint), env...)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // ^C is for the one who started the peer
		Pdeathsig: syscall.SIGTERM, // whose end, of whatever kind, is the peer's
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	listening := make(chan string, 1)
	go func() {
		// Pdeathsig is sent when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			line, _ := bufio.NewReader(stdout).ReadString('\n') // nothing where it has ended
			listening <- line
			_ = p.cmd.Wait() // its status is in ProcessState
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("no Python to compare with (run deploy/setup bench): %w", err)
	}
	if err := p.awaitPing(ctx, listening); err != nil {
		return nil, errors.Join(err, p.stop(), fmt.Errorf("the peer wrote:\n%s", &p.stderr))
	}
	return p, nil
}

// awaitPing waits for the line that says where the peer listens, and then for its answer.
func (p *peer) awaitPing(ctx context.Context, listening <-chan string) error {
	select {
	case line := <-listening:
		var where struct{ Port int }
		if err := json.Unmarshal([]byte(line), &where); err != nil {
			return fmt.Errorf("the peer said %q, not where it listens: %w", line, err)
		}
		p.URL = fmt.Sprintf("http://127.0.0.1:%d", where.Port)
	case <-ctx.Done():
		return fmt.Errorf("the peer does not listen: %w", ctx.Err())
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/ping", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request) // it listens: this waits until it accepts
	if err != nil {
		return fmt.Errorf("the peer does not answer: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the peer answers /ping with %s", response.Status)
	}
	return nil
}

// stats reads the peer's counters.
func (p *peer) stats() (s peerStats, err error) {
	response, err := http.Get(p.URL + "/stats")
	if err != nil {
		return s, err
	}
	defer response.Body.Close()
	return s, json.NewDecoder(response.Body).Decode(&s)
}

// stop ends the peer. One that does not end in its time is killed, which is an error,
// as any exit code but 0.
func (p *peer) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("the peer ended with %s", p.cmd.ProcessState)
	}
	return nil
}
