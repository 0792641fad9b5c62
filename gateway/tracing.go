package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"histogate/tritonclient"
)

// serviceName is what spans are said to be of, unless OTEL_SERVICE_NAME says otherwise.
const serviceName = "histogate"

// tracesEnd is how long the end may take to send what a collector has not got yet.
const tracesEnd = 2 * time.Second

// tracing makes spans of requests and sends them to a collector. There is none, nil,
// where no collector is configured.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   oteltrace.Tracer
}

// newTracing sends to the collector at a URL. All else is as OpenTelemetry's own
// variables have it: headers, certificates, sampler, attributes of the resource.
func newTracing(ctx context.Context, endpoint string, log *slog.Logger) (*tracing, error) {
	of, err := tracesResource(ctx)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(tracesURL(endpoint)))
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT=%q: %w", endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(&loggedExporter{SpanExporter: exporter, log: log}), sdktrace.WithResource(of))
	return &tracing{provider, provider.Tracer("histogate/gateway")}, nil
}

// tracesResource is what spans are said to be of.
func tracesResource(ctx context.Context) (*resource.Resource, error) {
	const variable = "OTEL_RESOURCE_ATTRIBUTES"
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(semconv.ServiceName(serviceName)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("%s=%q: must be name=value, separated by commas: %w", variable, os.Getenv(variable), err)
	}
	return of, nil
}

// checkTraces tells what is wrong in OpenTelemetry's own variables that say which
// requests are traced, and as what. The SDK would trace all of them instead.
func (c *Config) checkTraces(ctx context.Context) error {
	if c.TracesEndpoint == "" {
		return nil
	}
	_, err := tracesResource(ctx)
	return errors.Join(checkSampler(), err)
}

func checkSampler() error {
	const variable = "OTEL_TRACES_SAMPLER"
	samplers := []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
	value, argument := os.Getenv(variable), os.Getenv(variable+"_ARG")
	sampler := strings.ToLower(strings.TrimSpace(value))
	if sampler != "" && !slices.Contains(samplers, sampler) {
		return fmt.Errorf("%s=%q: must be one of %s", variable, value, strings.Join(samplers, ", "))
	}
	ratio, err := strconv.ParseFloat(strings.TrimSpace(argument), 64)
	if strings.HasSuffix(sampler, "traceidratio") && argument != "" && (err != nil || !(ratio >= 0 && ratio <= 1)) {
		return fmt.Errorf("%s_ARG=%q: must be a number from 0 to 1, the share of requests that are traced", variable, argument)
	}
	return nil
}

// readEndpoint reads OTEL_EXPORTER_OTLP_ENDPOINT.
func readEndpoint(c *Config, value string) error {
	u, err := url.Parse(value)
	if value != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return errors.New("must be the URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318")
	}
	if value != "" && u.User != nil { // the exporter would not send them, and Triton's are for all to see in its arguments
		return errors.New("must hold no user and password; what the collector asks for goes into OTEL_EXPORTER_OTLP_HEADERS")
	}
	c.TracesEndpoint = value
	return nil
}

// tracesURL is where a collector takes spans.
func tracesURL(endpoint string) string { return strings.TrimSuffix(endpoint, "/") + "/v1/traces" }

// tritonTraces are options that have a Triton send its own spans, of those requests
// alone that are traced here.
func tritonTraces(endpoint string) []string {
	return []string{
		"--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=0",
		"--trace-config=opentelemetry,url=" + tracesURL(endpoint),
		"--trace-config=opentelemetry,resource=service.name=triton",
	}
}

// end sends what is left.
func (t *tracing) end() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracesEnd)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // what could not be sent is logged
}

// loggedExporter tells of spans that are lost in the log of the gateway.
type loggedExporter struct {
	sdktrace.SpanExporter
	log *slog.Logger

	mu   sync.Mutex
	lost int       // spans, since it was told of last
	told time.Time // when that was
}

// lossesEvery is how often lost spans are told of, at most.
const lossesEvery = time.Minute

// ExportSpans implements [sdktrace.SpanExporter].
func (e *loggedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.lost += len(spans); time.Since(e.told) >= lossesEvery {
			e.log.Warn("traces are lost: the collector does not take them; see to OTEL_EXPORTER_OTLP_ENDPOINT", "spans", e.lost, "error", err)
			e.lost, e.told = 0, time.Now()
		}
	}
	return nil
}

