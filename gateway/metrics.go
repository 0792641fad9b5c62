package gateway

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"histogate/prep"
)

// stage names a part of a request's life that is timed on its own.
type stage int

const (
	stageRead   stage = iota // the body from the socket
	stageWait                // for a CPU slot
	stagePrep                // JSON, base64, image, transform, bulk RNA
	stageWindow              // for a place inside Triton
	stageTriton              // the model, queue and batching included
	stageReply               // numbers to JSON
	stageCount
)

func (s stage) String() string {
	return [stageCount]string{"read", "wait", "prep", "window", "triton", "reply"}[s]
}

// metrics is what a gateway counts, in a registry of its own.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	stages   [stageCount]prometheus.Observer
	tiles    *prometheus.CounterVec
	canaries *prometheus.CounterVec
	panics   *prometheus.CounterVec
	reloads  *prometheus.CounterVec
	ready    *prometheus.GaugeVec
	triton   *prometheus.GaugeVec

	tritonStarts prometheus.Counter
	tritonEnds   *prometheus.CounterVec
}

func newMetrics(inFlight func() float64) *metrics {
	stages := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "histogate_stage_duration_seconds",
		Help:    "Time that requests spent in each stage.",
		Buckets: prometheus.ExponentialBuckets(0.0002, 2, 19), // 0.2 ms to 52 s
	}, []string{"stage"})
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "histogate_requests_total",
			Help: "Requests answered, by route, model, status and code (empty for a success).",
		}, []string{"route", "model", "status", "code"}),
		tiles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "histogate_tiles_failed_total",
			Help: "Tiles that failed alone, in a call of many that was answered all the same, by model and code.",
		}, []string{"model", "code"}),
		canaries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "histogate_canary_inferences_total",
			Help: "Inferences that the gateway sent to Triton on its own account, to warm up or probe a model.",
		}, []string{"model", "result"}),
		tritonStarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "histogate_triton_starts_total",
			Help: "Times that the gateway started a Triton child process.",
		}),
		tritonEnds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "histogate_triton_ends_total",
			Help: "Times that Triton ended or, where something else runs it, would have to be started again, by cause.",
		}, []string{"cause"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "histogate_panics_total",
			Help: "Panics recovered, each the failure of one request, by the package that was at work.",
		}, []string{"package"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "histogate_model_reloads_total",
			Help: "Times that a model was unloaded to be loaded afresh, by cause.",
		}, []string{"model", "cause"}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "histogate_model_ready",
			Help: "1 when the model answers real inferences.",
		}, []string{"model"}),
		triton: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "histogate_triton_info",
			Help: "1, with the version of the Triton that is connected.",
		}, []string{"version"}),
	}
	for s := range stageCount {
		m.stages[s] = stages.WithLabelValues(s.String())
	}
	m.registry.MustRegister(stages, m.requests, m.tiles, m.canaries, m.tritonStarts, m.tritonEnds, m.panics, m.reloads, m.ready, m.triton,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "histogate_requests_in_flight",
			Help: "Requests admitted and not yet answered.",
		}, inFlight),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return m
}

// parked exposes how many requests wait for a model.
func (m *metrics) parked(model string, count func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "histogate_requests_parked",
		Help:        "Requests that have passed stage 1 and wait for a place inside Triton.",
		ConstLabels: prometheus.Labels{"model": model},
	}, func() float64 { return float64(count()) }))
}

// rnaCache exposes what a model's cache of bulk RNA does.
func (m *metrics) rnaCache(model string, stats func() prep.CacheStats) {
	labels := prometheus.Labels{"model": model}
	counter := func(name, help string, value func(prep.CacheStats) float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return value(stats()) })
	}
	gauge := func(name, help string, value func(prep.CacheStats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return value(stats()) })
	}
	m.registry.MustRegister(
		counter("histogate_rna_cache_hits_total", "Bulk RNA vectors that were found prepared.", func(s prep.CacheStats) float64 { return float64(s.Hits) }),
		counter("histogate_rna_cache_misses_total", "Bulk RNA vectors that had to be parsed and transformed.", func(s prep.CacheStats) float64 { return float64(s.Misses) }),
		gauge("histogate_rna_cache_entries", "Bulk RNA vectors that are kept prepared.", func(s prep.CacheStats) float64 { return float64(s.Entries) }),
		gauge("histogate_rna_cache_bytes", "Memory of the bulk RNA vectors that are kept prepared.", func(s prep.CacheStats) float64 { return float64(s.Bytes) }),
	)
}

// answered counts one request and the time of each stage that it reached.
func (m *metrics) answered(t *trace, status int, code Code) {
	m.requests.WithLabelValues(t.route, t.model, strconv.Itoa(status), string(code)).Inc()
	for s, d := range t.stages {
		if d > 0 {
			m.stages[s].Observe(d.Seconds())
		}
	}
}

// connected records the version of the Triton that is connected.
func (m *metrics) connected(version string) {
	m.triton.Reset()
	m.triton.WithLabelValues(version).Set(1)
}

// trace is what is known of one request while it is served.
type trace struct {
	id    string
	start time.Time
	route string // the route's pattern, never the path that was sent
	model string // a served model's name, or empty
	mode  string
	// runtime has a failure told as SageMaker's runtime would.
	runtime bool
	stages  [stageCount]time.Duration
	mark    time.Time // end of the latest stage
}

// end closes a stage: the time since the previous one ended belongs to it.
func (t *trace) end(s stage) {
	now := time.Now()
	t.stages[s] += now.Sub(t.mark)
	t.mark = now
}
