//go:build pt2

package pt2

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

// The ways in which people start what serves checkpoints, other than by the binary.

// `make serve` with a model folder and nothing else picks the Triton that has torch.
func TestMakeServe(t *testing.T) {
	o := options("")
	s, err := stack.Launch(stack.Options{Make: []string{"serve", "MODEL_DIR=" + modelFolder(t, nil)}, Repository: o.Repository})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop() // make has an exit code of its own for it
		if t.Failed() {
			t.Logf("what the stack wrote:\n%s", s.Output())
		}
	})
	answersAsTorch(t, s)
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	pid := s.TritonPID()
	<-s.Exited()
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("Triton, process %d, is still there", pid)
	}
}

// What `gateway repository build` writes is served by a Triton that is started by hand.
func TestRepositoryBuild(t *testing.T) {
	gateway, err := stack.Build(false)
	if err != nil {
		t.Fatal(err)
	}
	repository := filepath.Join(t.TempDir(), "repository")
	build := exec.CommandContext(t.Context(), gateway, "repository", "build", "-copy", "-out", repository,
		"-model-dir", modelFolder(t, nil), "-model-repository", root("tests", "pt2", "testdata", "specs"))
	if out, err := build.CombinedOutput(); err != nil || strings.Count(string(out), "good") != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	address := triton(t, repository)
	s, err := stack.Launch(stack.Options{Repository: repository, Env: []string{"TRITON_SERVER=", "TRITON_ADDRESS=" + address}})
	if err != nil {
		t.Fatal(err)
	}
	stopped(t, s)
	answersAsTorch(t, s)
}

// triton starts a Triton with torch on a repository, and returns its gRPC endpoint.
func triton(t *testing.T, repository string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	memory := "pt2-test-" + strconv.Itoa(os.Getpid())
	cmd := exec.Command(root("build", "triton-pt2", "tritonserver"),
		"--model-repository="+repository, "--backend-directory="+root("build", "triton-pt2", "backends"),
		"--model-control-mode=explicit", "--disable-auto-complete-config", "--backend-config=python,shm-region-prefix-name="+memory,
		"--grpc-address=127.0.0.1", "--grpc-port="+strconv.Itoa(port), "--allow-http=false", "--allow-metrics=false", "--exit-timeout-secs=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		left, _ := filepath.Glob("/dev/shm/" + memory + "*")
		for _, path := range left {
			_ = os.Remove(path)
		}
	})
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// answersAsTorch waits until a stack serves all models, and holds an answer of each
// against torch.
func answersAsTorch(t *testing.T, s *stack.Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		a, err := s.Get("/ping")
		if err != nil {
			t.Fatal(err)
		}
		if a.Status == http.StatusOK {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it is not ready: %s", a.Raw)
		case <-time.After(100 * time.Millisecond):
		}
	}
	requests := []request{newRequest(t, "h1", "embedding", 1), newRequest(t, "m-optimus", "embedding", 1), newRequest(t, "tissue-seg", "prediction", 1)}
	for i, want := range reference(t, requests) {
		r := requests[i]
		a, err := s.Post("/invocations", r.body(t))
		if err != nil {
			t.Fatal(err)
		}
		wanted := floats(want.Outputs[len(want.Outputs)-1])
		if r.Mode == "prediction" {
			wanted = settled(t, r.ModelName, a.Output, floats(want.Raw[0]), wanted)
		}
		if d := distance(a.Output, wanted); a.Status != http.StatusOK || d > tolerance {
			t.Errorf("%s: status %d, %g from torch: %s", r.ModelName, a.Status, d, fmt.Sprint(a.Detail))
		}
	}
}
