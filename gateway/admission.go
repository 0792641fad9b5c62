package gateway

import (
	"context"
	"sync/atomic"
)

// admission bounds how much is taken on. Its bounds differ in what happens beyond
// them: a request over the bounds on bytes and on requests in flight is refused at
// once, one that finds every CPU slot taken waits until its deadline.
type admission struct {
	inFlight chan struct{}
	slots    chan struct{}
	limit    int
	bytes    atomic.Int64 // of request bodies that may still be taken in, out of limit

	overRequests, overBytes atomic.Uint64 // refusals, by the bound that was met
}

func newAdmission(inFlight, slots, bytes int) *admission {
	a := &admission{inFlight: make(chan struct{}, inFlight), slots: make(chan struct{}, slots), limit: bytes}
	a.bytes.Store(int64(bytes))
	return a
}

// reserve sets room for a body aside, before memory is: its size is the caller's
// word. What was reserved is given back with release.
func (a *admission) reserve(bytes int) error {
	if a.bytes.Add(-int64(bytes)) < 0 {
		a.release(bytes)
		a.overBytes.Add(1)
		return refuse(CodeBusy, "the service holds as many bytes of requests as it can; send the request again later")
	}
	return nil
}

func (a *admission) release(bytes int) { a.bytes.Add(int64(bytes)) }

// enter counts n requests in, or refuses them all. Those that were let in are
// counted out by leave when their answer is written.
func (a *admission) enter(n int) error {
	for entered := range n {
		select {
		case a.inFlight <- struct{}{}:
		default:
			a.leave(entered)
			a.overRequests.Add(1)
			return refuse(CodeBusy, "")
		}
	}
	return nil
}

func (a *admission) leave(n int) {
	for range n {
		<-a.inFlight
	}
}

// slot waits for one of the CPU slots. Its error is the context's.
func (a *admission) slot(ctx context.Context) (release func(), err error) {
	select {
	case a.slots <- struct{}{}:
		return func() { <-a.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
