package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

// What each alert fires on, and what it does not, is written down; promtool judges.
func TestAlerts(t *testing.T) {
	promtool := filepath.Join(stack.Root(), "build", "prometheus", "promtool")
	out, err := exec.Command(promtool, "test", "rules", "testdata/alerts_test.yml").CombinedOutput()
	if err != nil {
		t.Fatalf("%v (deploy/setup brings promtool)\n%s", err, out)
	}
	rules, err := os.ReadFile(filepath.Join(stack.Root(), "deploy", "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("testdata/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllSubmatch(rules, -1)
	if names == nil {
		t.Fatal("there are no alerts")
	}
	for _, name := range names {
		if !bytes.Contains(tests, fmt.Appendf(nil, "- alertname: %s\n", name[1])) || !bytes.Contains(tests, fmt.Appendf(nil, "{alertname: %s,", name[1])) {
			t.Errorf("%s is not shown both to fire and not to", name[1])
		}
	}
}

// panel is one of a dashboard.
type panel struct {
	ID         int
	Title      string
	Type       string
	Datasource struct{ Type, UID string }
	Targets    []struct {
		Expr       string
		Datasource struct{ Type, UID string }
		Legend     string `json:"legendFormat"`
	}
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

// panels are those of all dashboards, without the rows that they stand in.
func panels(t *testing.T) (all []panel) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(stack.Root(), "deploy", "grafana", "dashboards", "*.json"))
	if err != nil || paths == nil {
		t.Fatal("there are no dashboards", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			UID, Title string
			Panels     []panel
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if dashboard.UID == "" || dashboard.Title == "" {
			t.Errorf("%s has no uid or no title", path)
		}
		ids := map[int]bool{}
		for _, p := range dashboard.Panels {
			if ids[p.ID] || p.ID == 0 {
				t.Errorf("%s: %q has the id %d, as another has", path, p.Title, p.ID)
			}
			if ids[p.ID] = true; p.Type != "row" {
				all = append(all, p)
			}
		}
	}
	return all
}

// Every query of the dashboards finds something in a Prometheus that scrapes a stack
// under load, with what goes wrong now and then; so do the series of every alert. The
// dashboards are drawn by no Grafana here.
func TestQueriesFindData(t *testing.T) {
	// Fewer places than callers can take, with calls of four tiles: some are refused.
	s := start(t, "MAX_IN_FLIGHT=12")
	p := scrape(t, s)
	all := panels(t)
	l := begin(t, s)
	eventually(t, "answers are of all kinds", time.Minute, func() bool {
		return l.answered(http.StatusOK, http.StatusBadRequest, http.StatusServiceUnavailable)
	})
	goWrong(t, s, p)
	for _, panel := range all {
		if len(panel.Targets) == 0 {
			t.Errorf("%q asks nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			for _, source := range []struct{ Type, UID string }{panel.Datasource, target.Datasource} {
				if source.Type != "prometheus" || source.UID != "prometheus" {
					t.Errorf("%q asks %+v, which Grafana has not", panel.Title, source)
				}
			}
			eventually(t, fmt.Sprintf("%q finds something by %s", panel.Title, target.Expr), time.Minute,
				func() bool { return hasNumber(p.query(t, inGrafana(target.Expr))) })
			for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.Legend, -1) {
				if found := p.query(t, inGrafana(target.Expr)); len(found) > 0 && found[0].Metric[label[1]] == "" && label[1] != "mode" {
					t.Errorf("%q: the series have no label %s: %v", panel.Title, label[1], found[0].Metric)
				}
			}
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError string }
		}
	}
	p.get(t, "rules", nil, &rules)
	checked := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if rule.Health != "ok" {
				t.Errorf("%s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
			for _, selector := range regexp.MustCompile(`\b(?:up|histogate_\w+|nv_\w+|process_\w+|go_\w+)\b(?:{[^}]*})?`).FindAllString(rule.Query, -1) {
				checked++
				if len(p.query(t, selector)) == 0 {
					t.Errorf("%s asks for %s, which is not there", rule.Name, selector)
				}
			}
		}
	}
	if checked < len(rules.Groups[0].Rules) {
		t.Errorf("only %d selectors of alerts were found", checked)
	}
	l.stop()
	t.Logf("answers by status: %v", l.statuses)
	keep(t, p, all)
}

// inGrafana is an expression as Grafana sends it.
func inGrafana(expression string) string {
	return strings.ReplaceAll(expression, "$__rate_interval", "20s")
}

func hasNumber(found []series) bool {
	return slices.ContainsFunc(found, func(s series) bool { return s.Value[1] != "NaN" })
}

