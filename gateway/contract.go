package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
)

// A model's contract stands in three places: the spec, which stage 1 and the
// clients go by, the config.pbtxt, which Triton goes by, and what a running
// Triton says of itself. Where they differ, tensors would be misread without an
// error, so the gateway does not serve then.

// contractError is a difference between the places. Trying again does not help.
type contractError struct{ differences []error }

func (e *contractError) Error() string {
	return "the model's spec.yaml and its configuration disagree; make them say the same: " + errors.Join(e.differences...).Error()
}

// Unwrap has each difference counted as a mistake of its own.
func (e *contractError) Unwrap() error { return errors.Join(e.differences...) }

type differences []error

func (d *differences) compare(where, what string, spec, other any) {
	if s, o := fmt.Sprint(spec), fmt.Sprint(other); s != o {
		*d = append(*d, fmt.Errorf("%s: %s is %s, spec.yaml says %s", where, what, o, s))
	}
}

func (d *differences) err() error {
	if *d == nil {
		return nil
	}
	return &contractError{*d}
}

// checkConfig holds a configuration, read from a file or told by Triton, against
// the spec. All differences are reported.
func checkConfig(spec *prep.Spec, config *kserve.ModelConfig, where string) error {
	var d differences
	d.compare(where, "name", spec.Name, config.Name)
	d.compare(where, "max_batch_size", spec.Batching.MaxBatchSize, config.MaxBatchSize)
	switch compiledFor, err := modelrepo.FixedBatch(config); {
	case err != nil:
		d = append(d, fmt.Errorf("%s: %w", where, err))
	case compiledFor > 0 && int(config.MaxBatchSize) > compiledFor:
		d = append(d, fmt.Errorf("%s: max_batch_size is %d, the checkpoint was compiled for %d rows", where, config.MaxBatchSize, compiledFor))
	}
	if config.GetDynamicBatching() == nil {
		d = append(d, fmt.Errorf("%s: dynamic_batching is missing", where))
	}
	d.compare(where, "dynamic_batching.max_queue_delay_microseconds",
		modelrepo.Microseconds(spec.Batching), config.GetDynamicBatching().GetMaxQueueDelayMicroseconds())
	var inputs, outputs []tensorContract
	for _, in := range config.Input {
		inputs = append(inputs, tensorContract{in.Name, tritonclient.DatatypeOf(in.DataType), in.Dims})
		if in.Optional {
			// Requests with and without an optional input do not share a batch.
			d = append(d, fmt.Errorf("%s: input %s is optional; every input is always sent", where, in.Name))
		}
	}
	for _, out := range config.Output {
		outputs = append(outputs, tensorContract{out.Name, tritonclient.DatatypeOf(out.DataType), out.Dims})
	}
	d.compareTensors(where, "input", specInputs(spec), inputs)
	d.compareTensors(where, "output", specOutputs(spec), outputs)
	if err := modelrepo.CheckTileTable(spec, config); err != nil {
		d = append(d, fmt.Errorf("%s: %w", where, err))
	}
	return d.err()
}

// checkMetadata holds what Triton says of a loaded model against the spec.
func checkMetadata(spec *prep.Spec, metadata *kserve.ModelMetadataResponse) error {
	const where = "Triton's metadata"
	var d differences
	d.compare(where, "name", spec.Name, metadata.Name)
	tensors := func(list []*kserve.ModelMetadataResponse_TensorMetadata) (all []tensorContract) {
		for _, t := range list {
			shape := t.Shape
			if len(shape) > 0 && shape[0] == -1 { // the batch
				shape = shape[1:]
			}
			all = append(all, tensorContract{t.Name, tritonclient.Datatype(t.Datatype), shape})
		}
		return all
	}
	d.compareTensors(where, "input", specInputs(spec), tensors(metadata.Inputs))
	d.compareTensors(where, "output", specOutputs(spec), tensors(metadata.Outputs))
	return d.err()
}

// askContract holds what Triton says of a loaded model against the spec, and returns
// the configuration that it runs with.
func askContract(ctx context.Context, triton *tritonclient.Client, spec *prep.Spec) (*kserve.ModelConfig, error) {
	metadata, err := triton.ModelMetadata(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	config, err := triton.ModelConfig(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	return config, errors.Join(
		checkMetadata(spec, metadata),
		checkConfig(spec, config, "Triton's configuration of the model"),
	)
}

// tensorContract is what two sides must agree on for a tensor. The shape is
// without the batch dimension.
type tensorContract struct {
	name     string
	datatype tritonclient.Datatype
	shape    []int64
}

func specInputs(spec *prep.Spec) (all []tensorContract) {
	for i, in := range spec.Inputs {
		all = append(all, tensorContract{in.Name, datatype(spec.Sent(i)), in.Shape})
	}
	return all
}

func specOutputs(spec *prep.Spec) (all []tensorContract) {
	for _, out := range spec.Outputs {
		all = append(all, tensorContract{out.Name, datatype(out.DType), out.Shape})
	}
	return all
}

// compareTensors compares two lists whose order counts: the backend passes
// tensors to the checkpoint by position.
func (d *differences) compareTensors(where, kind string, spec, other []tensorContract) {
	names := func(list []tensorContract) string {
		all := make([]string, len(list))
		for i, t := range list {
			all[i] = t.name
		}
		return strings.Join(all, ", ")
	}
	if names(spec) != names(other) {
		d.compare(where, kind+"s, in order,", names(spec), names(other))
		return
	}
	for i, t := range spec {
		d.compare(where, fmt.Sprintf("type of %s %s", kind, t.name), t.datatype, other[i].datatype)
		if !slices.Equal(t.shape, other[i].shape) {
			d.compare(where, fmt.Sprintf("shape of %s %s", kind, t.name), t.shape, other[i].shape)
		}
	}
}

// datatype is how Triton writes a spec's element type.
func datatype(t prep.DType) tritonclient.Datatype {
	return tritonclient.DatatypeOf(modelrepo.DataType(t))
}
