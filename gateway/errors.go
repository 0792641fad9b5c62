package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"histogate/prep"
	"histogate/tritonclient"
)

// Code says in one word why a request failed. The set is closed; each code has
// one status. Codes of stage 1 are package prep's.
type Code string

// The codes of the gateway itself and of the shared stage.
const (
	CodeUnauthorized         Code = "unauthorized"
	CodeNotFound             Code = "not_found"
	CodeUnknownModel         Code = "unknown_model"
	CodeMethodNotAllowed     Code = "method_not_allowed"
	CodeNotAcceptable        Code = "not_acceptable"
	CodeRequestTimeout       Code = "request_timeout"
	CodeBodyTooLarge         Code = "body_too_large"
	CodeUnsupportedMediaType Code = "unsupported_media_type"
	CodeHeaderTooLarge       Code = "header_too_large"
	CodeMalformedHTTP        Code = "malformed_http"
	CodeBusy                 Code = "busy"
	CodeQueueTimeout         Code = "queue_timeout"
	CodeBackendUnavailable   Code = "backend_unavailable"
	CodeBackendTimeout       Code = "backend_timeout"
	CodeForwardFailed        Code = "forward_failed"
	CodeInternal             Code = "internal"
	// CodeCallerGone is for the log and the metrics; nobody reads the answer.
	CodeCallerGone Code = "caller_gone"
)

// statusModelError is the one status under which SageMaker's runtime hands on what a
// container failed with.
const statusModelError = http.StatusFailedDependency

// refusal is an error that the gateway itself found, already classified.
type refusal struct {
	code   Code
	detail string // for the caller; a fixed sentence for a 5xx
	err    error  // for the log
	// lasting tells that somebody has to mend something first: no hint is given of
	// when to try again.
	lasting bool
}

func (r *refusal) Error() string {
	if r.err != nil {
		return r.detail + ": " + r.err.Error()
	}
	return r.detail
}

func (r *refusal) Unwrap() error { return r.err }

func refuse(code Code, format string, args ...any) *refusal {
	return &refusal{code: code, detail: fmt.Sprintf(format, args...)}
}

// errCallerGone is the end of a request whose caller has closed the connection.
var errCallerGone = errors.New("the caller has gone")

// answer is what a failed request is told.
type answer struct {
	status     int
	code       Code
	detail     string
	retryAfter int // seconds; 0 means that no hint is given
}

// tileError is a failure of the shared stage that the request for a tile met. Its caller,
// who has many of them, is told which it was.
type tileError struct {
	naming string
	err    error
}

func (e *tileError) Error() string { return e.err.Error() + e.naming }

func (e *tileError) Unwrap() error { return e.err }

// classify is the one place where an error becomes a status, with what its caller is told.
func classify(err error) answer {
	a := kindOfAnswer(err)
	if tile, ok := errors.AsType[*tileError](err); ok {
		a.detail += tile.naming
	}
	return a
}

