package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"histogate/tritonclient"
)

const (
	// How long Triton may take to finish what is in flight once it was asked
	// to stop; the guard's patience is longer.
	tritonExitTimeout = 3 * time.Second

	// A first start is tried again: somebody may have taken a port that was free
	// a moment before.
	tritonFirstStarts = 3

	tritonPollEvery = 50 * time.Millisecond
)

// child runs tritonserver as a child process and starts it again when it dies.
//
// Each start takes free ports on the loopback interface and a random server id.
// Its address is handed to the gRPC client only after a server with that very
// id has answered on it, so that a stranger on the same port is never trusted.
type child struct {
	cfg     *Config
	log     *slog.Logger
	metrics *metrics
	control *tritonclient.Client // whose dialer is dial

	mu      sync.Mutex
	address string        // of the live server, empty while there is none
	pid     int           // of the latest server
	killed  string        // why, if it was
	dying   chan struct{} // closed when the latest server is killed
}

// dial connects to the server that runs now. It is the gRPC client's dialer,
// and so is asked again whenever a connection is lost.
func (t *child) dial(ctx context.Context, _ string) (net.Conn, error) {
	t.mu.Lock()
	address := t.address
	t.mu.Unlock()
	if address == "" {
		return nil, errors.New("triton is starting")
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

func (t *child) setAddress(address string) {
	t.mu.Lock()
	t.address = address
	t.mu.Unlock()
}

func (t *child) setPID(pid int) {
	t.mu.Lock()
	t.pid = pid
	t.mu.Unlock()
}

// starting tells that there is no live server yet, or none again.
func (t *child) starting() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.address == ""
}

// latest is the process id of the latest server, 0 where there was none.
func (t *child) latest() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pid
}

// backends are the processes that run a model's backend now.
func (t *child) backends(model string) []int {
	if t == nil {
		return nil // what something else runs is not ours to kill
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return backendProcesses(t.pid, filepath.Join(t.cfg.ModelRepository, model))
}

// kill ends a server that is live, its backends included, and reports whether
// there was one.
func (t *child) kill(cause string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.address == "" {
		return false
	}
	t.log.Error("triton is killed", "cause", cause, "pid", t.pid)
	t.address, t.killed = "", cause
	close(t.dying)
	_ = syscall.Kill(-t.pid, syscall.SIGKILL) // it may have ended just now
	return true
}

// killGroup ends the latest server and its backends, whatever state they are in.
func (t *child) killGroup() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pid > 0 {
		_ = syscall.Kill(-t.pid, syscall.SIGKILL) // it may have ended
	}
}

// ended returns why the latest server ended.
func (t *child) ended() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	cause := t.killed
	if t.killed = ""; cause == "" {
		return causeEnded
	}
	return cause
}

