// Package soak keeps a real stack under a steady load of every kind, for minutes, and
// holds what the gateway needs against what it needed at first.
package soak

import (
	"context"
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"histogate/tests/process"
	"histogate/tests/stack"
)

// By default it is the short form, of which only what is exact can be asked.
var minutes = flag.Float64("minutes", 0.3, "how long the load lasts; from 5 on, memory is judged too")

const (
	settle     = 2 * time.Minute // until memory under load is judged
	firstRest  = time.Minute     // early enough for the load to be back by then
	judgedFrom = 5.0             // minutes: a slope of fewer says nothing
	sampleGap  = 2 * time.Second
	growth     = 1.0 // MB a minute, the bar
	// The server looks every 10 s for workers that had nothing to do for 10 s.
	calm = 22 * time.Second
)

// settings of the gateway. Without a limit the collector lets its heap of large,
// pooled buffers swing between 100 and 250 MB, under which no growth can be seen. A
// cache of RNA that is full at once is not taken for growth either.
var settings = []string{"GOMEMLIMIT=128MiB", "RNA_CACHE_BYTES=1048576", "PPROF=true"}

// sample is what the gateway has at a time.
type sample struct {
	at                time.Duration // since the start of the load
	rss, anonymous    float64       // MB
	heap              float64       // MB, garbage included
	goroutines, files int
}

func take(s *stack.Stack, began time.Time) (m sample, err error) {
	m.at = time.Since(began)
	resident, err := process.RSS(s.PID())
	if err != nil {
		return m, err
	}
	anonymous, err := process.Anonymous(s.PID())
	if err != nil {
		return m, err
	}
	m.rss, m.anonymous = float64(resident)/(1<<20), float64(anonymous)/(1<<20)
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.PID()))
	if err != nil {
		return m, err
	}
	heap, err := s.Metric("go_memstats_heap_alloc_bytes")
	if err != nil {
		return m, err
	}
	m.heap, m.files = heap/(1<<20), len(open)
	m.goroutines, err = goroutines(s)
	return m, err
}

// goroutines asks the profile: the metric go_goroutines counts those that gather the
// metrics, of which there are now more and now fewer.
func goroutines(s *stack.Stack) (total int, err error) {
	text, err := s.Admin("/debug/pprof/goroutine?debug=1")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(string(text), "goroutine profile: total %d", &total)
	return total, err
}

// rest is the least that the gateway has while nothing is asked of it.
func rest(t *testing.T, s *stack.Stack, began time.Time) sample {
	t.Helper()
	time.Sleep(calm)
	for range 2 { // what pools hold outlives one collection
		if _, err := s.Admin("/debug/pprof/heap?gc=1"); err != nil {
			t.Fatalf("a collection: %v", err)
		}
	}
	least := sample{heap: math.MaxInt, goroutines: math.MaxInt, files: math.MaxInt}
	for range 30 {
		m, err := take(s, began)
		if err != nil {
			t.Fatal(err)
		}
		m.heap, m.goroutines, m.files = min(m.heap, least.heap), min(m.goroutines, least.goroutines), min(m.files, least.files)
		least = m
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("at rest after %s: %d goroutines, %d open files, %.1f MB on the heap", least.at.Round(time.Second), least.goroutines, least.files, least.heap)
	return least
}

func TestSoak(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Env: settings})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if code := s.Stop(); code != 0 || t.Failed() {
			t.Errorf("exit code %d; what the stack wrote last:\n%s", code, last(s.Output(), 8<<10))
		}
	}()
	length := time.Duration(*minutes * float64(time.Minute))
	first := min(firstRest, length/2)
	f, began := newTraffic(s.URL), time.Now()
	underLoad(t, s, f, began, first)
	before := rest(t, s, began)
	samples := underLoad(t, s, f, began, length-first)
	after := rest(t, s, began)

	for what, n := range f.wrong {
		t.Errorf("%d x %s", n, what)
	}
	if after.goroutines > before.goroutines || after.files > before.files {
		t.Errorf("at rest there were %d goroutines and %d open files, and are %d and %d", before.goroutines, before.files, after.goroutines, after.files)
	}
	if *minutes < judgedFrom {
		t.Logf("%d calls of %d kinds in %s", f.made.Load(), len(f.calls), length)
		return
	}
	samples = slices.DeleteFunc(samples, func(m sample) bool { return m.at < settle })
	resident, heap := slope(samples), (after.heap-before.heap)/(after.at-before.at).Minutes()
	t.Logf("%d calls of %d kinds in %s; from minute %.0f on memory grows by %.2f MB a minute, what is on the heap at rest by %.2f (bar: %.0f)",
		f.made.Load(), len(f.calls), length, settle.Minutes(), resident, heap, growth)
	if resident >= growth || heap >= growth {
		t.Error("memory grows")
	}
}

// underLoad keeps the load up for a time and returns what the gateway had during it.
func underLoad(t *testing.T, s *stack.Stack, f *traffic, began time.Time, length time.Duration) (samples []sample) {
	t.Helper()
	stop := f.start()
	defer stop()
	printed, calls := 0, f.made.Load()
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(min(sampleGap, time.Until(end))) {
		m, err := take(s, began)
		if err != nil {
			t.Fatal(err)
		}
		samples = append(samples, m)
		if len(samples)-printed == int(time.Minute/sampleGap) {
			row(t, samples[printed:], f.made.Load()-calls)
			printed, calls = len(samples), f.made.Load()
		}
	}
	return samples
}

// row prints a minute.
func row(t *testing.T, minute []sample, calls int64) {
	t.Helper()
	low, high := minute[0], minute[0]
	mean := sample{}
	for _, m := range minute {
		low.goroutines, high.goroutines = min(low.goroutines, m.goroutines), max(high.goroutines, m.goroutines)
		low.files, high.files = min(low.files, m.files), max(high.files, m.files)
		mean.rss += m.rss / float64(len(minute))
		mean.anonymous += m.anonymous / float64(len(minute))
	}
	t.Logf("%4.0f s: %5d calls; %6.1f MB, %6.1f anonymous; %3d to %3d goroutines, %3d to %3d open files",
		minute[len(minute)-1].at.Seconds(), calls, mean.rss, mean.anonymous, low.goroutines, high.goroutines, low.files, high.files)
}

// slope is how much memory grows in MB a minute, by least squares.
func slope(samples []sample) float64 {
	var x, y, xx, xy float64
	for _, m := range samples {
		at := m.at.Minutes()
		x, y, xx, xy = x+at, y+m.rss, xx+at*at, xy+at*m.rss
	}
	n := float64(len(samples))
	return (n*xy - x*y) / (n*xx - x*x)
}

func last(text string, n int) string {
	return text[max(0, len(text)-n):]
}
