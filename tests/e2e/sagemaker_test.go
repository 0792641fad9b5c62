package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"histogate/tests/stack"
)

// What SageMaker asks of a container, a rule a test, of the binary run as `gateway
// serve` with the real Triton.
func TestSageMakerContract(t *testing.T) {
	const first, last, maxBody = 21000, 21099, 26214400
	port := freePort(t)
	s := start(t, stack.Options{Env: []string{
		"PORT=", "METRICS_PORT=", "SAGEMAKER_BIND_TO_PORT=" + port, fmt.Sprintf("SAGEMAKER_SAFE_PORT_RANGE=%d-%d", first, last),
		"MODELS=h1,m-optimus", "DEFAULT_MODEL=h1",
	}})
	tile := tileRequest("h1", 0, 0)
	want := post(t, s, "/invocations", tile.Body())
	if want.Status != http.StatusOK {
		t.Fatalf("%d %s", want.Status, want.Detail)
	}
	same := func(t *testing.T, a exchanged) {
		t.Helper()
		if a.status != http.StatusOK || !bytes.Equal(a.body, want.Raw) {
			t.Errorf("%d %.300s", a.status, a.body)
		}
	}

	t.Run("it listens on SAGEMAKER_BIND_TO_PORT", func(t *testing.T) {
		if s.URL != "http://127.0.0.1:"+port {
			t.Errorf("it listens on %s, not on port %s", s.URL, port)
		}
	})
	t.Run("all other ports lie in SAGEMAKER_SAFE_PORT_RANGE", func(t *testing.T) {
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.TritonPID()))
		if err != nil {
			t.Fatal(err)
		}
		ports := regexp.MustCompile(`--(?:grpc|http|metrics)-port=(\d+)`).FindAllSubmatch(command, -1)
		ports = append(ports, regexp.MustCompile(`:(\d+)/metrics`).FindSubmatch([]byte(s.MetricsURL)))
		for _, match := range ports {
			if n, _ := strconv.Atoi(string(match[1])); n < first || n > last {
				t.Errorf("port %d is outside %d to %d", n, first, last)
			}
		}
		if len(ports) != 4 {
			t.Errorf("%d ports in %q", len(ports), command)
		}
	})
	t.Run("a bare GET of /ping answers 200 and nothing else", func(t *testing.T) {
		if _, err := ping(strings.TrimPrefix(s.URL, "http://")); err != nil {
			t.Error(err)
		}
	})
	t.Run("/invocations serves every mode", func(t *testing.T) {
		request := tileRequest("m-optimus", 0, 0)
		for mode, lengths := range map[string][2]int{"prediction": {6002, 0}, "embedding": {1536, 0}, "prediction_with_embedding": {6002, 1536}} {
			request.Mode = mode
			if a := post(t, s, "/invocations", request.Body()); a.Status != http.StatusOK || len(a.Output) != lengths[0] || len(a.Embedding) != lengths[1] {
				t.Errorf("%s: %d, %d and %d values", mode, a.Status, len(a.Output), len(a.Embedding))
			}
		}
		request.Mode, request.ImageData = "metadata", nil
		if a := post(t, s, "/invocations", request.Body()); a.Status != http.StatusOK || !bytes.Contains(a.Raw, []byte(`"model_name":"m-optimus"`)) {
			t.Errorf("metadata: %d %.200s", a.Status, a.Raw)
		}
	})
	t.Run("a body may have 25 MB and no more", func(t *testing.T) {
		padded := func(size int) []byte {
			return append(tile.Body(), bytes.Repeat([]byte(" "), size-len(tile.Body()))...)
		}
		same(t, exchange(t, s, "/invocations", padded(maxBody)))
		if a := exchange(t, s, "/invocations", padded(maxBody+1)); a.status != http.StatusRequestEntityTooLarge {
			t.Errorf("a byte more: %d %s", a.status, a.body)
		}
	})
	t.Run("unknown headers are passed over", func(t *testing.T) {
		same(t, exchange(t, s, "/invocations", tile.Body(), "X-Amzn-SageMaker-Custom-Attributes", "a=b", "X-Amzn-SageMaker-Target-Model", "c",
			"X-Amzn-SageMaker-Inference-Id", "d", "Authorization", "AWS4-HMAC-SHA256 e", "Cookie", strings.Repeat("f", 5000)))
	})
	t.Run("content types may have parameters", func(t *testing.T) {
		for _, kind := range []string{"application/json; charset=utf-8", "APPLICATION/JSON;charset=\"utf-8\"", "application/json; q", "application/json"} {
			same(t, exchange(t, s, "/invocations", tile.Body(), "Content-Type", kind))
		}
		if a := exchange(t, s, "/invocations", tile.Body(), "Content-Type", "text/csv"); a.status != http.StatusUnsupportedMediaType {
			t.Errorf("text/csv: %d %s", a.status, a.body)
		}
		if a := exchange(t, s, "/invocations", tile.ImageData, "Content-Type", "image/png; name=a"); a.status != http.StatusOK || !bytes.HasPrefix(a.body, []byte("[[")) {
			t.Errorf("an image: %d %.100s", a.status, a.body)
		}
	})
	t.Run("Accept is heeded", func(t *testing.T) {
		for _, accept := range []string{"*/*", "application/json", "text/html, application/*;q=0.3"} {
			same(t, exchange(t, s, "/invocations", tile.Body(), "Accept", accept))
		}
		if a := exchange(t, s, "/invocations", tile.Body(), "Accept", "application/octet-stream"); a.status != http.StatusOK || !bytes.Equal(a.body, bits(want.Output)) {
			t.Errorf("octets: %d, %d bytes", a.status, len(a.body))
		}
		if a := exchange(t, s, "/invocations", tile.Body(), "Accept", "text/csv"); a.status != http.StatusNotAcceptable {
			t.Errorf("text/csv: %d %s", a.status, a.body)
		}
	})
	t.Run("a record of batch transform is a JSON line", func(t *testing.T) {
		for _, end := range []string{"\n", "\r\n"} {
			same(t, exchange(t, s, "/invocations", append(tile.Body(), end...), "Content-Type", "application/json"))
		}
	})
	t.Run("/execution-parameters come from the configuration", func(t *testing.T) {
		a, err := s.Get("/execution-parameters")
		if err != nil {
			t.Fatal(err)
		}
		if string(a.Raw) != `{"MaxConcurrentTransforms":4,"BatchStrategy":"SINGLE_RECORD","MaxPayloadInMB":25}` {
			t.Errorf("%d %s", a.Status, a.Raw)
		}
	})
}

