package observe

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

// prometheus is a running one, Debian's, that scrapes a stack every second.
type prometheus struct {
	url    string
	began  time.Time
	triton string // file that says where Triton's metrics are
}

// scrape starts a Prometheus on the configuration of docker-compose.yml, with this
// stack in place of its services.
func scrape(t *testing.T, s *stack.Stack) *prometheus {
	t.Helper()
	folder := t.TempDir()
	source := filepath.Join(stack.Root(), "deploy", "prometheus")
	text, err := os.ReadFile(filepath.Join(source, "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{began: time.Now(), triton: filepath.Join(folder, "triton.json")}
	config := string(text)
	for from, to := range map[string]string{
		"gateway:9090": strings.TrimSuffix(strings.TrimPrefix(s.MetricsURL, "http://"), "/metrics"),
		// The child has another port each time it starts.
		"static_configs:\n      - targets: [\"triton:8002\"]": "file_sd_configs:\n      - {files: [triton.json], refresh_interval: 1s}",
		"_interval: 15s": "_interval: 1s",
		"[alerts*.yml]":  "[" + filepath.Join(source, "alerts*.yml") + "]",
	} {
		if !strings.Contains(config, from) {
			t.Fatalf("the configuration of Prometheus holds no %q", from)
		}
		config = strings.ReplaceAll(config, from, to)
	}
	p.find(t, s)
	path := filepath.Join(folder, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	p.url = "http://" + address
	command := exec.Command(filepath.Join(stack.Root(), "build", "prometheus", "prometheus"),
		"--config.file="+path, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address, "--log.level=warn")
	command.Stdout, command.Stderr = t.Output(), t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // its data is the test's
	if err := command.Start(); err != nil {
		t.Fatalf("%v (deploy/setup brings Prometheus)", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait() // its status says nothing more
	})
	eventually(t, "Prometheus is ready", 20*time.Second, func() bool {
		response, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

// find tells Prometheus where the metrics of the latest Triton are.
func (p *prometheus) find(t *testing.T, s *stack.Stack) {
	t.Helper()
	text := fmt.Sprintf(`[{"targets": [%q]}]`, s.TritonMetrics())
	if err := os.WriteFile(p.triton+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.triton+".new", p.triton); err != nil {
		t.Fatal(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// series is one of a query's result.
type series struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`  // at one time: seconds, and the value as text
	Values [][2]any          `json:"values"` // over a range
}

// get asks Prometheus' API and decodes the data of the answer.
func (p *prometheus) get(t *testing.T, path string, query url.Values, data any) {
	t.Helper()
	response, err := http.Get(p.url + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %v: %s", path, query, text)
	}
	if err := json.Unmarshal(text, &struct{ Data any }{data}); err != nil {
		t.Fatal(err)
	}
}

// query is the result of an expression now.
func (p *prometheus) query(t *testing.T, expression string) []series {
	t.Helper()
	var data struct{ Result []series }
	p.get(t, "query", url.Values{"query": {expression}}, &data)
	return data.Result
}

// history is the result of an expression from the start on, each second.
func (p *prometheus) history(t *testing.T, expression string) []series {
	t.Helper()
	var data struct{ Result []series }
	p.get(t, "query_range", url.Values{
		"query": {expression}, "step": {"1"},
		"start": {fmt.Sprint(p.began.Unix())}, "end": {fmt.Sprint(time.Now().Unix())},
	}, &data)
	return data.Result
}
