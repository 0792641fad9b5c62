package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// requestLog has a line for each request, of which it writes so many a second, and
// beyond that only what an operator has to know of. How many were left out stands in
// the next line and is counted.
type requestLog struct {
	log       *slog.Logger
	perSecond int
	leftOut   prometheus.Counter

	mu      sync.Mutex
	second  int64 // of the clock, in which so many were written
	written int
	missing int // since the latest line
}

// write writes a line, or leaves it out. What must is always written. The attributes
// are asked for only when it is.
func (l *requestLog) write(level slog.Level, must bool, message string, attributes func() []slog.Attr) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	missing, ok := l.take(time.Now().Unix(), must)
	if !ok {
		l.leftOut.Inc()
		return
	}
	line := attributes()
	if missing > 0 {
		line = append(line, slog.Int("left_out", missing))
	}
	l.log.LogAttrs(ctx, level, message, line...)
}

// take tells whether a line may be written, and how many were not before it.
func (l *requestLog) take(second int64, must bool) (missing int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if second != l.second {
		l.second, l.written = second, 0
	}
	if !must {
		if l.written >= l.perSecond {
			l.missing++
			return 0, false
		}
		l.written++
	}
	missing, l.missing = l.missing, 0
	return missing, true
}

// end tells of what was left out after the last line.
func (l *requestLog) end() {
	if missing, _ := l.take(0, true); missing > 0 {
		l.log.Info("lines of requests were left out", "left_out", missing)
	}
}

// finished is the one line of a request. Its err is nil where it went well, its stack
// empty where nothing panicked.
func (l *requestLog) finished(t *trace, a answer, err error, stack string) {
	message := "answered"
	if err != nil {
		message = "failed"
	}
	l.write(a.level(t, stack), a.status >= http.StatusInternalServerError || stack != "", message, func() []slog.Attr {
		line := make([]slog.Attr, 0, 16)
		line = append(line, slog.String("request_id", t.id), slog.String("route", t.route), slog.Int("status", a.status),
			slog.Float64("ms", milliseconds(time.Since(t.start))))
		if id := t.spans.id(); id != "" {
			line = append(line, slog.String("trace_id", id))
		}
		if t.model != "" {
			line = append(line, slog.String("model", t.model), slog.String("mode", t.mode))
		}
		for s, d := range t.stages {
			if d > 0 {
				line = append(line, slog.Float64(stage(s).String()+"_ms", milliseconds(d)))
			}
		}
		if err != nil {
			line = append(line, slog.String("code", string(a.code)), slog.Any("error", err))
		}
		if stack != "" {
			line = append(line, slog.String("stack", stack))
		}
		return line
	})
}

// tileFailed is a line of one tile of a call that may succeed.
func (l *requestLog) tileFailed(t *trace, tile int, code Code, err error, stack string) {
	level := slog.LevelInfo
	if stack != "" {
		level = slog.LevelError
	}
	l.write(level, stack != "", "tile failed", func() []slog.Attr {
		line := []slog.Attr{slog.String("request_id", t.id), slog.Int("tile", tile), slog.String("model", t.model), slog.String("code", string(code)), slog.Any("error", err)}
		if stack != "" {
			line = append(line, slog.String("stack", stack))
		}
		return line
	})
}

// level is how much an operator should mind: a probe is asked every few seconds, and a
// caller's mistake is the caller's.
func (a answer) level(t *trace, stack string) slog.Level {
	switch {
	case stack != "":
		return slog.LevelError
	case isProbe(t.route), a.code == CodeCallerGone:
		return slog.LevelDebug
	case a.code == CodeInternal:
		return slog.LevelError
	case a.status >= http.StatusInternalServerError:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}
