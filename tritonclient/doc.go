// Package tritonclient speaks the KServe v2 protocol to a Triton Inference
// Server over gRPC: tensors in, tensors out.
//
// It checks what comes back. Triton passes on whatever a model returns, with
// any name, type, shape or length; [Client.Infer] gives an output only when all
// of these are what was asked for.
//
// Every failure is an [*Error] with a [Kind] out of a closed set. Nothing is
// sent twice: a request that reached Triton may be what broke it.
//
// The package imports neither the gateway nor package prep, and no HTTP.
package tritonclient

//go:generate kserve/generate.sh