// keep writes what each panel would have shown, for charts.py to draw.
func keep(t *testing.T, p *prometheus, all []panel) {
	t.Helper()
	type line struct {
		Legend string
		Series []series
	}
	type chart struct {
		Title, Unit, Type string
		Lines             []line
	}
	var charts []chart
	for _, panel := range all {
		c := chart{Title: panel.Title, Unit: panel.FieldConfig.Defaults.Unit, Type: panel.Type}
		for _, target := range panel.Targets {
			c.Lines = append(c.Lines, line{target.Legend, p.history(t, strings.ReplaceAll(target.Expr, "$__rate_interval", "5s"))})
		}
		charts = append(charts, c)
	}
	text, err := json.Marshal(charts)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stack.Root(), "build", "observe.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// callers send at once, for as long as the test needs it.
const callers = 10

// load is what a stack is sent.
type load struct {
	end  context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	statuses map[int]int // of the answers
}

// begin sends a stack all kinds of requests, good and bad, until stop.
func begin(t *testing.T, s *stack.Stack) *load {
	t.Helper()
	bodies := kinds(t)
	ctx, end := context.WithCancel(t.Context())
	l := &load{end: end, statuses: map[int]int{}}
	for i := range callers {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		l.done.Go(func() {
			for ctx.Err() == nil {
				kind := bodies[random.IntN(len(bodies))]
				status, err := post(s.URL+kind.path, kind.body)
				if err != nil {
					t.Error(err)
					return
				}
				l.mu.Lock()
				l.statuses[status]++
				l.mu.Unlock()
				time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.end()
	l.done.Wait()
}

// answered tells whether there were answers of all these.
func (l *load) answered(statuses ...int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(statuses, func(status int) bool { return l.statuses[status] == 0 })
}

// goWrong kills what the gateway brings back, a backend and then a Triton, and returns
// when Prometheus has seen that it did.
func goWrong(t *testing.T, s *stack.Stack, p *prometheus) {
	t.Helper()
	seen := func(counter string) func() bool {
		return func() bool { return len(p.query(t, "sum("+counter+") > 0")) > 0 }
	}
	backends := s.BackendPIDs("h1")
	if len(backends) == 0 {
		t.Fatal("h1 has no backend")
	}
	for _, pid := range backends {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	eventually(t, "a reload is counted", time.Minute, seen("histogate_model_reloads_total"))
	triton := s.TritonPID()
	if err := syscall.Kill(triton, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	eventually(t, "another Triton is started", time.Minute, func() bool { return s.TritonPID() != triton })
	p.find(t, s)
	eventually(t, "an end of Triton is counted", time.Minute, seen("histogate_triton_ends_total"))
	eventually(t, "all models are ready", time.Minute, func() bool { return len(p.query(t, "min(histogate_model_ready) == 1")) > 0 })
}

type kind struct {
	path string
	body []byte
}

// kinds are requests for every model, many tiles at once, and what is refused.
func kinds(t *testing.T) (all []kind) {
	t.Helper()
	paths := stack.TilePaths()
	for i, path := range paths {
		tile := stack.Tile{ImageData: stack.ReadTile(path), SlideName: fmt.Sprintf("slide-%d", i), Width: 224, Height: 224, Ratio: 0.5, PatchIdx: i}
		for _, model := range []string{"h0-mini", "h0", "h1"} {
			all = append(all, kind{"/api/embed/" + model, tile.Body()})
		}
		batch := fmt.Appendf(nil, `{"mode": "embedding", "requests": [%s, %s, {}, %s]}`, tile.Body(), tile.Body(), tile.Body())
		expression := tile
		expression.ModelName, expression.Mode = "m-optimus", "prediction_with_embedding"
		expression.BulkRNA = make([]float64, 19374)
		for gene := range expression.BulkRNA {
			expression.BulkRNA[gene] = float64((gene*7919 + i) % 1000)
		}
		all = append(all, kind{"/invocations", expression.Body()}, kind{"/api/batch/h1", batch})
	}
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewGray(image.Rect(0, 0, 8, 8))); err != nil {
		t.Fatal(err)
	}
	wrong := stack.Tile{ImageData: small.Bytes(), SlideName: "small", Width: 224, Height: 224}
	tissue := stack.Tile{ImageData: stack.Mosaic(512, 512, 0), SlideName: "tissue", Width: 512, Height: 512}
	return append(all, kind{"/api/predict/tissue-seg", tissue.Body()}, kind{"/api/embed/h1", wrong.Body()}, kind{"/api/embed/none", nil}, kind{"/invocations", []byte("{")})
}
