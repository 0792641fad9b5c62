package gateway

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"histogate/tritonclient"

	"histogate/prep"
)

// metrics is what a gateway counts, in a registry of its own. No label ever has a
// caller's words for its value: it is a served model's name, a route's pattern, or one
// of a closed set, and empty where there is none. What can be named at the start is
// there from then on with a 0, so that its first increase is seen as one.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	failures *prometheus.CounterVec
	models   map[string]*modelTimes // the empty name is of requests for no model
	tiles    *prometheus.CounterVec
	canaries *prometheus.CounterVec
	panics   *prometheus.CounterVec
	reloads  *prometheus.CounterVec
	ready    *prometheus.GaugeVec
	triton   *prometheus.GaugeVec
	leftOut  prometheus.Counter

	tritonStarts prometheus.Counter
	tritonEnds   *prometheus.CounterVec
}

// modelTimes are the histograms of one model.
type modelTimes struct {
	request prometheus.Observer
	stages  [stageCount]prometheus.Observer
}

// timeBuckets are from what a small request takes to what no caller waits for.
func timeBuckets() []float64 {
	return []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 60}
}

func newMetrics(models []string, a *admission) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), models: map[string]*modelTimes{}}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(vec)
		return vec
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(vec)
		return vec
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: timeBuckets()}, labels)
		m.registry.MustRegister(vec)
		return vec
	}
	m.requests = counter("histogate_requests_total", "Requests answered; code is empty for a success.", "route", "model", "mode", "status", "code")
	m.failures = counter("histogate_failures_total", "Requests failed, but for probes, by the latest stage that they had reached.", "stage", "code")
	m.tiles = counter("histogate_tiles_failed_total", "Tiles that failed alone, in a call of many that was answered all the same.", "model", "code")
	requests := histogram("histogate_request_duration_seconds", "Time from the headers of a request to its answer, but for probes.", "model")
	stages := histogram("histogate_stage_duration_seconds", "Time of requests in each stage; of the tiles of one call the longest.", "model", "stage")
	m.canaries = counter("histogate_canary_inferences_total", "Inferences on the gateway's own account, to warm up or probe a model.", "model", "result")
	m.reloads = counter("histogate_model_reloads_total", "Times that a model was unloaded to be loaded afresh.", "model", "cause")
	m.ready = gauge("histogate_model_ready", "1 when the model answers real inferences.", "model")
	m.triton = gauge("histogate_triton_info", "1, with the version of the Triton that is connected.", "version")
	m.tritonStarts = counter("histogate_triton_starts_total", "Triton child processes started.").WithLabelValues()
	m.tritonEnds = counter("histogate_triton_ends_total", "Times that Triton ended or, where something else runs it, would have to be started again.", "cause")
	m.panics = counter("histogate_panics_total", "Panics recovered, each the failure of one request, by the package that was at work.", "package")
	m.leftOut = counter("histogate_log_lines_left_out_total", "Lines of requests that LOG_REQUESTS_PER_SECOND kept out of the log.").WithLabelValues()

	for _, name := range append([]string{""}, models...) {
		times := &modelTimes{request: requests.WithLabelValues(name)}
		for s := range stageCount {
			times.stages[s] = stages.WithLabelValues(name, s.String())
		}
		m.models[name] = times
	}
	for _, name := range models {
		for _, result := range canaryResults() {
			m.canaries.WithLabelValues(name, result)
		}
		for _, cause := range reloadCauses() {
			m.reloads.WithLabelValues(name, cause)
		}
	}
	for _, cause := range restartCauses() {
		m.tritonEnds.WithLabelValues(cause)
	}
	for _, where := range []string{panicGateway, panicPrep} {
		m.panics.WithLabelValues(where)
	}
	m.admission(a)
	m.build()
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// admission exposes how much is taken on, each beside the most that can be.
func (m *metrics) admission(a *admission) {
	m.gauge("histogate_requests_in_flight", "Requests admitted and not yet answered, each tile of a call counted.", nil, a.inFlight)
	m.gauge("histogate_requests_in_flight_limit", "MAX_IN_FLIGHT.", nil, func() int { return int(a.requests.most) })
	m.gauge("histogate_body_bytes", "Memory that is set aside for the bodies of requests.", nil, func() int { return int(a.bytes.taken.Load()) })
	m.gauge("histogate_body_bytes_limit", "MAX_IN_FLIGHT_BYTES.", nil, func() int { return int(a.bytes.most) })
	m.gauge("histogate_preprocess_busy", "CPU slots in which a request is decoded.", nil, func() int { return len(a.slots) })
	m.gauge("histogate_preprocess_workers", "PREPROCESS_WORKERS.", nil, func() int { return cap(a.slots) })
	const name, help = "histogate_requests_rejected_total", "Requests refused as busy, by the bound that they met."
	m.counter(name, help, prometheus.Labels{"bound": "requests"}, a.requests.refused.Load)
	m.counter(name, help, prometheus.Labels{"bound": "bytes"}, a.bytes.refused.Load)
}

