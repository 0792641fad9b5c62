// Package collector takes spans as a collector of OpenTelemetry's does, by OTLP over
// HTTP, for tests to look at.
package collector

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Span is one that has arrived.
type Span struct {
	Service, Name       string
	Trace, ID, Parent   string // in hexadecimal
	Start, End          time.Time
	Failed              bool
	Attributes          map[string]string
	Server, ToElsewhere bool // its kind: of a request that came, or that was sent
}

// Collector is a running one.
type Collector struct {
	URL string // for OTEL_EXPORTER_OTLP_ENDPOINT

	mu       sync.Mutex
	spans    []Span
	problems []string
}

// Start starts a collector that ends with the test, which fails if it was sent
// something that is no OTLP.
func Start(t testing.TB) *Collector {
	c := new(Collector)
	server := httptest.NewServer(http.HandlerFunc(c.take))
	c.URL = server.URL
	t.Cleanup(func() {
		server.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, problem := range c.problems {
			t.Errorf("the collector was sent what is no OTLP: %s", problem)
		}
	})
	return c
}

// Spans are those that have arrived of a trace, in the order of their start.
func (c *Collector) Spans(trace string) (spans []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Trace == trace {
			spans = append(spans, s)
		}
	}
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return spans
}

// Len is how many spans have arrived.
func (c *Collector) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.spans)
}

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	request := new(tracepb.ExportTraceServiceRequest)
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err != nil:
	case r.Method != http.MethodPost || r.URL.Path != "/v1/traces":
		err = fmt.Errorf("%s %s", r.Method, r.URL.Path)
	case media == "application/x-protobuf":
		err = proto.Unmarshal(body, request)
	case media == "application/json":
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(hexID.ReplaceAllFunc(body, asBase64), request)
	default:
		err = fmt.Errorf("a body of type %q", media)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.problems = append(c.problems, err.Error())
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.keep(request)
}

// hexID is an id in a document: OTLP has them in hexadecimal, where protobuf's JSON has
// bytes in base64.
var hexID = regexp.MustCompile(`"(?:traceId|spanId|parentSpanId)":"([0-9a-f]+)"`)

func asBase64(field []byte) []byte {
	digits := hexID.FindSubmatchIndex(field)
	id, err := hex.DecodeString(string(field[digits[2]:digits[3]]))
	if err != nil {
		return field // and the document is refused
	}
	return slices.Concat(field[:digits[2]], []byte(base64.StdEncoding.EncodeToString(id)), field[digits[3]:])
}

func (c *Collector) keep(request *tracepb.ExportTraceServiceRequest) {
	for _, of := range request.GetResourceSpans() {
		service := attributes(of.GetResource().GetAttributes())["service.name"]
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, Span{
					Service: service, Name: s.GetName(),
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
					Failed: s.GetStatus().GetCode() == 2, Attributes: attributes(s.GetAttributes()),
					Server: s.GetKind() == 2, ToElsewhere: s.GetKind() == 3,
				})
			}
		}
	}
}

func attributes(pairs []*commonpb.KeyValue) map[string]string {
	named := map[string]string{}
	for _, pair := range pairs {
		switch v := pair.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_IntValue:
			named[pair.GetKey()] = fmt.Sprint(v.IntValue)
		default:
			named[pair.GetKey()] = pair.GetValue().GetStringValue()
		}
	}
	return named
}
