package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
)

func TestExecutionParameters(t *testing.T) {
	for _, test := range []struct{ inFlight, bytes, transforms, megabytes int }{
		{1024, 26214400, 4, 25},
		{2, 26214400, 2, 25},
		{1024, 1 << 20, 100, 1},
		{1024, 1000, 100, 1}, // no less: 0 is without a bound
		{1024, 3<<20 - 1, 50, 2},
		{1024, 400 << 20, 1, 100},
	} {
		r := run(t, func(c *Config) { c.MaxInFlight, c.MaxBodyBytes = test.inFlight, test.bytes })
		want := fmt.Sprintf(`{"MaxConcurrentTransforms":%d,"BatchStrategy":"SINGLE_RECORD","MaxPayloadInMB":%d}`, test.transforms, test.megabytes)
		if a := do(t, r.request(t, http.MethodGet, "/execution-parameters", "")); a.status != http.StatusOK || a.raw != want {
			t.Errorf("%+v: %d %s, want %s", test, a.status, a.raw, want)
		}
	}
}

// The emulated runtime hands on a success as it is and makes one error of every
// failure; without the setting there is none.
func TestRuntimeEmulation(t *testing.T) {
	const path = "/endpoints/any-name/invocations"
	wantFailure(t, run(t, nil).post(t, path, goodTile), http.StatusNotFound, CodeNotFound)

	r := run(t, func(c *Config) { c.RuntimeEmulation, c.MaxBodyBytes = true, 2000 })
	if a, alone := r.post(t, path, goodTile), r.post(t, "/invocations", goodTile); a.status != http.StatusOK || a.raw != alone.raw {
		t.Errorf("%d %s, want %s", a.status, a.raw, alone.raw)
	}
	r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Internal, inside)
	})
	for _, test := range []struct {
		body   string
		status int
		code   Code
		party  string
	}{
		{replaced(`"x":1`, `"x":"1"`), http.StatusBadRequest, "invalid_request", "client"},
		{replaced(`"small"`, `"nope"`), http.StatusNotFound, CodeUnknownModel, "client"},
		{strings.Repeat(" ", 3000), http.StatusRequestEntityTooLarge, CodeBodyTooLarge, "client"},
		{goodTile, http.StatusServiceUnavailable, CodeForwardFailed, "server"},
	} {
		response, err := http.DefaultClient.Do(r.request(t, http.MethodPost, path, test.body))
		if err != nil {
			t.Fatal(err)
		}
		var outer struct {
			Message, OriginalMessage, LogStreamArn string
			OriginalStatusCode                     int
		}
		var inner failure
		if err := json.NewDecoder(response.Body).Decode(&outer); err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if err := json.Unmarshal([]byte(outer.OriginalMessage), &inner); err != nil {
			t.Fatalf("%q: %v", outer.OriginalMessage, err)
		}
		if response.StatusCode != http.StatusFailedDependency || response.Header.Get("X-Amzn-Errortype") != "ModelError" || response.Header.Get("Retry-After") != "" ||
			response.Header.Get("X-Amzn-Requestid") != inner.RequestID {
			t.Errorf("%d %v", response.StatusCode, response.Header)
		}
		if outer.OriginalStatusCode != test.status || inner.Code != test.code || inner.Detail == "" || (inner.RetryAfter > 0) != (test.party == "server") {
			t.Errorf("%+v, %+v; want %d %s", outer, inner, test.status, test.code)
		}
		if want := fmt.Sprintf(`Received %s error (%d) from primary with message "%s"`, test.party, test.status, outer.OriginalMessage); outer.Message != want {
			t.Errorf("the message is %s, want %s", outer.Message, want)
		}
		if !strings.HasPrefix(outer.LogStreamArn, "arn:aws:logs:") || !strings.HasSuffix(outer.LogStreamArn, "/any-name") {
			t.Errorf("the log stream is %q", outer.LogStreamArn)
		}
	}
}

func TestSafePorts(t *testing.T) {
	for value, want := range map[string]portRange{
		"": {}, "5000-5003": {5000, 5003}, "1-65535": {1, 65535}, "5000 - 6000": {5000, 6000},
	} {
		if c, err := read(nil, map[string]string{"SAGEMAKER_SAFE_PORT_RANGE": value}); err != nil || c.SafePorts != want {
			t.Errorf("%q: %v, %v", value, c.SafePorts, err)
		}
	}
	for _, value := range []string{"5000", "5000-", "-5000", "5000-5002", "5003-5000", "0-9", "65534-65536", "a-b", "5000-5002-5004", "5000,5002"} {
		if _, err := read(nil, map[string]string{"SAGEMAKER_SAFE_PORT_RANGE": value}); err == nil || !strings.Contains(err.Error(), "SAGEMAKER_SAFE_PORT_RANGE") {
			t.Errorf("%q: %v", value, err)
		}
	}
	// Of a range all are found that are free, whatever is taken on any address.
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	inner := portOf(taken)
	ports := portRange{inner - 6, inner + 6}
	found, err := ports.free(3)
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range found {
		if port < ports.first || port > ports.last || port == inner || i > 0 && port == found[i-1] {
			t.Errorf("%v of %v, of which %d is taken", found, ports, inner)
		}
	}
	if found, err := (portRange{inner, inner}).free(1); err == nil || !strings.Contains(err.Error(), "SAGEMAKER_SAFE_PORT_RANGE") {
		t.Errorf("%v is taken and found free, or %v", found, err)
	}
}

// The port of the metrics is one of the range, where there is one, unless it is set.
func TestMetricsPortIsSafe(t *testing.T) {
	for _, test := range []struct {
		env  map[string]string
		want int
	}{
		{nil, 9090},
		{map[string]string{"SAGEMAKER_SAFE_PORT_RANGE": "5000-6000"}, 0},
		{map[string]string{"SAGEMAKER_SAFE_PORT_RANGE": "5000-6000", "PORT": "9090"}, 0},
		{map[string]string{"SAGEMAKER_SAFE_PORT_RANGE": "5000-6000", "METRICS_PORT": "9090"}, 9090},
	} {
		if c, err := read(nil, test.env); err != nil || c.MetricsPort != test.want {
			t.Errorf("%v: %+v, %v", test.env, c, err)
		}
	}
	if c, err := read([]string{"-metrics-port", "9090"}, map[string]string{"SAGEMAKER_SAFE_PORT_RANGE": "5000-6000"}); err != nil || c.MetricsPort != 9090 {
		t.Errorf("by a flag: %+v, %v", c, err)
	}
	taken, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	inner := portOf(taken)
	ports := portRange{inner - 6, inner + 6}
	l, err := ports.listenMetrics("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if port := portOf(l); port < ports.first || port > ports.last || port == inner {
		t.Errorf("%d is not a free port of %v", port, ports)
	}
	if l, err := (portRange{inner, inner}).listenMetrics("127.0.0.1", 0); err == nil || !strings.Contains(err.Error(), "SAGEMAKER_SAFE_PORT_RANGE") {
		t.Errorf("%v, %v", l, err)
	}
	for _, r := range []portRange{{}, {1, 5}} {
		if l, err := r.listenMetrics("127.0.0.1", inner); err == nil || !strings.Contains(err.Error(), "METRICS_PORT="+strconv.Itoa(inner)) {
			t.Errorf("a port that is set and taken: %v, %v", l, err)
		}
	}
}
