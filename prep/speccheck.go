package prep

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
)

// The bounds of a spec's batching.
const (
	MaxBatchSize    = 1024 // rows
	MaxQueueDelayMS = 1000
)

const (
	maxSide     = 8192    // pixels of a tile's side
	maxElements = 1 << 26 // of a tensor
)

var (
	modelNames  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	checkpoints = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*\.pt2$`)
	tensorNames = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
)

// checker gathers the mistakes of a spec.
type checker struct{ mistakes []error }

func (c *checker) require(ok bool, field, format string, args ...any) {
	if !ok {
		c.mistakes = append(c.mistakes, fmt.Errorf(field+": "+format, args...))
	}
}

func (c *checker) err() error { return errors.Join(c.mistakes...) }

// check finds every value that cannot be right in the spec's own text. What it
// says in lists, which may lie in files of their own, is for checkLists.
func (s *Spec) check() error {
	var c checker
	models := slices.Concat([]string{s.Name}, s.Aliases)
	for i, name := range models {
		field := "name"
		if i > 0 {
			field = fmt.Sprintf("aliases[%d]", i-1)
		}
		c.require(!slices.Contains(models[:i], name), field, "%q is listed twice", name)
		c.require(modelNames.MatchString(name), field, "%q must be lower-case letters, digits, dots, dashes and underscores", name)
	}
	c.require(s.Checkpoint == "" || checkpoints.MatchString(s.Checkpoint), "checkpoint",
		"%q must be the name of a .pt2 file, without a folder", s.Checkpoint)
	s.Tile.check(&c)
	c.require(slices.Contains([]Transport{"", FloatTransport, UInt8Transport}, s.TileTransport), "tile_transport",
		"%q must be %s or %s", s.TileTransport, FloatTransport, UInt8Transport)
	names := map[string]bool{}
	s.checkInputs(&c, names)
	s.checkOutputs(&c, names)
	s.checkGenes(&c)
	c.require(len(s.Modes) > 0, "modes", "must list at least one mode")
	for i, mode := range s.Modes {
		field := fmt.Sprintf("modes[%d]", i)
		c.require(mode == Prediction || mode == Embedding || mode == PredictionWithEmbedding,
			field, "%q must be %s, %s or %s", mode, Prediction, Embedding, PredictionWithEmbedding)
		c.require(!slices.Contains(s.Modes[:i], mode), field, "%q is listed twice", mode)
		for _, role := range mode.Roles() {
			_, ok := s.Output(role)
			c.require(ok, field, "%q needs an output with the role %s", mode, role)
		}
	}
	c.require(s.Batching.MaxBatchSize >= 1 && s.Batching.MaxBatchSize <= MaxBatchSize, "batching.max_batch_size", "must be from 1 to %d", MaxBatchSize)
	c.require(s.Batching.MaxQueueDelayMS >= 0 && s.Batching.MaxQueueDelayMS <= MaxQueueDelayMS, "batching.max_queue_delay_ms", "must be from 0 to %d", MaxQueueDelayMS)
	c.require(s.Batching.ExecuteLimitMS >= 0 && s.Batching.ExecuteLimitMS <= 600_000, "batching.execute_limit_ms", "must be from 0, for the default, to 600000")
	return c.err()
}

func (t *Tile) check(c *checker) {
	c.require(t.Width > 0 && t.Height > 0 && t.Width <= maxSide && t.Height <= maxSide,
		"tile", "width and height must be from 1 to %d pixels", maxSide)
	c.require(t.MicronsPerPixel > 0 && !math.IsInf(t.MicronsPerPixel, 0), "tile.microns_per_pixel", "must be above zero and finite")
	for i := range 3 {
		c.require(!math.IsNaN(t.Mean[i]) && math.Abs(t.Mean[i]) <= math.MaxFloat32, "tile.mean", "must be finite")
		c.require(float32(t.Std[i]) > 0 && t.Std[i] <= math.MaxFloat32, "tile.std", "must be above zero and finite")
	}
}

// holds tells whether a number, rounded to the type, is still the number or near it.
func (d DType) holds(v float64) bool {
	switch d {
	case Int64:
		return v == math.Trunc(v) && math.Abs(v) <= 1<<53 // beyond, a float64 has gaps
	case Float16:
		return math.Abs(v) < 65520 // what rounds to less than infinity
	default:
		return math.Abs(v) <= math.MaxFloat32
	}
}

func (s *Spec) checkInputs(c *checker, names map[string]bool) {
	sources := map[Source]int{}
	for i := range s.Inputs {
		in := &s.Inputs[i]
		field := fmt.Sprintf("inputs[%d]", i)
		c.tensor(field, in.Name, in.Shape, names)
		sources[in.Source]++
		switch in.Source {
		case TileSource:
			c.require(in.DType == Float32 || in.DType == Float16, field+".dtype", "%q must be float32 or float16, as the model takes it; "+
				"for bytes on the way to Triton set tile_transport: %s", in.DType, UInt8Transport)
			want := []int64{3, int64(s.Tile.Height), int64(s.Tile.Width)}
			c.require(slices.Equal(in.Shape, want), field+".shape", "%v must be %v: three channels of the tile's height and width", in.Shape, want)
		case BulkRNASource:
			c.require(in.DType == Float32, field+".dtype", "%q must be float32", in.DType)
			c.require(len(in.Shape) == 1, field+".shape", "%v must be one size, the number of genes", in.Shape)
			c.require(in.Domain == Counts || in.Domain == AnyValue, field+".domain", "%q must be %s or %s", in.Domain, Counts, AnyValue)
		case ConstantSource:
			c.require(in.DType == Float32 || in.DType == Float16 || in.DType == Int64,
				field+".dtype", "%q must be float32, float16 or int64", in.DType)
			c.require(in.Value != nil, field+".value", "missing; a constant needs one")
			c.require(in.Value == nil || in.DType.holds(*in.Value), field+".value", "must be a number that %s holds", in.DType)
		default:
			c.require(false, field+".source", "%q must be %s, %s or %s", in.Source, TileSource, BulkRNASource, ConstantSource)
		}
		c.require(in.Value == nil || in.Source == ConstantSource, field+".value", "belongs to an input with source %s alone", ConstantSource)
		if in.Source != BulkRNASource {
			c.require(in.Domain == "", field+".domain", "belongs to an input with source %s alone", BulkRNASource)
			c.require(len(in.Transforms) == 0, field+".transforms", "belong to an input with source %s alone", BulkRNASource)
		}
		for j := range in.Transforms {
			in.Transforms[j].check(c, fmt.Sprintf("%s.transforms[%d]", field, j), Log1p, Expm1, TPM, ZScore, SubsetColumns)
		}
	}
	c.require(sources[TileSource] == 1, "inputs", "must hold exactly one with source %s", TileSource)
	c.require(sources[BulkRNASource] <= 1, "inputs", "must hold at most one with source %s", BulkRNASource)
}

func (s *Spec) checkOutputs(c *checker, names map[string]bool) {
	roles := map[Role]bool{}
	for i := range s.Outputs {
		out := &s.Outputs[i]
		field := fmt.Sprintf("outputs[%d]", i)
		c.tensor(field, out.Name, out.Shape, names)
		c.require(out.DType == Float32, field+".dtype", "%q must be float32: answers are written as float32", out.DType)
		c.require(out.Role == PredictionRole || out.Role == EmbeddingRole, field+".role", "%q must be %s or %s", out.Role, PredictionRole, EmbeddingRole)
		c.require(!roles[out.Role], field+".role", "two outputs are the model's %s", out.Role)
		roles[out.Role] = true
		for j := range out.Transforms {
			step := fmt.Sprintf("%s.transforms[%d]", field, j)
			out.Transforms[j].check(c, step, Expm1, NonFiniteToZero, Round, Mask)
			c.require(out.Transforms[j].Name != Mask || j == len(out.Transforms)-1, step, "%s must be the last", Mask)
		}
	}
}

func (s *Spec) checkGenes(c *checker) {
	rna := s.bulkRNAInput()
	_, predicts := s.Output(PredictionRole)
	for _, list := range [...]struct {
		field   string
		inline  []string
		file    string
		allowed bool
		needs   string
	}{
		{"input_genes", s.InputGenes, s.InputGenesFile, rna >= 0, "an input with source " + string(BulkRNASource)},
		{"output_genes", s.OutputGenes, s.OutputGenesFile, predicts, "an output with role " + string(PredictionRole)},
	} {
		given := list.inline != nil || list.file != ""
		c.require(!given || list.allowed, list.field, "needs %s", list.needs)
		c.oneList(list.field, list.inline != nil, list.file)
	}
	if rna < 0 || s.InputGenes != nil || s.InputGenesFile != "" {
		return
	}
	for i, t := range s.Inputs[rna].Transforms {
		c.require(t.Name != SubsetColumns, fmt.Sprintf("inputs[%d].transforms[%d]", rna, i),
			"%s needs input_genes or input_genes_file, which say what it is a subset of", SubsetColumns)
	}
}

// oneList refuses a list that is given twice, and a file that is not beside the spec.
func (c *checker) oneList(field string, inline bool, file string) {
	c.require(!inline || file == "", field, "give either %s or %s_file", field, field)
	c.require(file == "" || fs.ValidPath(file), field+"_file", "%q must be a file in the spec's folder", file)
}

func (c *checker) tensor(field, name string, shape []int64, names map[string]bool) {
	c.require(tensorNames.MatchString(name), field+".name", "%q is not a tensor's name", name)
	c.require(!names[name], field+".name", "%q stands for two tensors", name)
	names[name] = true
	c.require(len(shape) > 0, field+".shape", "must not be empty")
	size := int64(1)
	for _, d := range shape {
		ok := d > 0 && d <= maxElements && size*d <= maxElements
		c.require(ok, field+".shape", "%v must be positive sizes of at most %d elements in all, without the batch dimension", shape, maxElements)
		if !ok {
			return
		}
		size *= d
	}
}
