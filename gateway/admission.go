package gateway

import (
	"context"
)

// admission bounds how much is taken on. Its two bounds differ in what happens
// beyond them: a request over the in-flight bound is refused at once and costs
// nothing, one that finds every CPU slot taken waits until its deadline.
type admission struct {
	inFlight chan struct{}
	slots    chan struct{}
}

func newAdmission(inFlight, slots int) *admission {
	return &admission{make(chan struct{}, inFlight), make(chan struct{}, slots)}
}

// enter counts a request in, or refuses it. A request that was let in calls
// leave when its answer is written.
func (a *admission) enter() error {
	select {
	case a.inFlight <- struct{}{}:
		return nil
	default:
		return refuse(CodeBusy, "")
	}
}

func (a *admission) leave() { <-a.inFlight }

// slot waits for one of the CPU slots. Its error is the context's.
func (a *admission) slot(ctx context.Context) (release func(), err error) {
	select {
	case a.slots <- struct{}{}:
		return func() { <-a.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
