// Package openapi holds the OpenAPI document and the page made of it against the real
// thing: a gateway process with a real Triton, schemathesis, and a browser.
package openapi

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"histogate/gateway/openapi/openapitest"
	"histogate/tests/stack"
)

const apiKey = "0123456789abcdef"

// start starts a stack with every route that there is.
func start(t *testing.T) *stack.Stack {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(apiKey), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Env: []string{"API_KEYS_FILE=" + keys, "SAGEMAKER_RUNTIME_EMULATION=true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if code := s.Stop(); code != 0 {
			t.Errorf("the gateway ended with exit code %d", code)
		}
		if t.Failed() {
			t.Logf("what the stack wrote:\n%s", s.Output())
		}
	})
	return s
}

// What the document gives as examples is answered so, and requests that are made up from
// it, sound ones and others, are answered as it says.
func TestDocumentIsTrue(t *testing.T) {
	s := start(t)
	server := openapitest.Read(t, s.URL, apiKey)
	server.SendExamples(t)

	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "openapi.json"), server.Text, 0o600); err != nil {
		t.Fatal(err)
	}
	// It took 33 seconds on two cores that others used too.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	source := filepath.Join(stack.Root(), "tests", "openapi")
	cmd := exec.CommandContext(ctx, filepath.Join(stack.Root(), "build", "schemathesis", "bin", "schemathesis"),
		"--config-file", filepath.Join(source, "schemathesis.toml"),
		"run", "openapi.json", "--url", s.URL, "--checks", "all")
	cmd.Dir = folder // where it leaves what it found
	cmd.Env = append(os.Environ(), "GATEWAY="+s.URL, "API_KEY="+apiKey, "SCHEMATHESIS_HOOKS=hooks", "PYTHONPATH="+source, "PYTHONDONTWRITEBYTECODE=1")
	report, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("schemathesis: %v (deploy/setup installs it)\n%s", err, report)
	}
	operations := 0
	for _, methods := range server.Document.Paths {
		operations += len(methods)
	}
	_, summary, _ := strings.Cut(string(report), " SUMMARY ")
	if !strings.Contains(summary, fmt.Sprintf("Tested: %d\n", operations)) {
		t.Errorf("schemathesis has not tested all %d routes", operations)
	}
	t.Logf("schemathesis:%s", summary)
}

// The page shows every route to a browser, and has it load nothing else.
func TestPage(t *testing.T) {
	s, err := stack.Launch(stack.Options{Env: []string{"TRITON_SERVER=", "TRITON_ADDRESS=127.0.0.1:1", "SAGEMAKER_RUNTIME_EMULATION=true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	document := openapitest.Read(t, s.URL, "").Document
	page, fetched := browse(t, s.URL+"/docs")
	if len(fetched) != 1 || fetched[0] != s.URL+"/docs" {
		t.Errorf("the browser fetches %q", fetched)
	}
	for path, methods := range document.Paths {
		for method, operation := range methods {
			if title := "<code>" + strings.ToUpper(method) + " " + path + "</code>"; strings.Count(page, title) != 1 {
				t.Errorf("the page has not one %s", title)
			}
			for status := range operation.Responses {
				if !strings.Contains(page, "<td>"+status+"</td>") {
					t.Errorf("the page does not have the status %s", status)
				}
			}
		}
	}
	for code := range document.Components.Examples {
		if !strings.Contains(page, "<code>"+code+"</code>") {
			t.Errorf("the page does not have the code %s", code)
		}
	}
	for _, model := range []string{"h0-mini", "h0", "h1", "m-optimus", "m-optimus-stx", "tissue-seg"} {
		if !strings.Contains(page, "<code>"+model+"</code>") {
			t.Errorf("the page does not have the model %s", model)
		}
	}
}

// A page that loads something from elsewhere is noticed.
func TestBrowseNoticesRequests(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(page, []byte(`<!DOCTYPE html><img src="http://127.0.0.2:9/elsewhere.png">`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, fetched := browse(t, "file://"+page); len(fetched) != 1 || fetched[0] != "http://127.0.0.2:9/elsewhere.png" {
		t.Errorf("the browser fetches %q", fetched)
	}
}

// browse opens a page in a browser. It returns what the page has become there, as HTML,
// and the URLs of all that the browser asked a network for.
func browse(t *testing.T, url string) (page string, fetched []string) {
	t.Helper()
	folder := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log := filepath.Join(folder, "log.json")
	// Without a sandbox, which root and containers cannot have: it opens our own page.
	cmd := exec.CommandContext(ctx, "chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--user-data-dir="+filepath.Join(folder, "profile"), "--log-net-log="+log, "--dump-dom", url)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	html, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium-headless-shell: %v (deploy/setup installs it)\n%s", err, stderr.String())
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var events struct {
		Constants struct{ LogEventTypes map[string]int }
		Events    []struct {
			Type   int
			Params struct{ URL string }
		}
	}
	if err := json.Unmarshal(text, &events); err != nil {
		t.Fatal(err)
	}
	began, ok := events.Constants.LogEventTypes["URL_REQUEST_START_JOB"]
	if !ok {
		t.Fatal("the browser's log has other names for its events than this test")
	}
	for _, event := range events.Events {
		if event.Type == began && event.Params.URL != "" {
			fetched = append(fetched, event.Params.URL)
		}
	}
	return string(html), fetched
}
