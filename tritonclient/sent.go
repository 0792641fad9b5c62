package tritonclient

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

type sentKey struct{}

// watchSending has the context remember whether its RPC was given to a
// connection. Until then, while gRPC looks for one, nothing has been written.
func watchSending(ctx context.Context) context.Context {
	return context.WithValue(ctx, sentKey{}, new(atomic.Bool))
}

// wasSent is true where that is not known.
func wasSent(ctx context.Context) bool {
	sent, ok := ctx.Value(sentKey{}).(*atomic.Bool)
	return !ok || sent.Load()
}

// sendWatcher is told by gRPC what becomes of each RPC.
type sendWatcher struct{}

// HandleRPC implements [stats.Handler].
func (sendWatcher) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); !ok {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

// TagRPC implements [stats.Handler].
func (sendWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements [stats.Handler].
func (sendWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (sendWatcher) HandleConn(context.Context, stats.ConnStats) {}