// freePort is a port that nothing listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// ping sends the shortest request there is, on a connection of its own, and returns
// how long the answer took.
func ping(address string) (time.Duration, error) {
	began := time.Now()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(began.Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "GET /ping HTTP/1.0\r\n\r\n"); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return 0, err
	}
	head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	if _, status, _ := strings.Cut(head, " "); !strings.HasPrefix(status, "200 ") || body != "" {
		return 0, fmt.Errorf("/ping answered %q", answer)
	}
	return time.Since(began), nil
}

// SageMaker gives /ping 2 s, however many requests are in flight. Here they wait for a
// device that is slow: one that keeps up leaves too few.
func TestPingUnderLoad(t *testing.T) {
	o, err := stack.SlowDevice(t.TempDir(), 250, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, o)
	body := tileRequest("h1", 0, 0).Body()
	// A few more call than must be in flight, for those that are between two requests.
	const callers, inFlight, pings, limit = 288, 256, 20, 2 * time.Second
	done := make(chan struct{})
	var load sync.WaitGroup
	for range callers {
		load.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := s.Post("/invocations", body)
				if err != nil {
					t.Error(err)
					return
				}
				if a.Status != http.StatusOK {
					t.Errorf("under load: %d %s", a.Status, a.Raw)
					return
				}
			}
		})
	}
	defer load.Wait()
	defer close(done)
	var slowest time.Duration
	counted := 0
	for end := time.Now().Add(30 * time.Second); counted < pings && time.Now().Before(end) && !t.Failed(); {
		now, err := s.Metric("histogate_requests_in_flight")
		if err != nil {
			t.Fatal(err)
		}
		took, err := ping(strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Error(err)
		}
		if now >= inFlight {
			slowest = max(slowest, took)
			counted++
		}
	}
	t.Logf("%d pings with %d or more in flight, the slowest %s", counted, inFlight, slowest.Round(time.Millisecond))
	if slowest > limit || counted < pings {
		t.Errorf("%d pings with %d or more in flight, the slowest %s", counted, inFlight, slowest)
	}
}

