package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
)

// families are the gateway's metrics by name, without those of Go and the process.
func (g *Gateway) families(t testing.TB) map[string]*dto.MetricFamily {
	t.Helper()
	gathered, err := g.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]*dto.MetricFamily{}
	for _, f := range gathered {
		if strings.HasPrefix(f.GetName(), "histogate_") {
			named[f.GetName()] = f
		}
	}
	return named
}

// counted adds up the counters of a name that have these labels, given as name, value
// pairs.
func (g *Gateway) counted(t testing.TB, name string, labels ...string) (sum float64) {
	t.Helper()
	for _, series := range g.families(t)[name].GetMetric() {
		matches := 0
		for i := 0; i < len(labels); i += 2 {
			if slices.ContainsFunc(series.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == labels[i] && l.GetValue() == labels[i+1] }) {
				matches++
			}
		}
		if 2*matches == len(labels) {
			sum += series.GetCounter().GetValue()
		}
	}
	return sum
}

// exercised is a gateway that has counted something of each kind.
func exercised(t *testing.T) *running {
	t.Helper()
	r := run(t, func(c *Config) { c.RuntimeEmulation = true })
	r.post(t, "/api/batch/small", fmt.Sprintf(`{"mode":"embedding","requests":[%s,{}]}`, goodTile))
	r.post(t, "/invocations", goodTile)
	r.post(t, "/invocations", "{")
	return r
}

// What a caller sends never becomes the value of a label, so the number of series has a
// bound that no caller moves.
func TestLabelsAreBounded(t *testing.T) {
	r := exercised(t)
	hostile := func(i int) {
		word := fmt.Sprintf("hostile-%d", i)
		escaped := url.PathEscape(word + "\"}\n\xff")
		for _, path := range []string{
			"/" + escaped, "/api/embed/" + escaped, "/api/predict/" + escaped, "/api/batch/" + escaped,
			"/endpoints/" + escaped + "/invocations", "/api/embed/small/" + escaped, "/invocations?model_name=" + escaped + "&mode=" + escaped,
		} {
			r.post(t, path, goodTile)
			r.post(t, path, "no image", "Content-Type", "image/png", "X-Model-Name", word, "X-Mode", word)
			do(t, r.request(t, http.MethodGet, path, ""))
			do(t, r.request(t, fmt.Sprintf("HOSTILE%d", i), path, ""))
		}
		for _, field := range []string{"model_name", "mode", "slide_name", word} {
			r.post(t, "/invocations", strings.Replace(goodTile, "{", fmt.Sprintf(`{%q:%q,`, field, word), 1), "X-Request-Id", word)
			// The last of two counts.
			r.post(t, "/invocations", fmt.Sprintf(`%s,%q:%q}`, strings.TrimSuffix(goodTile, "}"), field, word))
		}
		do(t, r.request(t, http.MethodGet, "/ping?model="+escaped, ""))
		do(t, r.request(t, http.MethodGet, "/api/metadata/"+escaped, ""))
		r.post(t, "/api/batch/small", fmt.Sprintf(`{"mode":%q,"requests":[%s]}`, word, goodTile))
		r.post(t, "/api/batch/small", fmt.Sprintf(`{"mode":"embedding","requests":[{"model_name":%q}]}`, word))
		_, _ = r.Forward(t.Context(), word, "embedding", nil)
	}
	count := func() (series int) {
		for _, f := range r.families(t) {
			series += len(f.GetMetric())
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if strings.Contains(strings.ToLower(l.GetValue()), "hostile") {
						t.Errorf("%s has %s=%q", f.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
		return series
	}
	hostile(0)
	once := count()
	for i := range 20 {
		hostile(i + 1)
	}
	if n := count(); n != once {
		t.Errorf("%d series after one caller's names, %d after those of 21", once, n)
	}
}

// The table of metrics says of each what the code says: name, type, labels, meaning.
func TestMetricsTable(t *testing.T) {
	kinds := map[dto.MetricType]string{dto.MetricType_COUNTER: "counter", dto.MetricType_GAUGE: "gauge", dto.MetricType_HISTOGRAM: "histogram"}
	r, want := exercised(t), map[string]string{}
	rna, err := readModel(r.cfg, "../model_repository/m-optimus", "m-optimus")
	if err != nil {
		t.Fatal(err)
	}
	r.metrics.model(rna) // which has a cache
	for name, f := range r.families(t) {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		want[name] = fmt.Sprintf("| `%s` | %s | %s | %s |", name, kinds[f.GetType()], strings.Join(labels, ", "), f.GetHelp())
	}
	text, err := os.ReadFile("../deploy/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `histogate_"), "`"); ok && strings.HasPrefix(line, "| `histogate_") {
			have["histogate_"+name] = strings.TrimSpace(line)
		}
	}
	for name, row := range want {
		if have[name] != row {
			t.Errorf("deploy/metrics.md has\n%s\nand should have\n%s", have[name], row)
		}
	}
	for name := range have {
		if want[name] == "" {
			t.Errorf("deploy/metrics.md has %s, which is no metric", name)
		}
	}
}

// The latest stage that a failed request had reached is told.
func TestFailuresByStage(t *testing.T) {
	r := exercised(t)
	for _, test := range []struct {
		stage, code string
		send        func()
	}{
		{"none", "unknown_model", func() { r.post(t, "/api/embed/other", goodTile) }},
		{"decode", "invalid_request", func() { r.post(t, "/invocations", "[]") }},
		{"read", "body_too_large", func() { r.post(t, "/invocations", strings.Repeat(" ", r.cfg.MaxBodyBytes+1)) }},
		{"triton", "forward_failed", func() {
			r.answerCallers(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				return nil, status.Error(codes.Internal, "no")
			})
			r.post(t, "/invocations", goodTile)
		}},
	} {
		before := r.counted(t, "histogate_failures_total", "stage", test.stage, "code", test.code)
		test.send()
		if n := r.counted(t, "histogate_failures_total", "stage", test.stage, "code", test.code) - before; n != 1 {
			t.Errorf("%s at %s: counted %v times", test.code, test.stage, n)
		}
	}
}

// What a request pays for being counted.
func BenchmarkAnswered(b *testing.B) {
	m := newMetrics([]string{"h0", "h1"}, newAdmission(1, 1, 1))
	t := newTrace("id")
	t.route, t.model, t.mode = "/invocations", "h1", "embedding"
	for s := range stageCount {
		t.stages[s] = time.Duration(s+1) * time.Millisecond
	}
	b.ReportAllocs()
	for b.Loop() {
		m.answered(t, http.StatusOK, "")
	}
}
