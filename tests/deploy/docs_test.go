package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the documents for operators name in backquotes is there: settings, metrics,
// files, and what links point to.
func TestDocuments(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(root, "deploy", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"deploy/k8s/README.md", "deploy/sagemaker/README.md", "deploy/grafana/dashboards/README.md", "tests/README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		documents = append(documents, filepath.Join(root, path))
	}
	known := map[string]bool{
		// The set-up's own, and those of other programs.
		"HISTOGATE_CACHE": true, "SAGEMAKER_BIND_TO_PORT": true, "GOMEMLIMIT": true, "CUDA_VISIBLE_DEVICES": true,
		"OTEL_SERVICE_NAME": true, "OTEL_RESOURCE_ATTRIBUTES": true, "OTEL_EXPORTER_OTLP_HEADERS": true, "OTEL_BSP_MAX_QUEUE_SIZE": true,
		// Not variables.
		"KIND_GPU": true,
		// make's.
		"FUZZ_MUTANTS": true, "SOAK_MINUTES": true,
	}
	for name := range settings(t) {
		known[name] = true
	}
	for _, match := range regexp.MustCompile(`(?m)^#(\w+)=`).FindAllStringSubmatch(read(t, ".env.example"), -1) {
		known[match[1]] = true
	}
	targets := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[match[1]] = true
	}
	metrics := metricNames(t)
	variable := regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b`)
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		prose := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(text), "")
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(prose, -1) {
			for _, name := range variable.FindAllString(match[1], -1) {
				if !known[name] {
					t.Errorf("%s names %s, which is no setting", path, name)
				}
			}
			for _, name := range regexp.MustCompile(`\b(?:histogate|nv)_\w+`).FindAllString(match[1], -1) {
				if !metrics[name] {
					t.Errorf("%s names %s, which is no metric", path, name)
				}
			}
			if regexp.MustCompile(`^[\w.-]+/[\w./-]+$`).MatchString(match[1]) && !exists(filepath.Dir(path), match[1]) {
				t.Errorf("%s names %s, which is no file", path, match[1])
			}
		}
		for _, match := range regexp.MustCompile("`make ([a-z0-9-]+)").FindAllStringSubmatch(string(text), -1) {
			if !targets[match[1]] {
				t.Errorf("%s names make %s, which is no target", path, match[1])
			}
		}
		for _, match := range regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(prose, -1) {
			if strings.HasPrefix(match[1], "https://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), match[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", path, match[1])
			}
		}
	}
}

// Everything in tests/ has a row in its README, and each row is of something there.
func TestTestsReadme(t *testing.T) {
	named := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(read(t, "tests/README.md"), -1) {
		named[match[1]] = true
		if _, err := os.Stat(filepath.Join(root, "tests", match[1])); err != nil {
			t.Errorf("there is no %s", match[1])
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, "tests"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "README.md" && !named[e.Name()] {
			t.Errorf("no row for %s", e.Name())
		}
	}
}

// exists tells whether a path is there: in the folder, above it, among what is laid out
// by set-up or the reader, or a path of Triton's HTTP.
func exists(folder, path string) bool {
	for _, from := range []string{folder, filepath.Join(root, "deploy"), root} {
		if found, _ := filepath.Glob(filepath.Join(from, path)); found != nil {
			return true
		}
	}
	first, _, _ := strings.Cut(path, "/")
	return first == "build" || first == "checkpoints" || first == "assets"
}

// metricNames are the gateway's, out of its source (most show only when something was
// counted), and those of a running Triton.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	sources, err := filepath.Glob(filepath.Join(root, "gateway", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`"(histogate_\w+)"`).FindAllStringSubmatch(string(text), -1) {
			names[match[1]] = true
		}
	}
	backend := runTriton(t) // which has most of them only with a model
	await(t, "http://127.0.0.1:"+backend.http+"/v2/health/live")
	await(t, serve(t, "MODELS=h1", "MODEL_REPOSITORY="+absolute(t, "model_repository"), "TRITON_ADDRESS=127.0.0.1:"+backend.grpc).url+"/ping")
	text := fetch(t, "http://127.0.0.1:"+backend.metrics+"/metrics")
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (\w+)`).FindAllStringSubmatch(string(text), -1) {
		names[match[1]] = true
	}
	return names
}
