// Package observe looks at a real stack as an operator does: through its metrics, in a
// real Prometheus, and its traces.
package observe

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"histogate/tests/stack"
)

// start starts a stack that ends with the test.
func start(t *testing.T, env ...string) *stack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if code := s.Stop(); code != 0 {
			t.Errorf("the gateway ended with exit code %d", code)
		}
		if t.Failed() {
			t.Log(s.Output())
		}
	})
	return s
}

// post sends a body and returns the status; headers are name, value pairs.
func post(url string, body []byte, headers ...string) (int, error) {
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
