package gateway

import (
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
)

const (
	journalEntries = 20
	journalText    = 1000 // characters of one text in an entry
)

// journal keeps the latest lines of a log that an operator should see, as they were
// logged. What is logged holds no payload, and neither does it.
type journal struct {
	mu    sync.Mutex
	lines []json.RawMessage // the oldest first
}

// Write keeps one line. Whoever writes, writes a whole one at a time.
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) == journalEntries {
		j.lines = slices.Delete(j.lines, 0, 1)
	}
	j.lines = append(j.lines, slices.Clone(line))
	return len(line), nil
}

// latest are the lines that are kept, the latest first.
func (j *journal) latest() []json.RawMessage {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := append([]json.RawMessage{}, j.lines...) // [] in JSON where there is none, not null
	slices.Reverse(lines)
	return lines
}

// beside is a log that keeps its warnings and errors here too, whatever its level.
func (j *journal) beside(log *slog.Logger) *slog.Logger {
	return slog.New(slog.NewMultiHandler(log.Handler(), slog.NewJSONHandler(j, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch {
			case a.Key == "stack":
				return slog.Attr{} // long, and in the log
			case a.Value.Kind() == slog.KindString:
				a.Value = slog.StringValue(clipTo(a.Value.String(), journalText))
			case a.Value.Kind() == slog.KindAny:
				if err, ok := a.Value.Any().(error); ok {
					a.Value = slog.StringValue(clipTo(err.Error(), journalText))
				}
			}
			return a
		},
	})))
}
