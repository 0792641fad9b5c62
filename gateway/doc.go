// Package gateway is the HTTP side of histogate: it takes tiles from clients,
// has package prep make tensors of them, and package tritonclient send those to
// the Triton next to it; what Triton gives, prep makes an answer's numbers of.
//
// The life of a request:
//
//  1. [Gateway] receives it; screen refuses HTTP that others could read in another
//     way (hygiene.go); observe gives it an id and a trace, and catches whatever goes
//     wrong below.
//  2. The router picks a handler, which knows which model and mode are meant or
//     where in the body to look for them. (routes.go)
//  3. infer, the one path of every inference, looks at the headers, reads its body
//     and admits the request or refuses it as busy. (infer.go, media.go, body.go,
//     admission.go) The tiles of a batch take the rest of it side by side. (batch.go)
//  4. It waits for a CPU slot and does stage 1 in it: parse and decode. A failure
//     here is the request's own: a 400. Its body is let go of. (package prep)
//  5. It waits in the model's window for a place inside Triton, and longer while
//     the model or Triton is being brought back. (window.go)
//  6. It writes the tensors, normalised, to where Triton reads them, which batches
//     them with those of others. A failure here is everybody's in that batch: a 503.
//     (package tritonclient)
//  7. It writes the answer, a mask as gzip where the caller takes that. (reply.go,
//     compress.go)
//
// An error from any depth ends in fail, which classifies it, logs it, counts it
// and writes it; errors.go is the only place that knows a status. The time of each
// stage is taken in one place (trace.go); metrics.go, requestlog.go and tracing.go tell
// of it.
//
// Before the first of them all that the configuration names is read (plan.go): package
// repository makes a model repository of .pt2 checkpoints where there are some to serve
// (checkpoints.go), and each model is read, with its spec (model.go). Check goes the same
// ways and tells what it finds, without serving (check.go).
//
// Beside the requests, health knows of every model whether it answers (health.go,
// watch.go, hang.go) and brings it back when it does not (heal.go), readiness makes of
// that what /ping says (ready.go), contract.go holds a model's spec against what Triton
// has, diagnostics.go tells an operator of all of it (with journal.go and
// percentiles.go), child runs a Triton as a child process where that is configured (triton.go,
// guard.go, regions.go) and the gateway gives way to it (priority.go), sagemaker.go has
// what that platform asks beyond this, access.go and tls.go have the keys and the
// certificate that a service may need, document.go and package openapi tell of all this
// in a document, and on SIGTERM drain answers what was accepted (drain.go).
package gateway
