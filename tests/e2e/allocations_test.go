package e2e

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"histogate/tests/stack"
)

// What the gateway may allocate for a request. Counted by its own runtime over 3,000
// they were 169 and 12.5 KiB: by a profile a third of them the gateway's own, a quarter
// gRPC's, 13 the PNG decoder's and 15 contexts. None may be as large as what comes from
// pools: a body of 150 KiB, a tile of 147, a tensor of 588.
const (
	mostAllocations = 200
	mostAllocated   = 24 << 10 // bytes
)

// TestAllocationBudget holds the whole path to it. The race detector would distort it:
// this stack is always built without.
func TestAllocationBudget(t *testing.T) {
	const requests, inFlight = 3000, 16
	s := startAsIs(t, stack.Options{Env: []string{"MODELS=h1"}})
	bodies := make([][]byte, 8)
	for i := range bodies {
		bodies[i] = tileRequest("h1", i, i).Body()
	}
	run := func(requests int) {
		var next atomic.Int64
		var callers sync.WaitGroup
		for range inFlight {
			callers.Go(func() {
				for {
					n := int(next.Add(1))
					if n > requests {
						return
					}
					if a, err := s.Post("/invocations", bodies[n%len(bodies)]); err != nil || a.Status != http.StatusOK {
						t.Errorf("%v, %+v", err, a)
						return
					}
				}
			})
		}
		callers.Wait()
	}
	counters := func() (allocations, bytes float64) {
		allocations, err := s.Metric("go_memstats_mallocs_total")
		if err != nil {
			t.Fatal(err)
		}
		bytes, err = s.Metric("go_memstats_alloc_bytes_total")
		if err != nil {
			t.Fatal(err)
		}
		return allocations, bytes
	}
	run(4 * inFlight) // pools are filled then
	allocations, bytes := counters()
	if bytes == 0 {
		t.Fatal("the gateway counts no allocations")
	}
	run(requests)
	after, bytesAfter := counters()
	each, size := (after-allocations)/requests, (bytesAfter-bytes)/requests
	t.Logf("%.0f allocations and %.1f KiB a request", each, size/1024)
	if each > mostAllocations || size > mostAllocated {
		t.Errorf("%.0f allocations and %.1f KiB a request, want at most %d and %d", each, size/1024, mostAllocations, mostAllocated>>10)
	}
}