// run keeps a server running until the context ends, then stops it. A server
// that cannot be brought up at all is an error: its command is a mistake in the
// configuration. So is one that has to be started too often: then whoever runs
// the gateway has a better chance with another machine.
func (t *child) run(ctx context.Context) error {
	// This thread alone keeps the priority for what it starts. It ends with the goroutine.
	runtime.LockOSThread()
	if err := giveWay(t.cfg.GatewayNice); err != nil {
		t.log.Warn("the gateway does not give way to triton, or not with all of its threads: allow it to see /proc/self/task and to call setpriority, or set GATEWAY_NICE=0", "error", err)
	}
	everLive := false
	restarts := restarts{atOnce: restartsAtOnce, soonest: restartWaitMin}
	for attempt := 1; ; attempt++ {
		live, err := t.once(ctx)
		everLive = everLive || live
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // to be told to stop is no failure
		case !everLive && (attempt == tritonFirstStarts || errors.Is(err, errTooSlow)):
			return fmt.Errorf("tritonserver did not start (TRITON_SERVER=%q): %w", t.cfg.TritonServer, err)
		}
		cause := t.ended()
		t.metrics.tritonEnds.WithLabelValues(cause).Inc()
		wait, ends := restarts.next(time.Now(), live)
		if ends > t.cfg.TritonRestartLimit {
			return fmt.Errorf("tritonserver ended %d times within %s, more than TRITON_RESTART_LIMIT=%d allows; what it wrote before says why; the last time: %w",
				t.cfg.TritonRestartLimit+1, restartWindow, t.cfg.TritonRestartLimit, err)
		}
		t.log.Error("triton is gone, starting it again", "cause", cause, "error", err, "in", wait.String())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

const (
	restartWindow  = 10 * time.Minute
	restartsAtOnce = 5 // that are not held back yet
	restartWaitMin = 250 * time.Millisecond
	restartWaitMax = 10 * time.Second
)

// restarts holds back the starts of what ends again and again.
type restarts struct {
	atOnce  int           // within restartWindow, that are not held back yet
	soonest time.Duration // until the next start
	ends    []time.Time   // within the window
}

// next is told that a server or a model has ended, and whether it was live before. It
// returns how long to wait before the next start, and how many ends there were within
// the window.
func (r *restarts) next(now time.Time, live bool) (wait time.Duration, ends int) {
	if live { // else it may take longer than the window to fail as often
		r.ends = slices.DeleteFunc(r.ends, func(end time.Time) bool { return now.Sub(end) >= restartWindow })
	}
	r.ends = append(r.ends, now)
	wait = r.soonest
	for n := r.atOnce; n < len(r.ends) && wait < restartWaitMax; n++ {
		wait *= 2
	}
	return min(wait, restartWaitMax), len(r.ends)
}

// once starts a server, behind a guard, and returns when both have ended. It
// reports whether the server was ever live.
func (t *child) once(ctx context.Context) (live bool, err error) {
	if err := t.cfg.checkServer(); err != nil {
		return false, err
	}
	ports, err := t.cfg.SafePorts.free(childPorts)
	if err != nil {
		return false, err
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	id := newID()
	grpcAddress, metricsAddress := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])), net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[2]))
	arguments := []string{GuardCommand, id, t.cfg.TritonServer,
		"--id=" + id,
		"--model-repository=" + filepath.Clean(t.cfg.ModelRepository), // as backends has it
		"--backend-directory=" + t.cfg.TritonBackends,
		// Models are loaded one by one on request: only so can a dead backend be
		// brought back, and one broken model does not keep the server from starting.
		"--backend-config=python,shm-region-prefix-name=" + id,
		"--model-control-mode=explicit",
		"--disable-auto-complete-config",
		"--grpc-address=127.0.0.1", "--grpc-port=" + strconv.Itoa(ports[0]),
		"--http-address=127.0.0.1", "--http-port=" + strconv.Itoa(ports[1]),
		"--metrics-address=127.0.0.1", "--metrics-port=" + strconv.Itoa(ports[2]),
		"--exit-timeout-secs=" + strconv.Itoa(int(tritonExitTimeout/time.Second)),
	}
	if t.cfg.TracesEndpoint != "" {
		arguments = append(arguments, tritonTraces(t.cfg.TracesEndpoint)...)
	}
	cmd := exec.Command(self, arguments...)
	cmd.Stderr = os.Stderr
	// A group of its own: a terminal's ^C reaches the gateway alone, which then
	// stops Triton last.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return false, err
	}
	report, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	exited := make(chan string, 1)
	go func() {
		reason := "its guard ended"
		for lines := bufio.NewScanner(report); lines.Scan(); {
			if pid, err := strconv.Atoi(lines.Text()); err == nil {
				t.setPID(pid)
				t.metrics.tritonStarts.Inc()
				t.log.Info("triton started", "pid", pid, "grpc", grpcAddress, "metrics", metricsAddress)
			} else {
				reason = lines.Text()
			}
		}
		_ = cmd.Wait() // the guard's own status says nothing more
		exited <- reason
	}()

	dying := make(chan struct{})
	t.mu.Lock()
	t.dying = dying
	t.mu.Unlock()
	var despair <-chan time.Time
	began := time.Now()
	starting, cancel := context.WithTimeout(ctx, t.cfg.TritonStartTimeout)
	defer cancel()
	identified := make(chan error, 1)
	go func() { identified <- identify(starting, grpcAddress, id) }()
	living, done := context.WithCancel(ctx)
	defer done()
	var hung chan struct{}
	for {
		select {
		case err = <-identified:
			if err == nil {
				live, identified, hung = true, nil, make(chan struct{})
				t.log.Info("triton is live", "start_ms", milliseconds(time.Since(began)))
				t.setAddress(grpcAddress)
				t.control.Reconnect()
				go func() {
					awaitHang(living, t.control)
					close(hung)
				}()
				continue
			}
		case <-hung:
			hung = nil
			if ctx.Err() == nil {
				t.kill(causeSilent)
			}
			continue
		case <-dying:
			dying, despair = nil, time.After(guardDespair)
			continue
		case <-despair: // it is left behind, to be started beside
			err = errors.New("it was killed and is not gone")
		case reason := <-exited:
			t.setAddress("")
			return live, errors.New(reason)
		case <-ctx.Done():
			t.log.Info("stopping triton")
		}
		_ = lifeline.Close() // the guard stops the server, or gives it up
		select {
		case <-exited:
		case <-time.After(guardPatience + 2*guardDespair): // the guard itself hangs
			t.log.Warn("triton's guard does not end, and both are killed")
			_ = cmd.Process.Kill()
			t.killGroup()
			<-exited
			removeRegions(regionFolder, id) // as the guard does
		}
		t.setAddress("")
		return live, err
	}
}

var errTooSlow = errors.New("it was not live in time")

// identify waits until a server with the given id answers at the address.
func identify(ctx context.Context, address, id string) error {
	client, err := tritonclient.New(address, tritonclient.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		metadata, err := client.ServerMetadata(ctx)
		if err == nil {
			if metadata.Name != id {
				return fmt.Errorf("a server named %q answers at %s, which is not the one that was started", metadata.Name, address)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errTooSlow, err)
		case <-time.After(tritonPollEvery):
			client.Reconnect()
		}
	}
}
