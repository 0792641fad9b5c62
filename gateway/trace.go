package gateway

import (
	"strconv"
	"time"
)

// stage names a part of a request's life that is timed on its own.
type stage int

const (
	stageRead      stage = iota // the body from the socket
	stageWait                   // for a CPU slot
	stageDecode                 // JSON, base64, image, bulk RNA
	stageWindow                 // for a place inside Triton
	stageTransform              // the pixels, normalised, to where Triton reads them
	stageTriton                 // the model, queue and batching included
	stageReply                  // numbers to JSON
	stageCount

	// stageNone is before all of them: headers, keys, routes.
	stageNone stage = -1
)

func (s stage) String() string {
	if s == stageNone {
		return "none"
	}
	return [stageCount]string{"read", "wait", "decode", "window", "transform", "triton", "reply"}[s]
}

// trace is what is known of one request, or of one tile of a call of many, while it is
// served.
type trace struct {
	id    string
	start time.Time
	route string // the route's pattern, never the path that was sent
	model string // a served model's name, or empty
	mode  string // one of that model's, or empty
	// runtime has a failure told as SageMaker's runtime would.
	runtime bool
	stages  [stageCount]time.Duration
	last    stage     // the latest that has ended
	mark    time.Time // when it did
	spans   *spans    // nil where nobody wants them
}

func newTrace(id string) *trace {
	now := time.Now()
	return &trace{id: id, start: now, mark: now, last: stageNone}
}

// end closes a stage: the time since the previous one ended belongs to it.
func (t *trace) end(s stage) {
	now := time.Now()
	t.stages[s] += now.Sub(t.mark)
	t.spans.stage(s, t.mark, now)
	t.last, t.mark = s, now
}

// within takes the time since then out of the stage that goes on, for one inside it.
func (t *trace) within(s stage, since time.Time) {
	now := time.Now()
	d := now.Sub(since)
	t.stages[s] += d
	t.spans.stage(s, since, now)
	t.mark = t.mark.Add(d)
}

// merge takes the times of tiles that were served at once into their call's: of each
// stage the longest that a tile spent in it.
func (t *trace) merge(tiles []*trace) {
	var longest [stageCount]time.Duration
	for _, tile := range tiles {
		t.last = max(t.last, tile.last)
		for s, d := range tile.stages {
			longest[s] = max(longest[s], d)
		}
	}
	for s, d := range longest {
		t.stages[s] += d
	}
	t.mark = time.Now()
}

// isProbe tells of a request that asks only whether to send others.
func isProbe(route string) bool { return route == "/ping" || route == "/readyz" || route == "/livez" }

// serverTiming is the time of each stage, as the header of that name has it.
func (t *trace) serverTiming() string {
	var text []byte
	for s, d := range t.stages {
		if d == 0 {
			continue
		}
		if text != nil {
			text = append(text, ", "...)
		}
		text = append(append(text, stage(s).String()...), ";dur="...)
		text = strconv.AppendFloat(text, milliseconds(d), 'f', 3, 64)
	}
	return string(text)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
