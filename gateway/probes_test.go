package gateway

import (
	"context"
	"net/http"
	"testing"

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
