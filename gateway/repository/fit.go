package repository

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"histogate/gateway/checkpoint"
	"histogate/prep"
)

// fitted is a spec that holds for a checkpoint, and what the backend has to know
// beside it.
type fitted struct {
	spec *prep.Spec
	text []byte // the spec's YAML
	cuda bool

	// Of a checkpoint with metadata: the type and rank of each input as it is to
	// be passed, the batch dimension counted, and the number of rows that it was
	// compiled for, 0 where that is free.
	inputTypes []string
	inputRanks []string
	fixedBatch int64
}

// The types that are passed on. Triton's tensors are what prep writes and reads;
// the backend converts where a checkpoint computes in half precision.
const (
	float32Type  = checkpoint.DType(prep.Float32)
	float16Type  = checkpoint.DType(prep.Float16)
	bfloat16Type = checkpoint.DType("bfloat16")
	int64Type    = checkpoint.DType(prep.Int64)
)

// fit holds a checkpoint's description of its tensors against the spec and makes
// the spec that holds for both. The spec's own lists are not read yet in it.
func fit(spec *prep.Spec, p *checkpoint.Package, o *Options) (*fitted, error) {
	adapted := *spec
	adapted.Inputs, adapted.Outputs = slices.Clone(spec.Inputs), slices.Clone(spec.Outputs)
	o.apply(&adapted)
	f := &fitted{spec: &adapted, cuda: p.CUDA}
	if p.Metadata != nil {
		if err := f.adapt(p.Metadata); err != nil {
			return nil, fmt.Errorf("%s in %s contradicts the model's spec: %s; correct the one that is wrong", checkpoint.MetadataName, p.File, oneLine(err))
		}
	}
	var err error
	if f.text, err = yaml.Marshal(&adapted); err != nil {
		return nil, err
	}
	// Read back: the names and types that were taken over are checked by it.
	if f.spec, err = prep.ParseSpec(f.text); err != nil {
		return nil, fmt.Errorf("the spec as it is with %s is not valid: %s", p.File, oneLine(err))
	}
	return f, nil
}

// adapt takes over what the metadata says; all contradictions are reported.
func (f *fitted) adapt(m *checkpoint.Metadata) error {
	var mistakes []error
	inputs, outputs := make([]tensor, 0, len(f.spec.Inputs)), make([]tensor, 0, len(f.spec.Outputs))
	for i := range f.spec.Inputs {
		in := &f.spec.Inputs[i]
		inputs = append(inputs, tensor{"input", in.Name, string(in.DType), in.Shape})
	}
	for i := range f.spec.Outputs {
		out := &f.spec.Outputs[i]
		outputs = append(outputs, tensor{"output", out.Name, string(out.DType), out.Shape})
	}
	if err := errors.Join(compare(inputs, m.Inputs), compare(outputs, m.Outputs)); err != nil {
		return err
	}
	limit, err := f.batch(m)
	if err != nil {
		return err
	}
	f.spec.Batching.MaxBatchSize = min(f.spec.Batching.MaxBatchSize, limit)
	for i, t := range m.Inputs {
		mistakes = append(mistakes, takeOver(inputs[i], &f.spec.Inputs[i], t, i))
		f.inputTypes = append(f.inputTypes, string(t.DType))
		f.inputRanks = append(f.inputRanks, strconv.Itoa(len(t.Shape)))
	}
	for i, t := range m.Outputs {
		f.spec.Outputs[i].Name = t.Name
		if t.DType != float32Type && t.DType != float16Type && t.DType != bfloat16Type {
			mistakes = append(mistakes, outputs[i].mistake(t, i, "dtype", t.DType, "float32, float16 or bfloat16"))
		}
	}
	return errors.Join(mistakes...)
}

