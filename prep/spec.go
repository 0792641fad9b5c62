package prep

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"histogate/prep/raster"
)

// Spec is a model's contract: what its clients may send, what the model is sent
// for it, and what it answers. It is read from the spec.yaml in the model's
// folder and is part of the metadata answer.
type Spec struct {
	Name    string   `yaml:"name" json:"name"`
	Aliases []string `yaml:"aliases,omitempty" json:"aliases,omitempty"`
	// Task is for people: what the model does.
	Task string `yaml:"task" json:"task"`
	// Checkpoint is the name of the .pt2 file that holds the published model. A
	// model without one is served from what lies in its own folder.
	Checkpoint string `yaml:"checkpoint,omitempty" json:"checkpoint,omitempty"`
	Tile       Tile   `yaml:"tile" json:"tile"`
	// TileTransport is what the tile goes to Triton as; empty means [FloatTransport].
	TileTransport Transport `yaml:"tile_transport,omitempty" json:"tile_transport,omitempty"`
	// Inputs and Outputs are in the order in which the model takes and gives them.
	Inputs   []Input  `yaml:"inputs" json:"inputs"`
	Outputs  []Output `yaml:"outputs" json:"outputs"`
	Modes    []Mode   `yaml:"modes" json:"modes"`
	Batching Batching `yaml:"batching" json:"batching"`
	// InputGenes are the identifiers of the values that a client sends as bulk
	// RNA, OutputGenes of the values of the prediction, both in order. A file
	// that is named in their stead is a CSV of one column with a header, beside
	// the spec, and is read with it.
	InputGenes      []string `yaml:"input_genes,omitempty" json:"-"`
	InputGenesFile  string   `yaml:"input_genes_file,omitempty" json:"input_genes_file,omitempty"`
	OutputGenes     []string `yaml:"output_genes,omitempty" json:"-"`
	OutputGenesFile string   `yaml:"output_genes_file,omitempty" json:"output_genes_file,omitempty"`
}

// Tile is the picture that the model was trained on.
type Tile struct {
	Width           int     `yaml:"width" json:"width"`   // pixels
	Height          int     `yaml:"height" json:"height"` // pixels
	MicronsPerPixel float64 `yaml:"microns_per_pixel" json:"microns_per_pixel"`
	// Mean and Std normalise a sample divided by 255, per channel (R, G, B).
	Mean [3]float64 `yaml:"mean" json:"mean"`
	Std  [3]float64 `yaml:"std" json:"std"`
}

// Input is a tensor that the model takes.
type Input struct {
	Name   string  `yaml:"name" json:"name"`
	Source Source  `yaml:"source" json:"source"`
	DType  DType   `yaml:"dtype" json:"dtype"`
	Shape  []int64 `yaml:"shape" json:"shape"` // without the batch dimension
	// Value is what each element of a constant is.
	Value *float64 `yaml:"value,omitempty" json:"value,omitempty"`
	// Domain and Transforms are those of bulk RNA: which values may be sent, and
	// what is done to them, in order, before the model sees them.
	Domain     Domain      `yaml:"domain,omitempty" json:"domain,omitempty"`
	Transforms []Transform `yaml:"transforms,omitempty" json:"transforms,omitempty"`
}

// Sent is the type that the elements of the i-th input have on their way to Triton.
func (s *Spec) Sent(i int) DType {
	if s.Inputs[i].Source == TileSource && s.TileTransport == UInt8Transport {
		return UInt8
	}
	return s.Inputs[i].DType
}

// SentBytes is the size of the i-th input of one sample on its way to Triton.
func (s *Spec) SentBytes(i int) int { return Elements(s.Inputs[i].Shape) * s.Sent(i).Size() }

// Output is a tensor that the model gives.
type Output struct {
	Name  string  `yaml:"name" json:"name"`
	Role  Role    `yaml:"role" json:"role"`
	DType DType   `yaml:"dtype" json:"dtype"`
	Shape []int64 `yaml:"shape" json:"shape"` // without the batch dimension
	// Transforms are applied, in order, to what the model gives.
	Transforms []Transform `yaml:"transforms,omitempty" json:"transforms,omitempty"`
}

// Batching is how the shared stage joins requests.
type Batching struct {
	MaxBatchSize    int     `yaml:"max_batch_size" json:"max_batch_size"`
	MaxQueueDelayMS float64 `yaml:"max_queue_delay_ms" json:"max_queue_delay_ms"`
	// ExecuteLimitMS is the longest that a batch may take; beyond it the model is
	// taken to hang. 0 means [DefaultExecuteLimit].
	ExecuteLimitMS float64 `yaml:"execute_limit_ms,omitempty" json:"execute_limit_ms,omitempty"`
}

// DefaultExecuteLimit is long for any batch that a device works on.
const DefaultExecuteLimit = 10 * time.Second

// ExecuteLimit is the longest that a batch may take.
func (b Batching) ExecuteLimit() time.Duration {
	if b.ExecuteLimitMS == 0 {
		return DefaultExecuteLimit
	}
	return time.Duration(b.ExecuteLimitMS * float64(time.Millisecond))
}

// Transport is what a tile goes to Triton as.
type Transport string

// The transports of a tile.
const (
	// FloatTransport is the normalised values, in the input's type.
	FloatTransport Transport = "float"
	// UInt8Transport is the samples as they were decoded, a quarter of the bytes of
	// float32. The backend looks each of them up in [Spec.TileTable].
	UInt8Transport Transport = "uint8"
)

