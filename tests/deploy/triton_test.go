package deploy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// freePort is one that nothing listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

// triton is one that runs beside the gateway.
type triton struct {
	*process
	http, grpc, metrics string // its ports
}

// runTriton runs what Triton's image starts, on this machine's Triton and models.
func runTriton(t *testing.T, env ...string) *triton {
	t.Helper()
	s := &triton{http: freePort(t), grpc: freePort(t), metrics: freePort(t)}
	command := exec.Command(absolute(t, "deploy/triton/serve"),
		"--backend-directory="+absolute(t, "build/triton/backends"),
		"--http-address=127.0.0.1", "--http-port="+s.http,
		"--grpc-address=127.0.0.1", "--grpc-port="+s.grpc,
		"--metrics-address=127.0.0.1", "--metrics-port="+s.metrics,
	)
	command.Env = append([]string{"PATH=" + absolute(t, "build/triton") + ":" + os.Getenv("PATH"), "MODEL_REPOSITORY=" + absolute(t, "model_repository")}, env...)
	s.process = start(t, command)
	return s
}

// tile is a request to /invocations for an embedding of a real tile.
func tile(t *testing.T, model string) []byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "tests/testdata/tiles/*.png"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no tiles: %v", err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{
		"mode": "embedding", "slide_name": "S1", "x": 0, "y": 0, "width": 224, "height": 224,
		"patch_idx": 0, "image_data": base64.StdEncoding.EncodeToString(data),
	}
	if model != "" { // else it is DEFAULT_MODEL's
		fields["model_name"] = model
	}
	body, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// embed asks for an embedding and checks that it is one.
func embed(t *testing.T, url, model string) {
	t.Helper()
	response, err := http.Post(url+"/invocations", "application/json", bytes.NewReader(tile(t, model)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Output []float64 }
	if err := json.Unmarshal(body, &answer); err != nil || response.StatusCode != http.StatusOK || len(answer.Output) == 0 {
		t.Errorf("%s %.300s", response.Status, body)
	}
}

// The two containers of the compose file as processes of this machine: Triton by the
// image's own command with its health check, the gateway with the service's environment.
// Their users, file systems and network are not those of containers.
func TestComposeOnThisMachine(t *testing.T) {
	project := compose(t, []string{"MODELS=h1,m-optimus"}, composeFile)
	backend := runTriton(t)
	check := healthCheck(t, project.Services["triton"], backend.http)
	await(t, "http://127.0.0.1:"+backend.http+"/v2/health/live")
	if out, err := check().CombinedOutput(); err != nil {
		t.Errorf("the health check of a live Triton: %v\n%s", err, out)
	}
	var env []string
	for name, value := range environment(project.Services["gateway"]) {
		if value == "triton:8001" {
			value = "127.0.0.1:" + backend.grpc
		}
		env = append(env, name+"="+value)
	}
	g := serve(t, append(env, "MODEL_REPOSITORY="+absolute(t, "model_repository"))...)
	await(t, g.url+"/readyz")
	embed(t, g.url, "h1")
	if code := g.stop(t, time.Duration(*project.Services["gateway"].StopGracePeriod)); code != 0 {
		t.Errorf("the gateway ended with exit code %d", code)
	}
	if code := backend.stop(t, time.Duration(*project.Services["triton"].StopGracePeriod)); code != 0 {
		t.Errorf("Triton ended with exit code %d", code)
	}
	if check().Run() == nil {
		t.Error("the health check of a Triton that is gone succeeds")
	}
}

// healthCheck is a service's, asked of another port.
func healthCheck(t *testing.T, s types.ServiceConfig, port string) func() *exec.Cmd {
	t.Helper()
	args := strings.Split(strings.ReplaceAll(strings.Join(s.HealthCheck.Test, "\x00"), ":8000/", ":"+port+"/"), "\x00")
	if args[0] != "CMD" || !strings.Contains(strings.Join(args, " "), port) {
		t.Fatalf("the health check is %q", args)
	}
	return func() *exec.Cmd { return exec.Command(args[1], args[2:]...) }
}

// Process 1 of a container removes what a Triton that was killed has left in /tmp and
// in /dev/shm, and nothing of the gateway's; no other process removes anything. Here in
// namespaces of its own, which takes root.
func TestTritonLeftovers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make the namespaces of a container")
	}
	// In the place of tritonserver: tells what it was started with and what is there.
	const fake = "#!/bin/sh\necho \"$@\"\nls /tmp /dev/shm\n"
	for name, test := range map[string]struct {
		flags []string
		run   string
		left  bool
	}{
		"as process 1":       {[]string{"--mount", "--pid", "--fork"}, "exec", false},
		"as another process": {[]string{"--mount"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			script := `for folder in /mnt /tmp /dev/shm; do mount -t tmpfs tmpfs $folder; done
				echo "$FAKE" >/mnt/tritonserver; echo "$SERVE" >/mnt/serve; chmod +x /mnt/*
				mkdir /tmp/unpacked; touch /dev/shm/triton-backend-1 /dev/shm/gateways
				` + test.run + ` /mnt/serve --more; true`
			command := exec.Command("unshare", slices.Concat(test.flags, []string{"sh", "-e", "-c", script})...)
			command.Env = []string{"PATH=/mnt:" + os.Getenv("PATH"), "FAKE=" + fake, "SERVE=" + read(t, "deploy/triton/serve")}
			command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text := string(out)
			if strings.Contains(text, "unpacked") != test.left || strings.Contains(text, "triton-backend-1") != test.left || !strings.Contains(text, "gateways") {
				t.Errorf("there is left:\n%s", text)
			}
			for _, option := range []string{"--model-repository=/models ", "--model-control-mode=explicit ", "shm-region-prefix-name=triton-backend- ", " --more\n"} {
				if !strings.Contains(text, option) {
					t.Errorf("tritonserver is not given %q:\n%s", option, text)
				}
			}
		})
	}
}

// With a collector's address both send it what they know of a request. What Triton's is
// a part of, tests/observe looks at.
func TestTritonTraces(t *testing.T) {
	var mu sync.Mutex
	senders := map[string]bool{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{"triton-server", "histogate/gateway"} { // the scopes of their spans
			senders[name] = senders[name] || bytes.Contains(body, []byte(name))
		}
	}))
	t.Cleanup(collector.Close)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=100"} // ms
	backend := runTriton(t, env...)
	g := serve(t, append(env, "MODELS=h1", "MODEL_REPOSITORY="+absolute(t, "model_repository"), "TRITON_ADDRESS=127.0.0.1:"+backend.grpc)...)
	await(t, g.url+"/ping")
	embed(t, g.url, "h1")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		mu.Lock()
		both := senders["triton-server"] && senders["histogate/gateway"]
		mu.Unlock()
		if both {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the collector has heard of %v", senders)
		}
	}
}
