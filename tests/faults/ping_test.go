package faults

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"histogate/tests/stack"
)

// pings asks /ping again and again and knows when its answer changed.
type pings struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	asked   int
	changes []change
	slowest time.Duration
}

type change struct {
	at time.Time
	on bool
}

func watchPing(t *testing.T, s *stack.Stack, path string, every time.Duration) *pings {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &pings{stop: cancel, changes: []change{{time.Now(), true}}}
	p.done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(every) {
			began := time.Now()
			a, err := s.Get(path)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			p.saw(began, a.Status == http.StatusOK)
		}
	})
	t.Cleanup(p.end)
	return p
}

func (p *pings) saw(asked time.Time, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.asked++
	p.slowest = max(p.slowest, now.Sub(asked))
	if p.changes[len(p.changes)-1].on != on {
		p.changes = append(p.changes, change{now, on})
	}
}

func (p *pings) end() {
	p.stop()
	p.done.Wait()
}

// off is when /ping first said no after a moment; the zero time if it never did.
func (p *pings) off(after time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.changes {
		if !c.on && c.at.After(after) {
			return c.at
		}
	}
	return time.Time{}
}

// on is since when /ping has said yes; the zero time if it says no.
func (p *pings) on() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if latest := p.changes[len(p.changes)-1]; latest.on {
		return latest.at
	}
	return time.Time{}
}

// report is what became of each fault.
type report struct{ lines []line }

type line struct {
	fault   string
	callers string
	off     string // until /ping told the truth
	back    string // until service was back
	worst   string // of several attempts at both
	lost    string
}

func (r *report) add(fault string, l *load, off, back string) {
	lost := "nothing"
	if failed := l.failed(); failed+l.lost+l.wrong > 0 {
		lost = fmt.Sprintf("%d of %d", failed+l.lost+l.wrong, failed+l.lost+l.statuses[http.StatusOK])
	}
	r.lines = append(r.lines, line{fault, l.String(), off, back, "", lost})
}

// addMeasured adds a fault whose times were held against bars.
func (r *report) addMeasured(fault string, l *load, m measured) {
	r.add(fault, l, round(m.off).String(), round(m.back).String())
	if m.attempts > 1 {
		r.lines[len(r.lines)-1].worst = fmt.Sprintf("%s, %s (%d attempts)", round(m.worstOff), round(m.worstBack), m.attempts)
	}
}

// write puts the report into the test's output and into a file of the build folder.
func (r *report) write(t *testing.T) {
	file, err := os.Create(filepath.Join(stack.Root(), "build", "faults.txt"))
	if err != nil {
		t.Error(err)
		return
	}
	table := tabwriter.NewWriter(io.MultiWriter(file, os.Stdout), 0, 0, 2, ' ', 0)
	for _, l := range append([]line{{"fault", "callers saw", "/ping off after", "back after", "worst of both", "lost"}}, r.lines...) {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", l.fault, l.off, l.back, l.worst, l.lost, l.callers)
	}
	if err := table.Flush(); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}