// Source is where an input's values come from.
type Source string

// The sources of an input.
const (
	// TileSource is the normalised tile, channels first.
	TileSource Source = "tile"
	// BulkRNASource is the request's bulk_rna after the input's transforms, or
	// zeros when the request has none.
	BulkRNASource Source = "bulk_rna"
	// ConstantSource is the input's value in each element, for an input that no
	// client chooses.
	ConstantSource Source = "constant"
)

// Domain is the set of values that may be sent as bulk RNA.
type Domain string

// The domains. A value must be finite in float32 in both.
const (
	// Counts are zero or above; -1 marks a gene that was not measured.
	Counts Domain = "counts"
	// AnyValue is for models that are fed log ratios and the like.
	AnyValue Domain = "any"
)

// Role is what an output is to a client.
type Role string

// The roles of an output.
const (
	PredictionRole Role = "prediction"
	EmbeddingRole  Role = "embedding"
)

// DType is the type of a tensor's elements, as tensor libraries write it.
type DType string

// The element types.
const (
	Float32 DType = "float32"
	Float16 DType = "float16"
	Int64   DType = "int64"
	UInt8   DType = "uint8" // on the way to Triton alone
)

// Size is the number of bytes of one element.
func (d DType) Size() int {
	switch d {
	case UInt8:
		return 1
	case Float16:
		return 2
	case Int64:
		return 8
	default:
		return 4
	}
}

// WriteBlank writes what the input is where nothing was sent, for as many samples as
// dst takes: the constant, or zeros, little-endian. Zeros of a tile that is sent as bytes
// are a black one.
func (in *Input) WriteBlank(dst []byte) {
	if in.Value == nil {
		clear(dst)
		return
	}
	for size := in.DType.Size(); len(dst) > 0; dst = dst[size:] {
		switch in.DType {
		case Float16:
			binary.LittleEndian.PutUint16(dst, raster.Float16Bits(float32(*in.Value)))
		case Int64:
			binary.LittleEndian.PutUint64(dst, uint64(int64(*in.Value)))
		default:
			binary.LittleEndian.PutUint32(dst, math.Float32bits(float32(*in.Value)))
		}
	}
}

// Elements is the number of elements of a tensor with the given shape.
func Elements(shape []int64) int {
	n := 1
	for _, d := range shape {
		n *= int(d)
	}
	return n
}

// ReadSpec reads and checks a spec and the files beside it that it names. A
// field that is unknown, missing or out of range is an error that names the file
// and the field; all are reported at once.
func ReadSpec(path string) (*Spec, error) {
	folder := os.DirFS(filepath.Dir(path))
	text, err := ReadFile(folder, filepath.Base(path))
	var spec *Spec
	if err == nil {
		spec, err = ParseSpec(text)
	}
	if err == nil {
		err = spec.ReadLists(func(name string) ([]byte, error) { return ReadFile(folder, name) })
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

// ParseSpec reads and checks the text of a spec as [ReadSpec] does, all but the
// lists in files of their own: those are for [Spec.ReadLists].
func ParseSpec(text []byte) (*Spec, error) {
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		return nil, errors.New("begins with a byte order mark; save it as UTF-8 without one")
	}
	var document, another any
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&document); err != nil && !errors.Is(err, io.EOF) { // an empty one lacks fields
		return nil, err
	}
	if err := documents.Decode(&another); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one YAML document; keep one, without a line --- below it")
	}
	if err := checkFields(document, Spec{}); err != nil {
		return nil, err
	}
	spec := new(Spec)
	if err := yaml.Unmarshal(text, spec); err != nil {
		return nil, err
	}
	if err := spec.check(); err != nil {
		return nil, err
	}
	return spec, nil
}

// Roles are the outputs that a mode asks for, in the order of the answer.
func (m Mode) Roles() []Role {
	switch m {
	case Prediction:
		return []Role{PredictionRole}
	case Embedding:
		return []Role{EmbeddingRole}
	case PredictionWithEmbedding:
		return []Role{PredictionRole, EmbeddingRole}
	default:
		return nil
	}
}

// Output is the model's output with the given role.
func (s *Spec) Output(role Role) (Output, bool) {
	i := slices.IndexFunc(s.Outputs, func(o Output) bool { return o.Role == role })
	if i < 0 {
		return Output{}, false
	}
	return s.Outputs[i], true
}

// CheckMode refuses a mode that the model does not offer.
func (s *Spec) CheckMode(mode Mode) error {
	if slices.Contains(s.Modes, mode) {
		return nil
	}
	return refuse(UnsupportedMode, modeField.String(), "%s is not offered by %s; its modes are: %s", quote(string(mode)), s.Name, joinModes(s.Modes))
}

func joinModes(modes []Mode) string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = string(m)
	}
	return strings.Join(names, ", ")
}

// TakesBulkRNA tells whether the model has an input for bulk RNA.
func (s *Spec) TakesBulkRNA() bool { return s.bulkRNAInput() >= 0 }

// bulkRNAInput is the index of the input that takes bulk RNA, -1 without one.
func (s *Spec) bulkRNAInput() int { return s.inputOf(BulkRNASource) }

// inputOf is the index of the first input with a source, -1 without one.
func (s *Spec) inputOf(source Source) int {
	return slices.IndexFunc(s.Inputs, func(in Input) bool { return in.Source == source })
}
