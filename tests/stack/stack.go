// Package stack starts the real thing for tests and demonstrations: the gateway
// as a process of its own, as users run it, with a real Triton as its child.
package stack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Root is the checkout's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Options say how a stack differs from the one that `make serve` starts.
type Options struct {
	// Repository and Backends replace the folders of models and backends.
	Repository, Backends string
	// Env is added to the gateway's environment, each entry as NAME=value. The
	// ports are free ones unless it says otherwise.
	Env []string
	// Race has the gateway built with the race detector.
	Race bool
	// Make has make start it, with these arguments, in place of the binary; it then
	// chooses the Triton.
	Make []string
}

// Stack is a running gateway. Stop it.
type Stack struct {
	URL        string // of the API
	MetricsURL string

	cmd    *exec.Cmd
	exited chan struct{}
	pipes  sync.WaitGroup

	mu        sync.Mutex
	log       []map[string]any
	stderr    bytes.Buffer
	listening chan struct{}
}

// Build builds the gateway and returns the path of the binary.
func Build(race bool) (string, error) {
	binary := filepath.Join(Root(), "build", "gateway")
	args := []string{"build"}
	if race {
		binary += "-race"
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "-o", binary, "./gateway/cmd/gateway")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// Launch starts a stack and returns as soon as it listens.
func Launch(o Options) (*Stack, error) { return launch(context.Background(), o) }

func launch(ctx context.Context, o Options) (*Stack, error) {
	binary, err := Build(o.Race)
	if err != nil {
		return nil, err
	}
	at := func(given, otherwise string) string {
		if given != "" {
			return given
		}
		return filepath.Join(Root(), otherwise)
	}
	s := &Stack{exited: make(chan struct{}), listening: make(chan struct{})}
	env := []string{"HOST=127.0.0.1", "PORT=0", "METRICS_PORT=0", "MODEL_REPOSITORY=" + at(o.Repository, "model_repository")}
	if o.Make == nil {
		s.cmd = exec.Command(binary, "serve")
		env = append(env, "TRITON_SERVER="+at("", "build/triton/tritonserver"), "TRITON_BACKENDS="+at(o.Backends, "build/triton/backends"))
	} else {
		s.cmd = exec.Command("make", o.Make...)
		s.cmd.Dir = Root()
		env = append(env, "MAKEFLAGS=", "MAKELEVEL=") // of the make that runs the tests
	}
	s.cmd.Env = slices.Concat(os.Environ(), env, o.Env)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // ^C is for the one who started the stack
		Pdeathsig: syscall.SIGTERM, // whose end, of whatever kind, is the stack's
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	s.pipes.Add(2)
	go s.readLog(stdout)
	go s.readStderr(stderr)
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.pipes.Wait()
			_ = s.cmd.Wait() // its status is in ProcessState
			close(s.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	select {
	case <-s.listening:
		return s, nil
	case <-s.exited:
		return nil, fmt.Errorf("the gateway ended with %s:\n%s", s.cmd.ProcessState, s.Output())
	case <-ctx.Done():
		s.Stop()
		return nil, fmt.Errorf("the gateway did not listen in time:\n%s", s.Output())
	}
}

// Start starts a stack and returns when /ping says that it serves.
func Start(ctx context.Context, o Options) (*Stack, error) {
	s, err := launch(ctx, o)
	if err != nil {
		return nil, err
	}
	for {
		if response, err := http.Get(s.URL + "/ping"); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		select {
		case <-s.exited:
			return nil, fmt.Errorf("the gateway ended with %s:\n%s", s.cmd.ProcessState, s.Output())
		case <-ctx.Done():
			s.Stop()
			return nil, fmt.Errorf("the stack was not ready in time:\n%s", s.Output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// readLog keeps the gateway's log and picks the addresses out of it.
func (s *Stack) readLog(r io.Reader) {
	defer s.pipes.Done()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry map[string]any
		if json.Unmarshal(lines.Bytes(), &entry) != nil {
			entry = map[string]any{"msg": lines.Text()}
		}
		s.mu.Lock()
		s.log = append(s.log, entry)
		if entry["msg"] == "listening" {
			s.URL = fmt.Sprintf("http://127.0.0.1:%v", entry["port"])
			s.MetricsURL = fmt.Sprintf("http://127.0.0.1:%v/metrics", entry["metrics_port"])
			close(s.listening)
		}
		s.mu.Unlock()
	}
}

func (s *Stack) readStderr(r io.Reader) {
	defer s.pipes.Done()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.mu.Lock()
		s.stderr.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
	}
}

// Log is what the gateway has logged so far, an object a line.
func (s *Stack) Log() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]any(nil), s.log...)
}

// Output is all that the gateway and Triton have written, for a person.
func (s *Stack) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text strings.Builder
	for _, entry := range s.log {
		line, _ := json.Marshal(entry)
		text.Write(append(line, '\n'))
	}
	return text.String() + s.stderr.String()
}

// TritonPID is the process id of the latest Triton child, 0 without one.
func (s *Stack) TritonPID() int {
	pid, _ := s.tritonStarted()["pid"].(float64)
	return int(pid)
}

// TritonAddress is host:port of the latest Triton child's gRPC endpoint, empty
// without one.
func (s *Stack) TritonAddress() string {
	address, _ := s.tritonStarted()["grpc"].(string)
	return address
}

// TritonMetrics is host:port of the latest Triton child's metrics, empty without one.
func (s *Stack) TritonMetrics() string {
	address, _ := s.tritonStarted()["metrics"].(string)
	return address
}

// Segments are the files in shared memory through which the gateway hands tensors to
// the latest Triton child: those that it has mapped.
func (s *Stack) Segments() (paths []string) {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.TritonPID())) // empty when it has ended
	for line := range strings.Lines(string(maps)) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), "/dev/shm/histogate-tensors-"); ok {
			paths = append(paths, "/dev/shm/histogate-tensors-"+name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Regions are the files in shared memory of the latest Triton child and its backends,
// and their lock: those that have its id in their names.
func (s *Stack) Regions() (paths []string) {
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.TritonPID())) // empty when it has ended
	for argument := range strings.SplitSeq(string(command), "\x00") {
		if id, ok := strings.CutPrefix(argument, "--id="); ok {
			paths, _ = filepath.Glob("/dev/shm/" + id + "*") // the pattern is well-formed
		}
	}
	return paths
}

// tritonStarted is what the gateway logged at the latest start of a Triton child.
func (s *Stack) tritonStarted() (latest map[string]any) {
	for _, entry := range s.Log() {
		if entry["msg"] == "triton started" {
			latest = entry
		}
	}
	return latest
}

// Signal sends the gateway a signal.
func (s *Stack) Signal(signal os.Signal) error { return s.cmd.Process.Signal(signal) }

// Exited is closed when the gateway has ended and its output is read.
func (s *Stack) Exited() <-chan struct{} { return s.exited }

// ExitCode is the gateway's, once it has ended.
func (s *Stack) ExitCode() int { return s.cmd.ProcessState.ExitCode() }

// Stop ends the gateway, which ends its Triton, and returns its exit code. One
// that does not end in its time is killed: an exit code of -1.
func (s *Stack) Stop() int {
	http.DefaultClient.CloseIdleConnections() // else a second is spent on them
	if err := s.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return -1
	}
	select {
	case <-s.exited:
	case <-time.After(30 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	return s.ExitCode()
}
