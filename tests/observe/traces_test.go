package observe

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"histogate/tests/collector"
	"histogate/tests/stack"
)

// tracesTried is how many requests may be traced until one has Triton's spans: it loses
// those of the first that it traces, now and then, on a machine that is busy.
const tracesTried = 5

// A caller's trace goes on through the gateway and through Triton, whose own spans are
// parts of the gateway's: the trace context arrives there. What a caller does not want
// traced is traced by neither.
func TestTraceThroughTriton(t *testing.T) {
	const other, caller = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7"
	c := collector.Start(t)
	s := start(t, "MODELS=h1", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY=100")
	body := stack.Tile{ImageData: stack.ReadTile(stack.TilePaths()[0]), SlideName: "S", Width: 224, Height: 224, ModelName: "h1", Mode: "embedding"}.Body()
	send := func(trace, flags string) {
		if status, err := post(s.URL+"/invocations", body, "traceparent", "00-"+trace+"-"+caller+"-"+flags); err != nil || status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	send(other, "00")
	var spans, path []collector.Span
	traced := 0 // spans of the requests that were to be traced
	for try := 1; path == nil; try++ {
		if try > tracesTried {
			t.Fatalf("spans are missing in each of %d traces; in the latest are %+v", tracesTried, spans)
		}
		trace := fmt.Sprintf("%032x", try)
		send(trace, "01")
		for end := time.Now().Add(5 * time.Second); path == nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			spans = c.Spans(trace)
			path = pathOf(spans)
		}
		traced += len(spans)
	}
	for _, s := range spans {
		t.Logf("%-10s %-18s %8.3f ms", s.Service, s.Name, float64(s.End.Sub(s.Start).Microseconds())/1000)
	}
	if path[0].Parent != caller {
		t.Errorf("the request's span is %+v", path[0])
	}
	for i, inner := range path[1:] {
		if inner.Parent != path[i].ID {
			t.Errorf("%+v is no part of %+v", inner, path[i])
		}
	}
	if id := path[3].Attributes["triton.request_id"]; id == "" || id != path[0].Attributes["histogate.request_id"] {
		t.Errorf("Triton's request id is %q, the gateway's %q", id, path[0].Attributes["histogate.request_id"])
	}
	if spans := c.Spans(other); spans != nil {
		t.Errorf("what was not to be traced is: %+v", spans)
	}
	// Nor are the gateway's own inferences, its canaries.
	if n := c.Len(); n != traced {
		t.Errorf("%d spans are of no request", n-traced)
	}
}

// pathOf are the spans of a request that lie in each other, the outermost first; nil while
// one of them is missing. A span is sent when it has ended: when the outermost of the
// gateway's and of Triton's are there, all are.
func pathOf(spans []collector.Span) (path []collector.Span) {
	for _, want := range [][2]string{{"histogate", "POST /invocations"}, {"histogate", "triton"}, {"triton", "InferRequest"}, {"triton", "h1"}, {"triton", "compute"}} {
		i := slices.IndexFunc(spans, func(s collector.Span) bool { return s.Service == want[0] && s.Name == want[1] })
		if i < 0 {
			return nil
		}
		path = append(path, spans[i])
	}
	return path
}
