package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"histogate/tests/collector"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// A caller's trace, and the span that it sent a request from.
const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
)

// traced is a gateway whose spans go to a collector, in front of a Triton that keeps
// the trace context of the latest inference of a caller's.
func traced(t *testing.T) (*running, *collector.Collector, func() string) {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // ms
	c := collector.Start(t)
	r := run(t, func(cfg *Config) { cfg.TracesEndpoint = c.URL })
	latest := make(chan string, 100)
	config := r.models.list[0].config
	r.answerCallers(func(ctx context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		fields, _ := grpcmetadata.FromIncomingContext(ctx)
		latest <- strings.Join(fields.Get("traceparent"), " ")
		return tritontest.Zeros(config, q), nil
	})
	return r, c, func() string { return <-latest }
}

func named(spans []collector.Span, name string) (found []collector.Span) {
	for _, s := range spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// A request is a part of its caller's trace, with a span for each stage, and Triton is
// told of the one that is its own.
func TestTrace(t *testing.T) {
	r, c, atTriton := traced(t)
	a := r.post(t, "/invocations", goodTile, "traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	until(t, "the spans are there", func() bool { return len(c.Spans(callersTrace)) == 8 })
	spans := c.Spans(callersTrace)
	request := named(spans, "POST /invocations")[0]
	want := map[string]string{
		"http.request.method": "POST", "http.route": "/invocations", "http.response.status_code": "200",
		"histogate.model": "small", "histogate.mode": "embedding", "histogate.request_id": a.header.Get("X-Request-Id"),
	}
	for key, value := range want {
		if request.Attributes[key] != value {
			t.Errorf("%s is %q, not %q", key, request.Attributes[key], value)
		}
	}
	if request.Parent != callersSpan || !request.Server || request.Failed || request.Service != "histogate" {
		t.Errorf("the request's span is %+v", request)
	}
	var order []string
	for _, s := range spans {
		if s.ID == request.ID {
			continue
		}
		order = append(order, s.Name)
		parent := request
		if s.Name == "transform" {
			parent = named(spans, "triton")[0]
		}
		if s.Parent != parent.ID || s.Start.Before(parent.Start) || s.End.After(parent.End) || s.End.Before(s.Start) {
			t.Errorf("%s is no part of %s: %+v, %+v", s.Name, parent.Name, s, parent)
		}
	}
	if !slices.Equal(order, []string{"read", "wait", "decode", "window", "triton", "transform", "reply"}) {
		t.Errorf("the stages are %v", order)
	}
	if got, want := atTriton(), "00-"+callersTrace+"-"+named(spans, "triton")[0].ID+"-01"; got != want || !named(spans, "triton")[0].ToElsewhere {
		t.Errorf("Triton was told %q, not %q", got, want)
	}
	if line := r.lines(t, "answered")[0]; line["trace_id"] != callersTrace {
		t.Errorf("the log has %v", line)
	}
}

// A caller who does not want a trace gets none, and one who sends nothing of use gets
// one of its own; probes never have one.
func TestTraceIsWanted(t *testing.T) {
	r, c, atTriton := traced(t)
	r.post(t, "/invocations", goodTile, "traceparent", "00-"+callersTrace+"-"+callersSpan+"-00")
	if got := atTriton(); got != "" {
		t.Errorf("Triton was told %q", got)
	}
	for range 3 {
		do(t, r.request(t, http.MethodGet, "/ping", ""))
	}
	r.post(t, "/invocations", goodTile, "traceparent", "00-no-trace")
	fields := strings.Split(atTriton(), "-")
	if len(fields) != 4 || len(fields[1]) != 32 || fields[1] == callersTrace {
		t.Fatalf("Triton was told %q", fields)
	}
	until(t, "the spans are there", func() bool { return len(c.Spans(fields[1])) == 8 })
	if request := named(c.Spans(fields[1]), "POST /invocations")[0]; request.Parent != "" {
		t.Errorf("the request's span is %+v", request)
	}
	if n := c.Len(); n != 8 {
		t.Errorf("%d spans came in all", n)
	}
}

// What failed, and in which stage, is told of a failure; only one of the service is an
// error of its span.
func TestTraceOfFailures(t *testing.T) {
	r, c, _ := traced(t)
	r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Internal, "no")
	})
	for i, test := range []struct {
		body, code, stage string
		failed            bool
	}{
		{"{", "invalid_request", "decode", false},
		{goodTile, "forward_failed", "triton", true},
	} {
		trace := fmt.Sprintf("%032x", i+1)
		r.post(t, "/invocations", test.body, "traceparent", "00-"+trace+"-"+callersSpan+"-01")
		until(t, "the request's span is there", func() bool { return named(c.Spans(trace), "POST /invocations") != nil })
		s := named(c.Spans(trace), "POST /invocations")[0]
		if s.Attributes["error.type"] != test.code || s.Attributes["histogate.stage"] != test.stage || s.Failed != test.failed {
			t.Errorf("%s: %+v", test.code, s)
		}
	}
}

