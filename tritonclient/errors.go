package tritonclient

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind says what went wrong, as far as a caller has to tell it apart.
type Kind int

// The kinds of failure. The zero value is not a kind.
const (
	_ Kind = iota
	// Unavailable: no server, a server that starts or stops, a lost connection.
	Unavailable
	// QueueFull: Triton's queue of the model has reached its bound.
	QueueFull
	// QueueTimeout: the request waited in Triton's queue for too long.
	QueueTimeout
	// NotFound: no such model, or it is not loaded.
	NotFound
	// Canceled: the caller's context was cancelled.
	Canceled
	// DeadlineExceeded: the caller's deadline passed while Triton had the request.
	DeadlineExceeded
	// ExecuteFailed: the model failed on the batch that held the request.
	ExecuteFailed
	// BackendDead: the model's process is gone; it does not come back by itself.
	BackendDead
	// Rejected: Triton found the request at odds with the model's configuration.
	Rejected
	// BadOutput: the answer is not what was asked for.
	BadOutput
	// NoModelControl: the server does not load or unload models on request.
	NoModelControl
)

func (k Kind) String() string {
	switch k {
	case Unavailable:
		return "unavailable"
	case QueueFull:
		return "queue full"
	case QueueTimeout:
		return "queue timeout"
	case NotFound:
		return "not found"
	case Canceled:
		return "canceled"
	case DeadlineExceeded:
		return "deadline exceeded"
	case ExecuteFailed:
		return "execute failed"
	case BackendDead:
		return "backend dead"
	case Rejected:
		return "rejected"
	case BadOutput:
		return "bad output"
	case NoModelControl:
		return "no model control"
	default:
		return fmt.Sprintf("kind %d", int(k))
	}
}

// Error is the one error type of this package.
type Error struct {
	Op    string // the RPC, such as "ModelInfer"
	Model string // empty for RPCs about the server
	Kind  Kind
	Code  codes.Code
	// Sent tells whether any of the request may have reached the server. One that
	// was never sent cannot have done anything there, and may be sent again.
	Sent bool
	// Detail is Triton's or gRPC's own text, or what was wrong with an answer.
	// It can hold paths of the server and a Python traceback: it is for the log,
	// never for a caller.
	Detail string
}

func (e *Error) Error() string {
	if e.Model == "" {
		return fmt.Sprintf("triton %s: %s: %s", e.Op, e.Kind, e.Detail)
	}
	return fmt.Sprintf("triton %s of model %q: %s: %s", e.Op, e.Model, e.Kind, e.Detail)
}

// wrap classifies the error of an RPC. The messages are those of Triton 2.51;
// where a message is not known its status decides. Sent is true, for it is not known
// to be false.
func wrap(ctx context.Context, op, model string, err error) error {
	if err == nil {
		return nil
	}
	return failureOf(ctx, op, model, err)
}

func failureOf(ctx context.Context, op, model string, err error) *Error {
	s := status.Convert(err)
	return &Error{Op: op, Model: model, Kind: kindOfStatus(ctx, s), Code: s.Code(), Sent: true, Detail: s.Message()}
}

// isAnswer tells a failure that the server reported from one that ended the call
// while the server may still have been at work on it.
func (e *Error) isAnswer() bool {
	switch e.Kind {
	case Unavailable, Canceled, DeadlineExceeded:
		return false
	default:
		return true
	}
}

func kindOfStatus(ctx context.Context, s *status.Status) Kind {
	// Whatever gRPC made of it: a caller that gave up is not Triton's failure.
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return Canceled
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return DeadlineExceeded
	}
	switch s.Code() {
	case codes.Unavailable:
		switch {
		case strings.Contains(s.Message(), "Exceeds maximum queue size"):
			return QueueFull
		case strings.Contains(s.Message(), "Request timeout expired"):
			return QueueTimeout
		case strings.Contains(s.Message(), "explicit model load / unload is not allowed"):
			return NoModelControl
		default:
			return Unavailable
		}
	case codes.NotFound:
		return NotFound
	case codes.Canceled:
		return Canceled
	case codes.DeadlineExceeded:
		return DeadlineExceeded
	case codes.InvalidArgument:
		return Rejected
	case codes.ResourceExhausted: // larger than the client agreed to receive
		return BadOutput
	default:
		if strings.Contains(s.Message(), "is not healthy") {
			return BackendDead
		}
		return ExecuteFailed
	}
}
