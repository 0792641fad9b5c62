package gateway

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	// stageSeconds is the histogram of the time in each stage, by the label stage and, if
	// it has one, model.
	stageSeconds = "histogate_stage_duration_seconds"

	// Percentiles are of what was observed in the latest of these.
	recentWindow = 5 * time.Minute
	recentEvery  = 30 * time.Second
)

// recent knows of a registry's histogram what it held a while ago, so that what it
// holds now tells of the time since.
type recent struct {
	registry prometheus.Gatherer

	mu     sync.Mutex
	before []snapshot // the oldest first
}

// snapshot is the histogram at one time.
type snapshot struct {
	at     time.Time
	stages map[stageOf]*dto.Histogram
}

// stageOf is what one of the histogram's series is about.
type stageOf struct{ model, stage string }

// newRecent begins with what the registry holds now.
func newRecent(registry prometheus.Gatherer) *recent {
	r := &recent{registry: registry}
	r.keep()
	return r
}

// run keeps what the histogram holds, from time to time, until the context ends.
func (r *recent) run(ctx context.Context) {
	tick := time.NewTicker(recentEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.keep()
		}
	}
}

func (r *recent) keep() {
	families, _ := r.registry.Gather() // what could not be gathered is missing, no more
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.before) > int(recentWindow/recentEvery) {
		r.before = slices.Delete(r.before, 0, 1)
	}
	r.before = append(r.before, snapshot{time.Now(), stagesIn(families)})
}

// stagesIn is the histogram among the families, empty where it is not there.
func stagesIn(families []*dto.MetricFamily) map[stageOf]*dto.Histogram {
	stages := map[stageOf]*dto.Histogram{}
	for _, m := range metricsOf(families, stageSeconds) {
		if h := m.GetHistogram(); h != nil {
			stages[stageOf{label(m, "model"), label(m, "stage")}] = h
		}
	}
	return stages
}

// metricsOf are the series of one name.
func metricsOf(families []*dto.MetricFamily, name string) []*dto.Metric {
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric
		}
	}
	return nil
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.Label {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// stageTimes is how long requests were in a stage.
type stageTimes struct {
	Model string  `json:"model,omitempty"`
	Stage string  `json:"stage"`
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
}

// percentiles are those of each stage that any request was in since some time, which is
// returned beside them.
func (r *recent) percentiles(families []*dto.MetricFamily) (since time.Time, all []stageTimes) {
	r.mu.Lock()
	before := r.before[0]
	r.mu.Unlock()
	all = []stageTimes{}
	for of, now := range stagesIn(families) {
		b := between(before.stages[of], now)
		if b.count == 0 {
			continue
		}
		all = append(all, stageTimes{of.model, of.stage, b.count, b.milliseconds(0.5), b.milliseconds(0.9), b.milliseconds(0.99)})
	}
	slices.SortFunc(all, func(a, b stageTimes) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Stage, b.Stage))
	})
	return before.at, all
}

// buckets is what a histogram counted in a time.
type buckets struct {
	bounds []float64 // upper ones, in seconds; what is above the last is in none
	counts []uint64  // at or below each of them
	count  uint64    // in all
}

// between is what was counted from one time, before which there may have been nothing,
// to another.
func between(before, now *dto.Histogram) buckets {
	b := buckets{count: now.GetSampleCount() - before.GetSampleCount()}
	for i, bucket := range now.Bucket {
		count := bucket.GetCumulativeCount()
		if before != nil { // its bounds are the same
			count -= before.Bucket[i].GetCumulativeCount()
		}
		b.bounds, b.counts = append(b.bounds, bucket.GetUpperBound()), append(b.counts, count)
	}
	return b
}

// milliseconds is a quantile, taken to lie in its bucket where it would if what is in
// there was spread evenly; for one above the last bound it is that bound.
func (b buckets) milliseconds(q float64) float64 {
	rank := q * float64(b.count)
	low, below := 0.0, 0.0
	for i, bound := range b.bounds {
		if count := float64(b.counts[i]); count >= rank && count > below {
			low += (bound - low) * (rank - below) / (count - below)
			break
		}
		low, below = bound, float64(b.counts[i])
	}
	return milliseconds(time.Duration(low * float64(time.Second)))
}
