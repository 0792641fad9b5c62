package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// diagnostics is what an operator is told who wonders what is the matter. It is as
// large as there are models and settings, and holds nothing of a request beyond what
// is logged.
type diagnostics struct {
	Time      time.Time               `json:"time"`
	UpSeconds float64                 `json:"up_seconds"`
	Versions  versions                `json:"versions"`
	Changed   map[string]givenSetting `json:"settings_changed"`
	Unchanged map[string]string       `json:"settings_default"`
	Draining  bool                    `json:"draining"`
	InFlight  int                     `json:"in_flight"`
	Triton    tritonState             `json:"triton"`
	Models    []modelState            `json:"models"`
	Failures  []json.RawMessage       `json:"failures"` // requests that were answered 5xx, the latest first
	Events    []json.RawMessage       `json:"events"`   // what else was warned of, the latest first
	Since     time.Time               `json:"stages_since"`
	Stages    []stageTimes            `json:"stages"`
}

type versions struct {
	Gateway  string `json:"gateway"`
	Revision string `json:"revision,omitempty"` // of the source, where it was built in a checkout or was told
	Modified bool   `json:"modified,omitempty"` // beyond that revision
	Go       string `json:"go"`
	Triton   string `json:"triton,omitempty"` // once it was connected
}

type tritonState struct {
	Child  bool               `json:"child"`         // else something else runs it
	PID    int                `json:"pid,omitempty"` // of the child's latest process
	Starts float64            `json:"starts,omitempty"`
	Ends   map[string]float64 `json:"ends,omitempty"` // by cause
}

type modelState struct {
	Name    string             `json:"name"`
	Ready   bool               `json:"ready"`
	Reason  string             `json:"reason,omitempty"`  // why it is not
	Lasting bool               `json:"lasting,omitempty"` // until somebody mends it
	Reloads map[string]float64 `json:"reloads,omitempty"` // by cause
	Window  windowState        `json:"window"`
	// Of a model that can be served:
	LifeSeconds float64      `json:"life_seconds,omitempty"`          // since it was loaded last
	IdleSeconds float64      `json:"since_success_seconds,omitempty"` // since an inference succeeded last, a probe too
	Transport   string       `json:"transport,omitempty"`             // of its inputs
	SharedSlots *sharedSlots `json:"shared_slots,omitempty"`
}

// sharedSlots are how many requests have had room in shared memory at once, and how many
// can have. What finds none goes in a message.
type sharedSlots struct {
	Made int `json:"made"`
	Most int `json:"most"`
}

// diagnose answers with what is known of this process at the moment.
func (g *Gateway) diagnose(w http.ResponseWriter, _ *http.Request) {
	families, _ := g.metrics.registry.Gather() // what could not be gathered is missing, no more
	now := time.Now()
	d := diagnostics{
		Time: now, UpSeconds: now.Sub(g.began).Seconds(), Versions: builtFrom(), Changed: map[string]givenSetting{}, Unchanged: map[string]string{},
		Draining: g.draining.Load(), InFlight: g.admission.inFlight(), Models: []modelState{},
		Triton:   tritonState{Child: g.child != nil, PID: g.child.latest(), Ends: byCause(families, "histogate_triton_ends_total", "")},
		Failures: g.failures.latest(), Events: g.events.latest(),
	}
	for name, s := range g.cfg.given {
		if s.Value == s.Default {
			d.Unchanged[name] = s.Value
			continue
		}
		s.Value = withoutPassword(s.Value)
		d.Changed[name] = s
	}
	for _, m := range metricsOf(families, "histogate_triton_info") {
		d.Versions.Triton = label(m, "version")
	}
	for _, m := range metricsOf(families, "histogate_triton_starts_total") {
		d.Triton.Starts = m.GetCounter().GetValue()
	}
	for _, m := range g.models.list {
		d.Models = append(d.Models, m.state(byCause(families, "histogate_model_reloads_total", m.spec.Name)))
	}
	d.Since, d.Stages = g.recent.percentiles(families)
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(d) // whoever asked may have gone
}

func (m *model) state(reloads map[string]float64) modelState {
	s := modelState{Name: m.spec.Name, Ready: true, Reloads: reloads, Window: m.window.state()}
	if t := m.health.trouble.Load(); t != nil {
		s.Ready, s.Reason, s.Lasting = false, t.reason, t.lasting
	}
	if m.broken != "" {
		return s
	}
	l := m.health.life.Load()
	s.LifeSeconds, s.IdleSeconds = time.Since(l.began).Seconds(), l.sinceSuccess().Seconds()
	s.Transport = "messages"
	if made, most := m.health.triton.SharedSlots(m.spec.Name); most > 0 {
		s.Transport, s.SharedSlots = "shared memory", &sharedSlots{made, most}
	}
	return s
}

// withoutPassword is a setting's value as it may be shown, should it be a URL with a password.
func withoutPassword(value string) string {
	if u, err := url.Parse(value); err == nil && u.User != nil {
		return u.Redacted()
	}
	// One that does not parse may hold one all the same.
	if at := strings.LastIndexByte(value, '@'); at >= 0 {
		return "xxxxx" + value[at:]
	}
	return value
}

// byCause are the counts of a counter with the label cause, those of one model where it
// has that label too.
func byCause(families []*dto.MetricFamily, name, model string) map[string]float64 {
	counts := map[string]float64{}
	for _, m := range metricsOf(families, name) {
		if n := m.GetCounter().GetValue(); n > 0 && label(m, "model") == model {
			counts[label(m, "cause")] = n
		}
	}
	return counts
}

// revision is set by the linker where there is no checkout to ask, as in an image.
var revision string

// builtFrom is what this program was built from.
func builtFrom() versions {
	v := versions{Revision: revision, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Gateway = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
