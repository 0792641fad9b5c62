package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

// SIGHUP has the binary read its API keys again, and does nothing else to it.
func TestSIGHUPReadsTheKeysAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write := func(key string) {
		if err := os.WriteFile(path, []byte("# for tests\n"+key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const before, after = "before-0123456789", "after-0123456789"
	write(before)
	s, err := stack.Launch(stack.Options{Race: raceEnabled, Env: []string{"MODELS=h1", "API_KEYS_FILE=" + path}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if code := s.Stop(); code != 0 {
			t.Errorf("the gateway ended with exit code %d:\n%s", code, s.Output())
		}
	}()
	with := func(key string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/metadata/h1", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+key)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if old, coming := with(before), with(after); old != http.StatusOK || coming != http.StatusUnauthorized {
		t.Errorf("at first: %d, %d", old, coming)
	}
	write(after)
	if err := s.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if with(after) == http.StatusOK {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if old, coming := with(before), with(after); old != http.StatusUnauthorized || coming != http.StatusOK {
		t.Errorf("after SIGHUP: %d, %d\n%s", old, coming, s.Output())
	}
}
