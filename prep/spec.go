package prep

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"

	"github.com/goccy/go-yaml"
)

// Spec is a model's contract: what its clients may send, what the model is sent
// for it, and what it answers. It is read from the spec.yaml in the model's
// folder and is part of the metadata answer.
type Spec struct {
	Name    string   `yaml:"name" json:"name"`
	Aliases []string `yaml:"aliases,omitempty" json:"aliases,omitempty"`
	// Task is for people: what the model does.
	Task string `yaml:"task" json:"task"`
	Tile Tile   `yaml:"tile" json:"tile"`
	// Inputs and Outputs are in the order in which the model takes and gives them.
	Inputs   []Input  `yaml:"inputs" json:"inputs"`
	Outputs  []Output `yaml:"outputs" json:"outputs"`
	Modes    []Mode   `yaml:"modes" json:"modes"`
	Batching Batching `yaml:"batching" json:"batching"`
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
}

// Output is a tensor that the model gives.
type Output struct {
	Name  string  `yaml:"name" json:"name"`
	Role  Role    `yaml:"role" json:"role"`
	DType DType   `yaml:"dtype" json:"dtype"`
	Shape []int64 `yaml:"shape" json:"shape"` // without the batch dimension
}

// Batching is how the shared stage joins requests.
type Batching struct {
	MaxBatchSize    int     `yaml:"max_batch_size" json:"max_batch_size"`
	MaxQueueDelayMS float64 `yaml:"max_queue_delay_ms" json:"max_queue_delay_ms"`
}

// Source is where an input's values come from.
type Source string

// TileSource is the normalised tile, channels first.
const TileSource Source = "tile"

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
)

// Size is the number of bytes of one element.
func (d DType) Size() int {
	if d == Float16 {
		return 2
	}
	return 4
}

// Elements is the number of elements of a tensor with the given shape.
func Elements(shape []int64) int {
	n := 1
	for _, d := range shape {
		n *= int(d)
	}
	return n
}

// ReadSpec reads and checks a spec. A field that is unknown, missing or out of
// range is an error that names the file and the field; all are reported at once.
func ReadSpec(path string) (*Spec, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spec, err := parseSpec(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

func parseSpec(text []byte) (*Spec, error) {
	var document any
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
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

var (
	modelNames  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	tensorNames = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
)

// check finds every value that cannot be right.
func (s *Spec) check() error {
	var mistakes []error
	require := func(ok bool, field, format string, args ...any) {
		if !ok {
			mistakes = append(mistakes, fmt.Errorf(field+": "+format, args...))
		}
	}
	for i, name := range slices.Concat([]string{s.Name}, s.Aliases) {
		field := "name"
		if i > 0 {
			field = fmt.Sprintf("aliases[%d]", i-1)
		}
		require(modelNames.MatchString(name), field, "%q must be lower-case letters, digits, dots, dashes and underscores", name)
	}
	require(s.Tile.Width > 0 && s.Tile.Height > 0 && s.Tile.Width <= maxSide && s.Tile.Height <= maxSide,
		"tile", "width and height must be from 1 to %d pixels", maxSide)
	require(s.Tile.MicronsPerPixel > 0, "tile.microns_per_pixel", "must be above zero")
	for c := range 3 {
		require(!math.IsNaN(s.Tile.Mean[c]) && math.Abs(s.Tile.Mean[c]) <= math.MaxFloat32, "tile.mean", "must be finite")
		require(float32(s.Tile.Std[c]) > 0 && s.Tile.Std[c] <= math.MaxFloat32, "tile.std", "must be above zero and finite")
	}
	names := map[string]bool{}
	tensor := func(field, name string, dtype DType, shape []int64) {
		require(tensorNames.MatchString(name), field+".name", "%q is not a tensor's name", name)
		require(!names[name], field+".name", "%q stands for two tensors", name)
		names[name] = true
		require(dtype == Float32 || dtype == Float16, field+".dtype", "%q must be float32 or float16", dtype)
		size := int64(1)
		for _, d := range shape {
			ok := d > 0 && d <= maxElements && size*d <= maxElements
			require(ok, field+".shape", "%v must be positive sizes of at most %d elements in all, without the batch dimension", shape, maxElements)
			if !ok {
				return
			}
			size *= d
		}
		require(len(shape) > 0, field+".shape", "must not be empty")
	}
	tiles := 0
	for i, in := range s.Inputs {
		field := fmt.Sprintf("inputs[%d]", i)
		tensor(field, in.Name, in.DType, in.Shape)
		require(in.Source == TileSource, field+".source", "%q must be %s", in.Source, TileSource)
		if in.Source == TileSource {
			tiles++
			want := []int64{3, int64(s.Tile.Height), int64(s.Tile.Width)}
			require(slices.Equal(in.Shape, want), field+".shape", "%v must be %v: three channels of the tile's height and width", in.Shape, want)
		}
	}
	require(tiles == 1, "inputs", "must hold exactly one with source tile")
	roles := map[Role]bool{}
	for i, out := range s.Outputs {
		field := fmt.Sprintf("outputs[%d]", i)
		tensor(field, out.Name, out.DType, out.Shape)
		require(out.DType == Float32, field+".dtype", "must be float32: answers are written as float32")
		require(out.Role == PredictionRole || out.Role == EmbeddingRole, field+".role", "%q must be %s or %s", out.Role, PredictionRole, EmbeddingRole)
		require(!roles[out.Role], field+".role", "two outputs are the model's %s", out.Role)
		roles[out.Role] = true
	}
	require(len(s.Modes) > 0, "modes", "must list at least one mode")
	for i, mode := range s.Modes {
		field := fmt.Sprintf("modes[%d]", i)
		require(mode == Prediction || mode == Embedding || mode == PredictionWithEmbedding,
			field, "%q must be %s, %s or %s", mode, Prediction, Embedding, PredictionWithEmbedding)
		require(!slices.Contains(s.Modes[:i], mode), field, "%q is listed twice", mode)
		for _, role := range mode.Roles() {
			require(roles[role], field, "%q needs an output with the role %s", mode, role)
		}
	}
	require(s.Batching.MaxBatchSize >= 1 && s.Batching.MaxBatchSize <= 1024, "batching.max_batch_size", "must be from 1 to 1024")
	require(s.Batching.MaxQueueDelayMS >= 0 && s.Batching.MaxQueueDelayMS <= 1000, "batching.max_queue_delay_ms", "must be from 0 to 1000")
	return errors.Join(mistakes...)
}

const (
	maxSide     = 8192    // pixels of a tile's side
	maxElements = 1 << 26 // of a tensor
)

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
	text := ""
	for i, m := range modes {
		if i > 0 {
			text += ", "
		}
		text += string(m)
	}
	return text
}