// begin begins the span of a request, as a part of its caller's trace where that sent
// one. It is nil where the request is not sampled.
func (t *tracing) begin(c *fiber.Ctx, request *trace) *spans {
	if t == nil || isProbe(c.Path()) {
		return nil
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), requestHeader{&c.Request().Header})
	_, span := t.tracer.Start(ctx, "", oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithTimestamp(request.start))
	if !span.IsRecording() {
		return nil
	}
	return &spans{tracer: t.tracer, request: span, method: strings.Clone(c.Method())}
}

// spans are those of one request, or of one tile of a call of many; nil where they are
// not wanted.
type spans struct {
	tracer  oteltrace.Tracer
	request oteltrace.Span // of the whole request
	method  string
	of      []attribute.KeyValue // of each stage's

	triton    oteltrace.Span // while the request is inside Triton
	transform [2]time.Time   // when it began and ended there
}

// tile is for the stages of the i-th tile of a call.
func (s *spans) tile(i int) *spans {
	if s == nil {
		return nil
	}
	return &spans{tracer: s.tracer, request: s.request, of: []attribute.KeyValue{attribute.Int("histogate.tile", i)}}
}

// id is that of the trace, empty where there is none.
func (s *spans) id() string {
	if s == nil {
		return ""
	}
	return s.request.SpanContext().TraceID().String()
}

// enterTriton begins the span of the stage that takes place in Triton, and returns a
// context that has Triton make its own spans parts of it.
func (s *spans) enterTriton(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	s.triton = s.start(s.request, stageTriton, time.Now(), oteltrace.WithSpanKind(oteltrace.SpanKindClient))
	fields := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(oteltrace.ContextWithSpan(ctx, s.triton), fields)
	return tritonclient.WithTraceContext(ctx, fields)
}

// stage makes the span of a stage that has ended.
func (s *spans) stage(name stage, from, to time.Time) {
	switch {
	case s == nil:
	case name == stageTransform: // several inputs, one after the other
		if s.transform[0].IsZero() {
			s.transform[0] = from
		}
		s.transform[1] = to
	case name == stageTriton && s.triton != nil:
		if !s.transform[0].IsZero() {
			s.start(s.triton, stageTransform, s.transform[0]).End(oteltrace.WithTimestamp(s.transform[1]))
		}
		s.triton.End(oteltrace.WithTimestamp(to))
		s.triton, s.transform = nil, [2]time.Time{}
	default:
		s.start(s.request, name, from).End(oteltrace.WithTimestamp(to))
	}
}

func (s *spans) start(parent oteltrace.Span, name stage, at time.Time, options ...oteltrace.SpanStartOption) oteltrace.Span {
	options = append(options, oteltrace.WithTimestamp(at), oteltrace.WithAttributes(s.of...))
	_, span := s.tracer.Start(oteltrace.ContextWithSpan(context.Background(), parent), name.String(), options...)
	return span
}

// end ends the span of the request.
func (s *spans) end(t *trace, a answer) {
	if s == nil {
		return
	}
	s.request.SetName(strings.TrimSpace(s.method + " " + t.route))
	s.request.SetAttributes(semconv.HTTPRequestMethodKey.String(s.method), semconv.HTTPRoute(t.route), semconv.HTTPResponseStatusCode(a.status),
		attribute.String("histogate.request_id", t.id), attribute.String("histogate.model", t.model), attribute.String("histogate.mode", t.mode))
	if a.code != "" {
		s.request.SetAttributes(semconv.ErrorTypeKey.String(string(a.code)), attribute.String("histogate.stage", t.last.String()))
	}
	if a.status >= fiber.StatusInternalServerError { // others are the caller's
		s.request.SetStatus(codes.Error, string(a.code))
	}
	s.request.End()
}

// requestHeader has W3C's trace context read from a request.
type requestHeader struct{ *fasthttp.RequestHeader }

// Get implements [propagation.TextMapCarrier].
func (h requestHeader) Get(key string) string { return string(h.Peek(key)) }

// Set implements [propagation.TextMapCarrier]; nothing is written.
func (requestHeader) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (h requestHeader) Keys() (names []string) {
	for name := range h.All() {
		names = append(names, string(name))
	}
	return names
}
