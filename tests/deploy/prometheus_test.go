package deploy

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// promtool judges what Prometheus is given. It is Debian's, of another version than the
// image's: a field that only the newer one knows would be refused here.
func TestPromtool(t *testing.T) {
	out, err := exec.Command(absolute(t, "build/prometheus/promtool"), "check", "config", absolute(t, "deploy/prometheus/prometheus.yml")).CombinedOutput()
	if err != nil {
		t.Errorf("%v (deploy/setup brings promtool)\n%s", err, out)
	}
}

// What dashboards and alerts name is exposed: metrics, and the jobs that scrape them. That
// their queries find data is for tests/observe.
func TestQueriesNameMetrics(t *testing.T) {
	paths, err := filepath.Glob(absolute(t, "deploy/grafana/dashboards/*.json"))
	if err != nil || paths == nil {
		t.Fatal("there are no dashboards", err)
	}
	alerts, err := filepath.Glob(absolute(t, "deploy/prometheus/alerts*.yml"))
	if err != nil || alerts == nil {
		t.Fatal("there are no alerts", err)
	}
	metrics, jobs := metricNames(t), scrapeJobs(t)
	for _, path := range append(paths, alerts...) {
		text := read(t, path)
		named := regexp.MustCompile(`\b(?:histogate|nv)_\w+`).FindAllString(text, -1)
		if named == nil {
			t.Errorf("%s names no metric", path)
		}
		for _, name := range named {
			histogram := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !metrics[name] && !metrics[histogram] {
				t.Errorf("%s names %s, which is no metric", path, name)
			}
		}
		for _, match := range regexp.MustCompile(`job=\\?"(\w+)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(jobs, match[1]) {
				t.Errorf("%s names the job %s; those of Prometheus are %v", path, match[1], jobs)
			}
		}
	}
}

// scrapeJobs are those of docker-compose.yml's Prometheus.
func scrapeJobs(t *testing.T) (jobs []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`job_name: (\w+)`).FindAllStringSubmatch(read(t, "deploy/prometheus/prometheus.yml"), -1) {
		jobs = append(jobs, match[1])
	}
	return jobs
}

// What Prometheus is to scrape and Grafana to ask is there. The configuration itself is
// for promtool to judge, which TestPromtool does.
func TestComposeMetrics(t *testing.T) {
	project, defaults := compose(t, nil, composeFile), settings(t)
	var config struct {
		RuleFiles     []string `json:"rule_files"`
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/prometheus.yml")), &config); err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, s := range config.ScrapeConfigs {
		for _, group := range s.StaticConfigs {
			targets = append(targets, group.Targets...)
		}
	}
	exposed := dockerfile(t, project.Services["triton"].Build.Dockerfile).stage("onnx").ports
	if !slices.Contains(exposed, "8002") || !slices.Equal(targets, []string{"gateway:" + defaults["METRICS_PORT"], "triton:8002"}) {
		t.Errorf("Prometheus scrapes %v; the gateway's METRICS_PORT is %s, Triton's image has ports %v", targets, defaults["METRICS_PORT"], exposed)
	}
	prometheus, grafana := project.Services["prometheus"], project.Services["grafana"]
	if m := mounted(prometheus, "/etc/prometheus"); m == nil || m.Source != absolute(t, "deploy/prometheus") ||
		!slices.Contains(prometheus.Command, "--config.file=/etc/prometheus/prometheus.yml") {
		t.Errorf("Prometheus is started with %v and has %v", prometheus.Command, m)
	}

	var sources struct {
		Datasources []struct{ UID, URL string }
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/grafana/provisioning/datasources/prometheus.yml")), &sources); err != nil {
		t.Fatal(err)
	}
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" || sources.Datasources[0].UID != "prometheus" {
		t.Errorf("Grafana's sources are %+v", sources.Datasources)
	}
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/grafana/provisioning/dashboards/histogate.yml")), &providers); err != nil {
		t.Fatal(err)
	}
	if m := mounted(grafana, "/etc/grafana/provisioning"); m == nil || m.Source != absolute(t, "deploy/grafana/provisioning") {
		t.Errorf("Grafana's provisioning is %v", m)
	}
	if m := mounted(grafana, providers.Providers[0].Options.Path); m == nil || m.Source != absolute(t, "deploy/grafana/dashboards") {
		t.Errorf("Grafana's dashboards are at %s, where %v is mounted", providers.Providers[0].Options.Path, m)
	}
}
