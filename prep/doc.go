// Package prep is stage 1: it turns the bytes of one request into the tensors
// of one sample, or into an error that belongs to that request alone.
//
// A model is data here: a [Spec], read from the model's folder, says what a
// tile must look like, how it is normalised, which tensors the model takes and
// gives, what is done to its bulk RNA and its outputs, and which modes it
// offers. Nothing in this package knows a model by name.
//
// In the order in which a request meets them:
//
//  1. [ParseRequest] checks the JSON document and its fields, copying nothing.
//     [RawRequest] takes an image by itself instead, [ParseBatch] many tiles.
//  2. [Preparer.Prepare] decodes the base64 text, has package raster decode the
//     image to bytes, and transforms the bulk RNA.
//  3. [Sample.Write] writes the tensors, once, into the memory that they are sent
//     from, normalised by a table. The caller gives the sample back.
//  4. [Output.Transform] turns what the model gave into what clients expect, and
//     [Output.AppendJSON] writes it; its bytes are the answer in binary.
//
// Every failure of a request is an [*Error] with a code out of a closed set.
//
// What each step costs is measured by the benchmarks here and in package raster;
// the whole of 1 and 2, beside the same work in Python and beside its parts alone,
// by
//
//	go run ./tests/stage1bench
//
// The package imports neither the gateway nor the Triton client, and no HTTP:
// it can be used, tested and fuzzed without a server.
package prep