// The real boto3, with this server as the service: an answer, and as a ModelError a
// request that is at fault and a batch that failed.
func TestBoto3(t *testing.T) {
	o, _ := faultyModel(t)
	o.Env = append(o.Env, "SAGEMAKER_RUNTIME_EMULATION=true", "DEFAULT_MODEL=h1")
	s := start(t, o)
	good := tileRequest("h1", 0, 0)
	bad, fatal := good, good
	bad.ImageData, fatal.ImageData = bad.ImageData[:100], blackTile(t)
	type arguments struct {
		Body        []byte
		ContentType string `json:",omitempty"`
		Accept      string `json:",omitempty"`
	}
	calls, err := json.Marshal([]arguments{
		{good.Body(), "application/json", ""},
		{good.Body(), "application/json", "application/octet-stream"},
		{good.ImageData, "image/png", "application/json"},
		{bad.Body(), "application/json", "application/json"},
		{fatal.Body(), "application/json", "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var answers []struct {
		Status, Attempts int
		Body             []byte
		ContentType      string `json:"content_type"`
		Error            struct {
			Class                                  string
			Error                                  struct{ Code, Message string }
			OriginalMessage, LogStreamArn, Message string
			OriginalStatusCode                     int
		}
	}
	if err := json.Unmarshal(python(t, calls, "reference/sagemaker_client.py", s.URL), &answers); err != nil {
		t.Fatal(err)
	}
	want := post(t, s, "/invocations", good.Body())
	if len(answers) != 5 || want.Status != http.StatusOK {
		t.Fatalf("%d answers, %d %s", len(answers), want.Status, want.Detail)
	}
	var bare [][]float32
	for i, body := range [][]byte{want.Raw, bits(want.Output)} {
		kind := [...]string{"application/json", "application/octet-stream"}[i]
		if a := answers[i]; a.Status != http.StatusOK || !bytes.Equal(a.Body, body) || a.ContentType != kind {
			t.Errorf("call %d: %d, %s, %.100q", i, a.Status, a.ContentType, a.Body)
		}
	}
	if err := json.Unmarshal(answers[2].Body, &bare); err != nil || len(bare) != 1 || !sameBits(bare[0], want.Output) {
		t.Errorf("an image: %d, %v", answers[2].Status, err)
	}
	for i, want := range []struct {
		status int
		code   string
	}{{http.StatusBadRequest, "invalid_image"}, {http.StatusServiceUnavailable, "forward_failed"}} {
		a := answers[3+i]
		var inner struct{ Detail, Message, Code string }
		if err := json.Unmarshal([]byte(a.Error.OriginalMessage), &inner); err != nil {
			t.Fatalf("%+v: %v", a, err)
		}
		if a.Status != http.StatusFailedDependency || a.Error.Class != "ModelError" || a.Error.Error.Code != "ModelError" || a.Attempts != 1 {
			t.Errorf("call %d: %+v", 3+i, a)
		}
		if a.Error.OriginalStatusCode != want.status || inner.Code != want.code || inner.Detail == "" || inner.Detail != inner.Message {
			t.Errorf("call %d: %+v", 3+i, a)
		}
		if !strings.Contains(a.Error.Error.Message, strconv.Itoa(want.status)) || !strings.Contains(a.Error.Error.Message, want.code) || a.Error.LogStreamArn == "" {
			t.Errorf("call %d: %+v", 3+i, a)
		}
	}
}
