package observe

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"histogate/tests/collector"
	"histogate/tests/stack"
)

// A caller's trace goes on through the gateway and through Triton, whose own spans are
// parts of the gateway's: the trace context arrives there. What a caller does not want
// traced is traced by neither.
func TestTraceThroughTriton(t *testing.T) {
	const trace, other, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7"
	c := collector.Start(t)
	s := start(t, "MODELS=h1", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY=100")
	body := stack.Tile{ImageData: stack.ReadTile(stack.TilePaths()[0]), SlideName: "S", Width: 224, Height: 224, ModelName: "h1", Mode: "embedding"}.Body()
	for _, header := range []string{"00-" + other + "-" + caller + "-00", "00-" + trace + "-" + caller + "-01"} {
		if status, err := post(s.URL+"/invocations", body, "traceparent", header); err != nil || status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	of := func(service, name string) (found collector.Span) {
		i := slices.IndexFunc(c.Spans(trace), func(s collector.Span) bool { return s.Service == service && s.Name == name })
		if i >= 0 {
			found = c.Spans(trace)[i]
		}
		return found
	}
	eventually(t, "spans of Triton's are in the trace", 20*time.Second, func() bool { return of("triton", "compute").ID != "" && of("histogate", "triton").ID != "" })
	for _, s := range c.Spans(trace) {
		t.Logf("%-10s %-18s %8.3f ms", s.Service, s.Name, float64(s.End.Sub(s.Start).Microseconds())/1000)
	}
	// Outermost first.
	path := []collector.Span{of("histogate", "POST /invocations"), of("histogate", "triton"), of("triton", "InferRequest"), of("triton", "h1"), of("triton", "compute")}
	if path[0].Parent != caller {
		t.Errorf("the request's span is %+v", path[0])
	}
	for i, inner := range path[1:] {
		if inner.ID == "" || inner.Parent != path[i].ID {
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
	if n := c.Len(); n != len(c.Spans(trace)) {
		t.Errorf("%d spans are of no request", n-len(c.Spans(trace)))
	}
}
