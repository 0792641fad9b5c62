package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// /readyz says what /ping says, /livez yes while the process answers.
func TestProbes(t *testing.T) {
	r := run(t, nil)
	probe := func(when, query string, want map[string]int) {
		t.Helper()
		for path, status := range want {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				a := do(t, r.request(t, method, path+query, ""))
				if a.status != status || status == http.StatusOK && a.raw != "" {
					t.Errorf("%s: %s %s: %d %s", when, method, path, a.status, a.raw)
				}
			}
		}
	}
	const yes, no = http.StatusOK, http.StatusServiceUnavailable
	probe("ready", "", map[string]int{"/ping": yes, "/readyz": yes, "/livez": yes})
	probe("an unknown model", "?model=nope", map[string]int{"/ping": 404, "/readyz": 404, "/livez": yes})
	r.triton.Update(func(s *tritontest.Server) {
		m := *s.Models["small"]
		m.Infer = func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			return nil, status.Error(codes.Internal, "broken")
		}
		s.Models["small"] = &m
	})
	r.post(t, "/invocations", goodTile)
	r.await(t, no)
	probe("failing", "", map[string]int{"/ping": no, "/readyz": no, "/livez": yes})
	probe("one model", "?model=small", map[string]int{"/ping": no, "/readyz": no, "/livez": yes})
	ping, readyz := do(t, r.request(t, http.MethodGet, "/ping", "")), do(t, r.request(t, http.MethodGet, "/readyz", ""))
	if ping.Detail != readyz.Detail || ping.Code != readyz.Code {
		t.Errorf("/ping says %s, /readyz %s", ping.raw, readyz.raw)
	}
}

// What is for the operator is on METRICS_PORT alone, and profiles only where they are
// asked for.
func TestOperatorsRoutes(t *testing.T) {
	for _, profiles := range []bool{false, true} {
		r := run(t, func(c *Config) { c.PProf = profiles })
		admin := httptest.NewServer(r.admin())
		defer admin.Close()
		for path, there := range map[string]bool{
			"/metrics": true, "/debug/pprof/": profiles, "/debug/pprof/heap": profiles, "/debug/pprof/cmdline": profiles, "/debug/vars": false, "/ping": false,
		} {
			if a := do(t, r.request(t, http.MethodGet, path, "")); path != "/ping" && a.Code != CodeNotFound {
				t.Errorf("the API's port answers %s with %d", path, a.status)
			}
			response, err := http.Get(admin.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if (response.StatusCode == http.StatusOK) != there {
				t.Errorf("with profiles %v METRICS_PORT answers %s with %d", profiles, path, response.StatusCode)
			}
		}
	}
}

// For DRAIN_DELAY new connections are taken, while readiness is off.
func TestDrainDelay(t *testing.T) {
	const delay = 1500 * time.Millisecond
	r := run(t, func(c *Config) { c.DrainDelay, c.DrainLimit = delay, 5*time.Second })
	http.DefaultClient.CloseIdleConnections()
	began := time.Now()
	r.stop()
	until(t, "it drains", r.draining.Load)
	get := func(what string) (status int, closes bool) {
		conn, answers := r.dial(t)
		defer conn.Close()
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\n\r\n", what)
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode, response.Close
	}
	for what, want := range map[string]int{"GET /ping": 503, "GET /readyz": 503, "GET /livez": 200, "GET /nothing": 404, "BREW /livez": 405} {
		if status, closes := get(what); status != want || !closes {
			t.Errorf("%s on a new connection: %d, closed: %v", what, status, closes)
		}
	}
	conn, answers := r.dial(t)
	if status, closes := ask(t, conn, answers); status != http.StatusOK || !closes {
		t.Errorf("a tile on a new connection: %d, closed: %v", status, closes)
	}
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	r.ended <- nil // for the clean-up
	if took := time.Since(began); took < delay || took > delay+3*time.Second {
		t.Errorf("it ended after %s", took)
	}
	if late, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
		_ = late.Close()
		t.Error("a connection was taken after the drain")
	}
}
