// Package tritonclient speaks the KServe v2 protocol to a Triton Inference
// Server over gRPC: tensors in, tensors out.
//
// It checks what comes back. Triton passes on whatever a model returns, with
// any name, type, shape or length; [Client.Infer] gives an output only when all
// of these are what was asked for.
//
// A tensor is written once, by whoever has it, into the memory that it is sent from:
// the message's own bytes or, where [Client.ShareMemory] could set that up, a slot of
// shared memory that Triton reads in place. Either is used for another request only
// when nobody can read it any more, gRPC's write queue and Triton included. What each
// way costs is measured by
//
//	go run ./tests/transportbench
//
// Every failure is an [*Error] with a [Kind] out of a closed set. Nothing is
// sent twice: a request that reached Triton may be what broke it.
//
// The package imports neither the gateway nor package prep, and no HTTP.
package tritonclient

//go:generate kserve/generate.sh