// model exposes what a model's window holds, and its cache of bulk RNA.
func (m *metrics) model(served *model) {
	labels := prometheus.Labels{"model": served.spec.Name}
	m.gauge("histogate_requests_parked", "Requests that have passed stage 1 and wait for a place inside Triton.", labels, served.window.parked)
	m.gauge("histogate_requests_in_triton", "Requests inside Triton.", labels, served.window.inside)
	m.gauge("histogate_batch_rows_limit", "Rows of a full batch.", labels, func() int { return served.spec.Batching.MaxBatchSize })
	if served.preparer == nil || !served.spec.TakesBulkRNA() {
		return
	}
	of := func(value func(prep.CacheStats) uint64) func() uint64 {
		return func() uint64 { return value(served.preparer.RNACacheStats()) }
	}
	m.counter("histogate_rna_cache_hits_total", "Bulk RNA vectors that were found prepared.", labels, of(func(s prep.CacheStats) uint64 { return s.Hits }))
	m.counter("histogate_rna_cache_misses_total", "Bulk RNA vectors that had to be parsed and transformed.", labels, of(func(s prep.CacheStats) uint64 { return s.Misses }))
	m.gauge("histogate_rna_cache_entries", "Bulk RNA vectors that are kept prepared.", labels, func() int { return served.preparer.RNACacheStats().Entries })
	m.gauge("histogate_rna_cache_bytes", "Memory of the bulk RNA vectors that are kept prepared.", labels, func() int { return served.preparer.RNACacheStats().Bytes })
}

// build exposes which program this is.
func (m *metrics) build() {
	from := builtFrom()
	labels := prometheus.Labels{"version": from.Gateway, "revision": from.Revision, "go": from.Go}
	m.gauge("histogate_build_info", "1, with the gateway's version and revision and the Go that compiled it.", labels, func() int { return 1 })
}

// transports exposes by which way tensors went to Triton.
func (m *metrics) transports(c *tritonclient.Client) {
	const name, help = "histogate_triton_requests_total", "Inferences sent to Triton, probes too, by the way that their inputs went: shared (memory) or messages."
	m.counter(name, help, prometheus.Labels{"transport": "shared"}, func() uint64 { shared, _ := c.Sent(); return shared })
	m.counter(name, help, prometheus.Labels{"transport": "messages"}, func() uint64 { _, messages := c.Sent(); return messages })
}

func (m *metrics) gauge(name, help string, labels prometheus.Labels, value func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(value()) }))
}

func (m *metrics) counter(name, help string, labels prometheus.Labels, value func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(value()) }))
}

// answered counts one request and the time of each stage that it reached.
func (m *metrics) answered(t *trace, status int, code Code) {
	m.requests.WithLabelValues(t.route, t.model, t.mode, statusText(status), string(code)).Inc()
	if isProbe(t.route) {
		return
	}
	if code != "" {
		m.failures.WithLabelValues(t.last.String(), string(code)).Inc()
	}
	times := m.models[t.model]
	times.request.Observe(time.Since(t.start).Seconds())
	for s, d := range t.stages {
		if d > 0 {
			times.stages[s].Observe(d.Seconds())
		}
	}
}

// statusText is a status as a label has it; that of most requests costs no memory.
func statusText(status int) string {
	if status == 200 {
		return "200"
	}
	return strconv.Itoa(status)
}

// connected records the version of the Triton that is connected.
func (m *metrics) connected(version string) {
	m.triton.Reset()
	m.triton.WithLabelValues(version).Set(1)
}