// batch takes over how many rows the model was compiled for, and returns how many it
// may be sent: prep's bound where the inputs' batch dimensions all have names. Outputs
// may have a number there even so: a model can pad each batch to its full size.
func (f *fitted) batch(m *checkpoint.Metadata) (limit int, err error) {
	type labelled struct {
		label string
		rows  checkpoint.Dim
	}
	var inputs, outputs []labelled
	for _, t := range m.Inputs {
		inputs = append(inputs, labelled{fmt.Sprintf("input %q", clip(t.Name)), t.Shape[0]})
	}
	for _, t := range m.Outputs {
		outputs = append(outputs, labelled{fmt.Sprintf("output %q", clip(t.Name)), t.Shape[0]})
	}
	alike := [][]labelled{inputs, outputs}
	if inputs[0].rows.Size > 0 {
		alike = [][]labelled{slices.Concat(inputs, outputs)}
	}
	for _, list := range alike {
		for _, t := range list {
			if first := list[0]; t.rows.Size != first.rows.Size {
				return 0, fmt.Errorf("the batch dimension of %s is %s, of %s %s: all must have names there, or all the same number",
					first.label, clip(first.rows.String()), t.label, clip(t.rows.String()))
			}
		}
	}
	rows := max(inputs[0].rows.Size, outputs[0].rows.Size)
	if rows > prep.MaxBatchSize {
		return 0, fmt.Errorf("it is compiled for batches of %d; at most %d rows are taken", rows, prep.MaxBatchSize)
	}
	f.fixedBatch = inputs[0].rows.Size
	if rows == 0 {
		rows = prep.MaxBatchSize
	}
	return int(rows), nil
}

// takeOver gives an input of the spec the name and the type that the checkpoint
// has for it.
func takeOver(was tensor, in *prep.Input, t checkpoint.Tensor, i int) error {
	in.Name = t.Name
	switch {
	case in.Source == prep.TileSource && (t.DType == float32Type || t.DType == float16Type),
		in.Source == prep.ConstantSource && (t.DType == float32Type || t.DType == float16Type || t.DType == int64Type):
		in.DType = prep.DType(t.DType)
	case in.Source == prep.BulkRNASource && (t.DType == float32Type || t.DType == float16Type):
		// Sent as float32; the backend converts.
	default:
		return was.mistake(t, i, "dtype", t.DType, was.dtype)
	}
	return nil
}

// tensor is an input or an output as the spec has it.
type tensor struct {
	kind, name, dtype string
	shape             []int64 // without the batch dimension
}

func (s tensor) mistake(t checkpoint.Tensor, i int, what string, there, here any) error {
	return fmt.Errorf("%s %d, %q, has the %s %v in the metadata; the spec has %q with %v", s.kind, i+1, clip(t.Name), what, there, s.name, here)
}

// compare holds number, order and shapes of the metadata's tensors against the
// spec's. Names may differ, unless they show that the order does.
func compare(spec []tensor, metadata checkpoint.Tensors) error {
	if len(spec) != len(metadata) {
		here, there := make([]string, len(spec)), make([]string, len(metadata))
		for i, t := range spec {
			here[i] = t.name
		}
		for i, t := range metadata {
			there[i] = clip(t.Name)
		}
		return fmt.Errorf("it has %d %ss (%s), the spec %d (%s)",
			len(there), spec[0].kind, strings.Join(there, ", "), len(here), strings.Join(here, ", "))
	}
	var mistakes []error
	for i, t := range metadata {
		if j := slices.IndexFunc(spec, func(s tensor) bool { return s.name == t.Name }); j >= 0 && j != i {
			mistakes = append(mistakes, fmt.Errorf("%s %d is %q in the metadata and %q in the spec, where %q is number %d",
				spec[i].kind, i+1, t.Name, spec[i].name, t.Name, j+1))
			continue
		}
		if !sameShape(spec[i].shape, t.Shape[1:]) {
			want := make([]string, len(spec[i].shape))
			for k, size := range spec[i].shape {
				want[k] = strconv.FormatInt(size, 10)
			}
			there := make([]string, len(t.Shape))
			for k, size := range t.Shape {
				there[k] = clip(size.String())
			}
			mistakes = append(mistakes, spec[i].mistake(t, i, "shape",
				"["+strings.Join(there, ", ")+"]", "["+strings.Join(append([]string{"batch"}, want...), ", ")+"]"))
		}
	}
	return errors.Join(mistakes...)
}

// sameShape compares shapes without the batch dimension. A size with a name fits
// any; one number for each row, which Triton can only have as a shape of [1],
// may be a vector for the checkpoint.
func sameShape(spec []int64, metadata []checkpoint.Dim) bool {
	if len(metadata) == 0 {
		return prep.Elements(spec) == 1
	}
	return slices.EqualFunc(spec, metadata, func(size int64, d checkpoint.Dim) bool { return d.Name != "" || d.Size == size })
}

// clip cuts a name out of a file that may hold anything.
func clip(name string) string {
	const most = 40
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return name
}
