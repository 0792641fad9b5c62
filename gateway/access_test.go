package gateway

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const (
	oneKey   = "one-key-0123456789"
	otherKey = "Other.Key~0123456789+/=="
	newKey   = "new-key-0123456789"
)

func keyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every route but the probes takes a key, and one that is no good is told so in a way
// that its caller can read, whatever it has sent.
func TestKeys(t *testing.T) {
	path := keyFile(t, "# whose it is\r\n\n  "+oneKey+"  \r\n"+otherKey)
	r := run(t, func(c *Config) { c.APIKeysFile, c.RuntimeEmulation = path, true })
	for _, test := range []struct {
		header []string
		status int
	}{
		{nil, 401},
		{[]string{"Authorization", "Bearer " + oneKey}, 200},
		{[]string{"Authorization", "bearer  " + otherKey}, 200},
		{[]string{"X-API-Key", oneKey}, 200},
		{[]string{"x-api-key", otherKey}, 200},
		{[]string{"X-API-Key", otherKey, "Authorization", "AWS4-HMAC-SHA256 Credential=x"}, 200},
		{[]string{"Authorization", "Bearer"}, 401},
		{[]string{"Authorization", "Bearer "}, 401},
		{[]string{"Authorization", oneKey}, 401},
		{[]string{"Authorization", "Basic " + oneKey}, 401},
		{[]string{"Authorization", "Bearer " + oneKey + "x"}, 401},
		{[]string{"Authorization", "Bearer " + oneKey[1:]}, 401},
		{[]string{"Authorization", "Bearer " + strings.ToUpper(oneKey)}, 401},
		{[]string{"X-API-Key", "# whose it is"}, 401},
		{[]string{"X-API-Key", "wrong", "Authorization", "Bearer " + oneKey}, 401},
		{[]string{"X-API-Key", newKey}, 401},
	} {
		a := r.post(t, "/invocations", goodTile, test.header...)
		if a.status != test.status {
			t.Errorf("%q: %d %s", test.header, a.status, a.raw)
		}
		if test.status == http.StatusUnauthorized {
			wantFailure(t, a, http.StatusUnauthorized, CodeUnauthorized, "API key")
		}
		if told := a.header.Get("WWW-Authenticate"); (told == "Bearer") != (test.status == http.StatusUnauthorized) {
			t.Errorf("%q: WWW-Authenticate %q", test.header, told)
		}
	}
	open := map[string]bool{"/ping": true, "/readyz": true, "/livez": true}
	for _, route := range r.app.GetRoutes(true) {
		path := strings.NewReplacer(":model", "small", ":name", "any").Replace(route.Path)
		if a := do(t, r.request(t, route.Method, path, "")); (a.status == http.StatusUnauthorized) == open[route.Path] {
			t.Errorf("%s %s without a key: %d", route.Method, path, a.status)
		}
	}
	conn := r.send(t, "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
	if told, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(told), "HTTP/1.1 401 ") || !strings.Contains(string(told), "API key") {
		t.Errorf("who waits to send a body without a key is told %q, %v", told, err)
	}
	large := r.request(t, http.MethodPost, "/invocations", strings.Repeat("x", 8<<20))
	wantFailure(t, do(t, large), http.StatusUnauthorized, CodeUnauthorized)

	// Read again: another set, and then what cannot be used, which changes nothing.
	with := func(key string) int { return r.post(t, "/invocations", goodTile, "X-API-Key", key).status }
	for _, text := range []string{newKey + "\n", "", "# none\n", "short\n", newKey + "x y\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Reload()
		if with(newKey) != http.StatusOK || with(oneKey) != http.StatusUnauthorized {
			t.Errorf("after reading %q: %d, %d", text, with(newKey), with(oneKey))
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.Reload()
	if with(newKey) != http.StatusOK {
		t.Error("a file that is gone took the keys away")
	}
	if n := strings.Count(r.log.String(), "could not be read again"); n != 5 {
		t.Errorf("%d failures to read the file are logged:\n%s", n, r.log)
	}
}

// Keys stand in no log, answer or metric, good or not, however broken the request.
func TestKeysAreNotTold(t *testing.T) {
	r := run(t, func(c *Config) { c.APIKeysFile = keyFile(t, oneKey) })
	for _, fields := range []string{
		"Authorization: Bearer KEY", "X-API-Key: KEY", "Authorization: Bearer KEY\x01", "Authorization Bearer KEY", "Authorization : Bearer KEY",
		"Authorization: Bearer KEY\r\nContent-Length: 1\r\nContent-Length: 2", "Authorization: Bearer\r\n KEY", "KEY: x", "K EY\x02: KEY", "Transfer-Encoding: KEY",
		"Content-Length: KEY", "Host: KEY", "X-Mode: KEY\r\nX-API-Key: KEY", "X-API-Key: KEY\r\nCookie: " + strings.Repeat("x", 20<<10),
	} {
		for _, line := range []string{"POST /invocations HTTP/1.1", "POST /invocations KEY", "POST /inv ocations HTTP/1.1", "KEY{ / HTTP/1.1"} {
			for _, key := range []string{oneKey, newKey} {
				conn := r.send(t, strings.ReplaceAll(fmt.Sprintf("%s\r\nHost: x\r\n%s\r\n\r\n", line, fields), "KEY", key))
				var answer bytes.Buffer
				if _, err := answer.ReadFrom(half(conn)); err != nil {
					t.Errorf("%s, %q: %v", line, fields, err)
				}
				if strings.Contains(answer.String(), key) {
					t.Errorf("%s, %q: %s", line, fields, &answer)
				}
			}
		}
	}
	families, err := r.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := json.Marshal(families)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{oneKey, newKey} {
		if strings.Contains(r.log.String(), key) || bytes.Contains(metrics, []byte(key)) {
			t.Errorf("%s is told in the log or the metrics", key)
		}
	}
}

func TestKeyFilesThatAreWrong(t *testing.T) {
	for text, named := range map[string]string{
		"":                                     "holds no key",
		"# a comment\n\n":                      "holds no key",
		oneKey + "\nfifteen-letters":           "line 2",
		"\n" + oneKey + "\n" + newKey + " # x": "line 3",
		"\ufeff" + oneKey:                      "line 1",
	} {
		path := keyFile(t, text)
		_, err := New(t.Context(), &Config{APIKeysFile: path, TLSCertFile: "/nonexistent/cert", TLSKeyFile: "/nonexistent/key"}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), named) || !strings.Contains(err.Error(), "API_KEYS_FILE=") || !strings.Contains(err.Error(), "TLS_CERT_FILE=") {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && strings.Contains(err.Error(), "key-0123") {
			t.Errorf("the mistake tells a key: %v", err)
		}
	}
	if _, err := New(t.Context(), &Config{APIKeysFile: "/nonexistent/keys"}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// Whatever a request names is nothing to be fetched: it is text where an image is
// expected.
func TestNothingIsFetched(t *testing.T) {
	r := run(t, nil)
	var fetched atomic.Int64
	bait := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
	defer bait.Close()
	path := filepath.Join(t.TempDir(), "tile.png")
	if err := os.WriteFile(path, []byte(rawTile(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	tile := func(image string) string {
		return fmt.Sprintf(`{"image_data":%q,"slide_name":"S1","x":1,"y":2,"width":8,"height":8,"patch_idx":7,"model_name":"small","mode":"embedding"}`, image)
	}
	for _, image := range []string{bait.URL + "/tile.png", "https" + strings.TrimPrefix(bait.URL, "http") + "/tile.png", "file://" + path, path, "s3://bucket/tile.png", "//" + bait.URL} {
		wantFailure(t, r.post(t, "/invocations", tile(image)), http.StatusBadRequest, "invalid_image", "image_data", "base64")
		wantFailure(t, r.post(t, "/invocations", tile(base64.StdEncoding.EncodeToString([]byte(image)))), http.StatusBadRequest, "invalid_image", "image_data")
		wantFailure(t, r.post(t, "/api/embed/small?slide_name=S1&x=1&y=2&width=8&height=8&patch_idx=7", image, "Content-Type", "image/svg+xml"), http.StatusBadRequest, "invalid_image")
	}
	conn := r.send(t, "GET "+bait.URL+"/tile.png HTTP/1.1\r\nHost: "+strings.TrimPrefix(bait.URL, "http://")+"\r\n\r\n") // as to a proxy
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound || fetched.Load() != 0 {
		t.Errorf("as a proxy: %d; %d URLs were fetched", answer.StatusCode, fetched.Load())
	}
}

func BenchmarkKeys(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := &keys{path: filepath.Join(b.TempDir(), "keys")}
			text := strings.Repeat(oneKey+"\n", n)
			if err := os.WriteFile(k.path, []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
			if err := k.read(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if !k.hold(oneKey) {
					b.Fatal("refused")
				}
			}
		})
	}
}
