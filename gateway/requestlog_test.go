package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
)

// lines are those of the log with a message.
func (r *running) lines(t *testing.T, message string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(r.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("a line that is not JSON: %s", line)
		}
		if entry["msg"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// Each request has one line, with its id and the time of each stage, and without what
// it held.
func TestRequestLine(t *testing.T) {
	r := run(t, nil)
	good := r.post(t, "/invocations", strings.Replace(goodTile, `"S1"`, `"a-slide"`, 1))
	bad := r.post(t, "/invocations", `{"image_data":"AAAA"}`)
	do(t, r.request(t, http.MethodGet, "/ping", ""))
	answered, failed := r.lines(t, "answered"), r.lines(t, "failed")
	if len(answered) != 1 || len(failed) != 1 {
		t.Fatalf("%d requests answered and %d failed are in the log:\n%s", len(answered), len(failed), r.log)
	}
	for _, key := range []string{"read_ms", "wait_ms", "decode_ms", "window_ms", "transform_ms", "triton_ms", "reply_ms", "ms"} {
		if _, ok := answered[0][key].(float64); !ok {
			t.Errorf("%s is %v", key, answered[0][key])
		}
	}
	if id := good.header.Get("X-Request-Id"); id == "" || answered[0]["request_id"] != id || answered[0]["model"] != "small" || answered[0]["mode"] != "embedding" {
		t.Errorf("request %s has %v", id, answered[0])
	}
	if failed[0]["request_id"] != bad.RequestID || failed[0]["code"] != "invalid_request" {
		t.Errorf("request %s has %v", bad.RequestID, failed[0])
	}
	for _, payload := range []string{"a-slide", "AAAA", goodTile[20:60]} {
		if strings.Contains(r.log.String(), payload) {
			t.Errorf("%q is in the log:\n%s", payload, r.log)
		}
	}
}

// At a high rate lines are left out, but none of a failure of the service, and how many
// they were stands in the log and in the metrics.
func TestRequestLinesAreSampled(t *testing.T) {
	const perSecond, sent = 3, 100
	r := run(t, func(c *Config) { c.LogRequestsPerSecond = perSecond })
	for range sent {
		r.post(t, "/invocations", goodTile)
		r.post(t, "/invocations", "{")
	}
	r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Unavailable, "Exceeds maximum queue size")
	})
	for range sent {
		r.post(t, "/invocations", goodTile)
	}
	missing := func() (n int) {
		for _, message := range []string{"answered", "failed", "lines of requests were left out"} {
			for _, line := range r.lines(t, message) {
				left, _ := line["left_out"].(float64)
				n += int(left)
			}
		}
		return n
	}
	service, others := 0, len(r.lines(t, "answered"))
	for _, line := range r.lines(t, "failed") {
		if line["status"] == 503.0 {
			service++
		} else {
			others++
		}
	}
	if service != sent {
		t.Errorf("%d of %d failures of the service are in the log", service, sent)
	}
	if others < perSecond || others > 2*sent/2 || missing() != 2*sent-others {
		t.Errorf("%d other requests are in the log, which says that %d are not, of %d", others, missing(), 2*sent)
	}
	if n := r.counted(t, "histogate_log_lines_left_out_total"); n != float64(2*sent-others) {
		t.Errorf("%v lines are counted as left out, %d were", n, 2*sent-others)
	}
}

// What is left out last is told at the end.
func TestRequestLinesLeftOutAtTheEnd(t *testing.T) {
	r := run(t, func(c *Config) { c.LogRequestsPerSecond = 0 })
	for range 5 {
		r.post(t, "/invocations", goodTile)
	}
	http.DefaultClient.CloseIdleConnections()
	r.Shutdown()
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
	r.ended <- nil // for the end of the test
	until(t, "the end is logged", func() bool { return len(r.lines(t, "lines of requests were left out")) == 1 })
	if line := r.lines(t, "lines of requests were left out")[0]; line["left_out"] != 5.0 || len(r.lines(t, "answered")) != 0 {
		t.Errorf("the log is\n%s", r.log)
	}
}