// The tiles of a call have stages of their own, which say whose they are.
func TestTraceOfBatch(t *testing.T) {
	r, c, _ := traced(t)
	r.post(t, "/api/batch/small", fmt.Sprintf(`{"mode":"embedding","requests":[%s,{},%s]}`, goodTile, goodTile), "traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	until(t, "the spans are there", func() bool { return len(named(c.Spans(callersTrace), "POST /api/batch/:model")) == 1 })
	var tiles []string
	for _, s := range named(c.Spans(callersTrace), "triton") {
		tiles = append(tiles, s.Attributes["histogate.tile"])
	}
	slices.Sort(tiles)
	if !slices.Equal(tiles, []string{"0", "2"}) {
		t.Errorf("the tiles in Triton are %v", tiles)
	}
	if n := len(named(c.Spans(callersTrace), "decode")); n != 4 { // the document, and each tile
		t.Errorf("%d spans of decoding", n)
	}
}

// A collector that is not there takes nothing from requests, delays the end little, and
// is told of in the log.
func TestTraceWithoutCollector(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // ms
	r := run(t, func(cfg *Config) { cfg.TracesEndpoint = "http://127.0.0.1:1" })
	for range 10 {
		if a := r.post(t, "/invocations", goodTile); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.raw)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	began := time.Now()
	r.Shutdown()
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	r.ended <- nil // for the end of the test
	until(t, "the loss is logged", func() bool {
		return len(r.lines(t, "traces are lost: the collector does not take them; see to OTEL_EXPORTER_OTLP_ENDPOINT")) > 0
	})
	if took > tracesEnd+time.Second {
		t.Errorf("the end took %s", took)
	}
}

// Where traces are off, a request pays nothing for them.
func TestNoTraces(t *testing.T) {
	r := run(t, nil)
	if r.tracing != nil {
		t.Fatal("traces are on by default")
	}
	request := newTrace("id")
	request.spans = r.tracing.begin(nil, request)
	if n := testing.AllocsPerRun(100, func() {
		request.end(stageWindow)
		if request.spans.enterTriton(t.Context()) != t.Context() {
			t.Error("the context is another")
		}
		request.within(stageTransform, request.mark)
		request.end(stageTriton)
		request.spans.end(request, answer{status: 200})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What a request that is recorded pays, the sending included.
func BenchmarkTrace(b *testing.B) {
	c := collector.Start(b)
	tracing, err := newTracing(b.Context(), c.URL, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	app := fiber.New()
	ctx := app.AcquireCtx(new(fasthttp.RequestCtx))
	ctx.Request().Header.Set("traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	b.ReportAllocs()
	for b.Loop() {
		t := newTrace("id")
		t.spans = tracing.begin(ctx, t)
		for _, s := range []stage{stageRead, stageWait, stageDecode, stageWindow} {
			t.end(s)
		}
		t.spans.enterTriton(b.Context())
		t.within(stageTransform, time.Now())
		t.end(stageTriton)
		t.end(stageReply)
		t.spans.end(t, answer{status: http.StatusOK})
	}
	tracing.end()
}
