// Package deploy holds what an operator is given against the repository and the real
// binaries: compose files, images, Kubernetes manifests, scripts. It is a module of its
// own, so that the product does not depend on what reads those.
//
// No Docker engine, image registry or cluster is at hand where it runs. It cannot tell
// whether the images that are built upon exist, whether an image builds, or what an
// engine or a cluster makes of what is said to it; each test says what else it cannot.
package deploy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// root is the checkout's folder.
const root = "../.."

// binary is the gateway, built by TestMain.
var binary = filepath.Join(os.TempDir(), fmt.Sprintf("histogate-deploy-test-%d", os.Getpid()))

func TestMain(m *testing.M) {
	build := exec.Command("go", "build", "-o", binary, "./gateway/cmd/gateway")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.Remove(binary) // in the temporary folder
	os.Exit(code)
}

// read reads a file of the checkout or, by an absolute path, of the machine.
func read(t *testing.T, path string) string {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func absolute(t *testing.T, path ...string) string {
	t.Helper()
	whole, err := filepath.Abs(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// settings are the gateway's, by the name of their variable, each with its default.
func settings(t *testing.T) map[string]string {
	t.Helper()
	usage, err := exec.Command(binary, "serve", "-h").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^  -\S+ \((\w+)\)\n    .*?(?: \(default (.*)\))?$`).FindAllStringSubmatch(string(usage), -1) {
		found[match[1]] = match[2]
	}
	if found["PORT"] == "" {
		t.Fatalf("no settings in the usage:\n%s", usage)
	}
	return found
}

// checkSettings checks that each variable is a setting of the gateway, that their
// values are valid, together as well.
func checkSettings(t *testing.T, where string, env map[string]string) {
	t.Helper()
	known := settings(t)
	serve := exec.Command(binary, "serve", "-log-level=wrong") // else it would serve
	for name, value := range env {
		if _, ok := known[name]; !ok {
			t.Errorf("%s: %s is no setting of the gateway", where, name)
		}
		serve.Env = append(serve.Env, name+"="+value)
	}
	out, err := serve.CombinedOutput()
	if err == nil {
		t.Fatalf("%s: a wrong LOG_LEVEL was taken", where)
	}
	mistakes := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(mistakes) != 2 || !strings.Contains(mistakes[1], "-log-level") { // the first line introduces them
		t.Errorf("%s: %s", where, out)
	}
}

// process is one that a test runs, in the background.
type process struct {
	command *exec.Cmd
	exited  chan struct{} // closed when it has ended and its output is read

	mu     sync.Mutex
	output strings.Builder
	lines  chan string // those of standard output, as far as somebody takes them
}

// start starts a process that ends with the test at the latest.
func start(t *testing.T, command *exec.Cmd) *process {
	t.Helper()
	p := &process{command: command, exited: make(chan struct{}), lines: make(chan string, 1000)}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var pipes sync.WaitGroup
	pipes.Go(func() { p.keep(stdout, p.lines) })
	pipes.Go(func() { p.keep(stderr, nil) })
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			pipes.Wait()
			_ = command.Wait() // its status is in ProcessState
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop(t, 40*time.Second)
		if t.Failed() {
			t.Logf("%s wrote:\n%s", command.Path, p.written())
		}
	})
	return p
}

func (p *process) keep(r io.Reader, lines chan<- string) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.mu.Lock()
		p.output.WriteString(scanner.Text() + "\n")
		p.mu.Unlock()
		if lines != nil {
			select {
			case lines <- scanner.Text():
			default:
			}
		}
	}
}

func (p *process) written() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// stop sends SIGTERM and returns the exit code; one that does not end within the
// limit is killed, and fails the test.
func (p *process) stop(t *testing.T, limit time.Duration) int {
	t.Helper()
	_ = p.command.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.exited:
	case <-time.After(limit):
		t.Errorf("%s did not end within %v of SIGTERM", p.command.Path, limit)
		_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
		<-p.exited
	}
	return p.command.ProcessState.ExitCode()
}

// gateway is a running one.
type gateway struct {
	*process
	url, metrics string
}

// serve runs `gateway serve` on free ports with these variables and no others.
func serve(t *testing.T, env ...string) *gateway {
	t.Helper()
	return listening(t, exec.Command(binary, "serve"), env...)
}

// listening starts a command that runs `gateway serve`.
func listening(t *testing.T, command *exec.Cmd, env ...string) *gateway {
	t.Helper()
	command.Env = append([]string{"HOST=127.0.0.1", "PORT=0", "METRICS_PORT=0"}, env...)
	g := &gateway{process: start(t, command)}
	for {
		select {
		case line := <-g.lines:
			var entry struct {
				Msg         string `json:"msg"`
				Port        int    `json:"port"`
				MetricsPort int    `json:"metrics_port"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
				g.url = fmt.Sprintf("http://127.0.0.1:%d", entry.Port)
				g.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", entry.MetricsPort)
				return g
			}
		case <-g.exited:
			t.Fatalf("the gateway ended with %s:\n%s", g.command.ProcessState, g.written())
		case <-time.After(30 * time.Second):
			t.Fatalf("the gateway does not listen:\n%s", g.written())
		}
	}
}

// alone runs a gateway whose Triton is not there.
func alone(t *testing.T) *gateway {
	t.Helper()
	return serve(t, "MODEL_REPOSITORY="+absolute(t, "model_repository"), "TRITON_ADDRESS=127.0.0.1:1")
}

// prober asks as a platform's probes do. An idle connection would hold up Triton's end.
var prober = http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}

// await waits until a GET is answered with 200, a minute at most.
func await(t *testing.T, url string) {
	t.Helper()
	last := "nothing"
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		response, err := prober.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return
		}
		last = response.Status + " " + string(body)
	}
	t.Fatalf("%s does not answer 200: %s", url, last)
}

// status is that of a GET.
func status(t *testing.T, url string) int {
	t.Helper()
	response, err := prober.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// fetch is the body that a GET is answered with.
func fetch(t *testing.T, url string) []byte {
	t.Helper()
	response, err := prober.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