// kindOfAnswer knows each error by its type. Errors arrive wrapped from any depth; what is
// not recognised is a fault of ours.
//
// A failure of one request (400 and the like) tells its caller what to change.
// A failure of the shared stage (503) tells a fixed sentence: its cause may hold
// paths, tracebacks or another request's data and belongs in the log.
func kindOfAnswer(err error) answer {
	var (
		refused   *refusal
		stage1    *prep.Error
		backend   *tritonclient.Error
		framework *fiber.Error
	)
	switch {
	case errors.As(err, &refused):
		a := answerFor(refused.code, refused.detail)
		if refused.lasting {
			a.retryAfter = 0
		}
		return a
	case errors.As(err, &stage1):
		return answer{status: http.StatusBadRequest, code: Code(stage1.Code), detail: stage1.Error()}
	case errors.As(err, &backend):
		return answerFor(backendCode(backend), "")
	case errors.As(err, &framework):
		code := frameworkCode(framework)
		return answerFor(code, frameworkDetail(code, framework.Message))
	case errors.Is(err, errCallerGone):
		return answerFor(CodeCallerGone, errCallerGone.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return answerFor(CodeQueueTimeout, "")
	case errors.Is(err, context.Canceled): // at the drain limit
		return answerFor(CodeBusy, "the service is shutting down; send the request again later")
	default:
		return answerFor(CodeInternal, "")
	}
}

// Error is what a call of [Gateway.Forward] failed with, all its tiles at once.
type Error struct {
	Code   Code   // of the gateway, or of package prep
	Detail string // for whoever is to mend it, wherever that is; never what is inside
	// RetryAfter is how long to wait before the same call may succeed; 0 where it
	// will not.
	RetryAfter time.Duration

	err error
}

// Error is the detail.
func (e *Error) Error() string { return e.Detail }

// Unwrap is what was found, with all that belongs in a log alone: paths, tracebacks.
func (e *Error) Unwrap() error { return e.err }

func (a answer) asError(err error) *Error {
	return &Error{Code: a.code, Detail: a.detail, RetryAfter: time.Duration(a.retryAfter) * time.Second, err: err}
}

// appendTileFailure appends what one tile of a call of many is told.
func appendTileFailure(body []byte, a answer) []byte {
	type failure struct {
		Status int    `json:"status"`
		Code   Code   `json:"code"`
		Detail string `json:"detail"`
	}
	text, _ := json.Marshal(map[string]failure{"error": {a.status, a.code, a.detail}}) // it holds nothing that cannot be written
	return append(body, text...)
}

// answerFor gives a code its status. The detail of a 5xx is always the fixed
// sentence, unless the gateway wrote the detail itself and knows it to be safe.
func answerFor(code Code, detail string) answer {
	a := answer{code: code, detail: detail}
	fixed := ""
	switch code {
	case CodeUnauthorized:
		a.status = http.StatusUnauthorized
	case CodeNotFound, CodeUnknownModel:
		a.status = http.StatusNotFound
	case CodeMethodNotAllowed:
		a.status = http.StatusMethodNotAllowed
	case CodeNotAcceptable:
		a.status = http.StatusNotAcceptable
	case CodeRequestTimeout:
		a.status = http.StatusRequestTimeout
	case CodeBodyTooLarge:
		a.status = http.StatusRequestEntityTooLarge
	case CodeUnsupportedMediaType:
		a.status = http.StatusUnsupportedMediaType
	case CodeHeaderTooLarge:
		a.status = http.StatusRequestHeaderFieldsTooLarge
	case CodeMalformedHTTP:
		a.status = http.StatusBadRequest
	case CodeCallerGone:
		a.status = 499 // what proxies write into their logs for it
	case CodeBusy:
		a.status, a.retryAfter = http.StatusServiceUnavailable, 1
		fixed = "the service is at its limit of requests; send the request again later"
	case CodeQueueTimeout:
		a.status, a.retryAfter = http.StatusServiceUnavailable, 1
		fixed = "the request waited for its turn until its deadline passed; send it again later"
	case CodeBackendUnavailable:
		a.status, a.retryAfter = http.StatusServiceUnavailable, 1
		fixed = "the model is not available at the moment; send the request again later"
	case CodeBackendTimeout:
		a.status, a.retryAfter = http.StatusServiceUnavailable, 1
		fixed = "the model did not answer before the request's deadline; send the request again"
	case CodeForwardFailed:
		a.status, a.retryAfter = http.StatusServiceUnavailable, 1
		fixed = "the model failed on the batch that held this request; the request itself is sound, send it again"
	default:
		a.status, a.code = http.StatusInternalServerError, CodeInternal
		a.detail = "the service met an unexpected fault; report the request id to its operator"
	}
	if a.detail == "" {
		a.detail = fixed
	}
	return a
}

func backendCode(err *tritonclient.Error) Code {
	switch err.Kind {
	case tritonclient.QueueFull:
		return CodeBusy
	case tritonclient.QueueTimeout:
		return CodeQueueTimeout
	case tritonclient.DeadlineExceeded:
		return CodeBackendTimeout
	case tritonclient.Unavailable, tritonclient.NotFound, tritonclient.Canceled:
		return CodeBackendUnavailable
	case tritonclient.ExecuteFailed, tritonclient.BackendDead, tritonclient.Rejected, tritonclient.BadOutput:
		return CodeForwardFailed
	default:
		return CodeInternal
	}
}

func frameworkCode(err *fiber.Error) Code {
	switch err.Code {
	case http.StatusNotFound:
		return CodeNotFound
	case http.StatusRequestTimeout:
		return CodeRequestTimeout
	case http.StatusRequestEntityTooLarge:
		return CodeBodyTooLarge
	case http.StatusRequestHeaderFieldsTooLarge:
		return CodeHeaderTooLarge
	case http.StatusBadRequest:
		return CodeMalformedHTTP
	case http.StatusBadGateway: // what it makes of a connection that broke
		return CodeCallerGone
	default:
		return CodeInternal
	}
}

// frameworkDetail says what to change about a request that the framework
// refused. Its own words tell only what is wrong with HTTP.
func frameworkDetail(code Code, message string) string {
	switch code {
	case CodeNotFound:
		return "there is no such route; send tiles to /invocations or to /api/{embed,predict,predict_with_embedding,batch}/{model}"
	case CodeRequestTimeout:
		return "the request did not arrive in time; send it in one piece, or over a faster connection"
	case CodeHeaderTooLarge:
		return fmt.Sprintf("the headers are larger than the %d bytes that are taken", headerBytes)
	case CodeMalformedHTTP:
		return fmt.Sprintf("this is not a well-formed HTTP request: %s", clipTo(message, 120))
	default:
		return ""
	}
}

// wrongMethod names the methods that would have been taken.
func wrongMethod(allowed string) error {
	return refuse(CodeMethodNotAllowed, "this route takes no such method; it takes %s", allowed)
}

// unknownModel lists what could have been asked for.
func unknownModel(name string, served []string) error {
	return refuse(CodeUnknownModel, "model %q is not served here; the models are: %s", clip(name), strings.Join(served, ", "))
}

// clip bounds how much of a caller's own text an answer repeats.
func clip(s string) string {
	return clipTo(s, 40)
}

func clipTo(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "..."
		}
		n++
	}
	return s
}
