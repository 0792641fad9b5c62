package tritonclient

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// WithTraceContext returns a context whose calls carry the fields of a W3C trace
// context, traceparent and perhaps tracestate. A Triton that is started with
// --trace-config=mode=opentelemetry makes its spans of an inference parts of that
// trace, whatever its own sampling rate.
func WithTraceContext(ctx context.Context, fields map[string]string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.New(fields))
}
