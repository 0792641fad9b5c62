package gateway

import (
	"context"
	"sync/atomic"
)

// admission bounds how much is taken on. Its bounds differ in what happens beyond
// them: a request over the bounds on bytes and on requests in flight is refused at
// once, one that finds every CPU slot taken waits until its deadline.
type admission struct {
	requests budget
	bytes    budget // of their bodies
	slots    chan struct{}
}

func newAdmission(requests, slots, bytes int) *admission {
	a := &admission{slots: make(chan struct{}, slots)}
	a.requests.most, a.bytes.most = int64(requests), int64(bytes)
	return a
}

// budget is how much of something may be taken at once.
type budget struct {
	most    int64
	taken   atomic.Int64
	refused atomic.Uint64 // how often
}

// take takes n, or nothing where there are not so many left: one who asks for too many
// takes none away from others, not for a moment.
func (b *budget) take(n int) bool {
	for {
		taken := b.taken.Load()
		if taken+int64(n) > b.most {
			b.refused.Add(1)
			return false
		}
		if b.taken.CompareAndSwap(taken, taken+int64(n)) {
			return true
		}
	}
}

func (b *budget) give(n int) { b.taken.Add(-int64(n)) }

// reserve sets room for a body aside, before memory is: its size is the caller's
// word. Its holder gives back what was reserved.
func (a *admission) reserve(bytes int) error {
	if !a.bytes.take(bytes) {
		return refuse(CodeBusy, "the service holds as many bytes of requests as it can; send the request again later")
	}
	return nil
}

// enter counts n requests in, or refuses them all. Those that were let in are
// counted out by leave when their answer is written.
func (a *admission) enter(n int) error {
	if !a.requests.take(n) {
		return refuse(CodeBusy, "")
	}
	return nil
}

func (a *admission) leave(n int) { a.requests.give(n) }

// room tells whether a request with a body of so many bytes would be let in now.
func (a *admission) room(bytes int) error {
	if err := a.reserve(bytes); err != nil {
		return err
	}
	defer a.bytes.give(bytes)
	if err := a.enter(1); err != nil {
		return err
	}
	a.leave(1)
	return nil
}

// inFlight is how many requests are counted in.
func (a *admission) inFlight() int { return int(a.requests.taken.Load()) }

// slot waits for one of the CPU slots. Its error is the context's.
func (a *admission) slot(ctx context.Context) (release func(), err error) {
	select {
	case a.slots <- struct{}{}:
		return func() { <-a.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
