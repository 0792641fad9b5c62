package prep

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const goodSpec = `
name: m-1.2_x
aliases: [m-old]
task: tile embedding
checkpoint: m_old.pt2
tile:
  width: 64
  height: 32
  microns_per_pixel: 0.5
  mean: [0.7, -0.5, 0]
  std: [0.25, 1, 2]
inputs:
  - {name: tile, source: tile, dtype: float16, shape: [3, 32, 64]}
outputs:
  - {name: predictions, role: prediction, dtype: float32, shape: [6, 2]}
  - {name: embedding, role: embedding, dtype: float32, shape: [1536]}
modes: [prediction, embedding, prediction_with_embedding]
batching: {max_batch_size: 48, max_queue_delay_ms: 0.5}
`

func readSpecText(t *testing.T, text string) (*Spec, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadSpec(path)
}

func TestReadSpec(t *testing.T) {
	for _, text := range []string{"---" + goodSpec, "# mine\n---" + goodSpec + "...\n", goodSpec + "# theirs\n"} {
		if _, err := readSpecText(t, text); err != nil {
			t.Errorf("one document: %v", err)
		}
	}
	got, err := readSpecText(t, goodSpec)
	if err != nil {
		t.Fatal(err)
	}
	want := &Spec{
		Name: "m-1.2_x", Aliases: []string{"m-old"}, Task: "tile embedding", Checkpoint: "m_old.pt2",
		Tile: Tile{
			Width: 64, Height: 32, MicronsPerPixel: 0.5,
			Mean: [3]float64{0.7, -0.5, 0}, Std: [3]float64{0.25, 1, 2},
		},
		Inputs: []Input{{Name: "tile", Source: TileSource, DType: Float16, Shape: []int64{3, 32, 64}}},
		Outputs: []Output{
			{Name: "predictions", Role: PredictionRole, DType: Float32, Shape: []int64{6, 2}},
			{Name: "embedding", Role: EmbeddingRole, DType: Float32, Shape: []int64{1536}},
		},
		Modes:    []Mode{Prediction, Embedding, PredictionWithEmbedding},
		Batching: Batching{MaxBatchSize: 48, MaxQueueDelayMS: 0.5},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read as\n%+v, want\n%+v", got, want)
	}
	if out, ok := got.Output(EmbeddingRole); !ok || out.Name != "embedding" || Elements(out.Shape) != 1536 {
		t.Errorf("the embedding is %+v (%t)", out, ok)
	}
	if out, ok := (&Spec{}).Output(EmbeddingRole); ok {
		t.Errorf("a model without outputs has the embedding %+v", out)
	}
}

// Numbers in the forms that people write.
func TestReadSpecNumbers(t *testing.T) {
	for text, want := range map[string]float64{"2": 2, "+2": 2, ".5": 0.5, "5e-1": 0.5, "1.0e-3": 1e-3, "1E3": 1000} {
		spec, err := readSpecText(t, strings.Replace(goodSpec, "[0.25, 1, 2]", "[0.25, "+text+", 2]", 1))
		if err != nil || spec.Tile.Std[1] != want {
			t.Errorf("%s is read as %+v (%v)", text, spec, err)
		}
	}
}

// The models of this repository can be read.
func TestRepositorySpecs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "model_repository", "*", "spec.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d specs found (%v)", len(files), err)
	}
	for _, file := range files {
		spec, err := ReadSpec(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if folder := filepath.Base(filepath.Dir(file)); spec.Name != folder {
			t.Errorf("the model in %s is named %s", folder, spec.Name)
		}
	}
}

func TestReadSpecRefuses(t *testing.T) {
	for name, test := range map[string]struct{ old, new, want string }{
		"two documents":     {goodSpec, goodSpec + "---\nname: other\n", "holds more than one YAML document"},
		"byte order mark":   {goodSpec, "\ufeff" + goodSpec, "begins with a byte order mark"},
		"empty":             {goodSpec, "", "the document: must be an object"},
		"a list":            {goodSpec, "- name: m", "the document: must be an object"},
		"not YAML":          {"name: m", "name: [m", "[3:1]"},
		"key given twice":   {"task:", "name: n\ntask:", `mapping key "name" already defined`},
		"unknown field":     {"task:", "tusk: x\ntask:", "tusk: unknown field; the fields here are name, aliases, task, checkpoint, tile,"},
		"unknown in a list": {"role: prediction,", "role: prediction, rule: x,", "outputs[0].rule: unknown field; the fields here are name, role, dtype, shape"},
		"missing":           {"task: tile embedding", "", "task: missing"},
		"missing inside":    {"  width: 64\n", "", "tile.width: missing"},
		"missing in a list": {"role: embedding, ", "", "outputs[1].role: missing"},

		"object for text":      {"task: tile embedding", "task: {a: b}", "task: must be a text"},
		"number for text":      {"name: m-1.2_x", "name: 7", "name: must be a text"},
		"number for a mode":    {"[prediction, ", "[7, ", "modes[0]: must be a text"},
		"text for a list":      {"aliases: [m-old]", "aliases: m-old", "aliases: must be a list"},
		"null for a list":      {"aliases: [m-old]", "aliases:", "aliases: must be a list"},
		"list for an object":   {"batching: {max_batch_size: 48, max_queue_delay_ms: 0.5}", "batching: [48]", "batching: must be an object"},
		"text for an integer":  {"width: 64", `width: "64"`, "tile.width: must be an integer"},
		"null for an integer":  {"width: 64", "width:", "tile.width: must be an integer"},
		"true for an integer":  {"width: 64", "width: true", "tile.width: must be an integer"},
		"fraction":             {"max_batch_size: 48", "max_batch_size: 4.5", "batching.max_batch_size: must be an integer"},
		"fraction in a shape":  {"[3, 32, 64]", "[3, 32.5, 64]", "inputs[0].shape[1]: must be an integer"},
		"past 64 bits":         {"width: 64", "width: 9223372036854775808", "tile.width: must fit a 64-bit integer"},
		"far past 64 bits":     {"width: 64", "width: 99999999999999999999", "tile.width: must be an integer"},
		"text for a number":    {"[0.7, -0.5, 0]", `[0.7, "-0.5", 0]`, "tile.mean[1]: must be a number"},
		"exponent too large":   {"[0.25, 1, 2]", "[1e400, 1, 2]", "tile.std[0]: must be a number"},
		"infinite":             {"microns_per_pixel: 0.5", "microns_per_pixel: .inf", "tile.microns_per_pixel: must be above zero and finite"},
		"mean of NaN":          {"[0.7, -0.5, 0]", "[0.7, -0.5, .nan]", "tile.mean: must be finite"},
		"std of NaN":           {"[0.25, 1, 2]", "[0.25, .nan, 2]", "tile.std: must be above zero and finite"},
		"NaN":                  {"max_queue_delay_ms: 0.5", "max_queue_delay_ms: .nan", "batching.max_queue_delay_ms: must be from 0 to 1000"},
		"checkpoint elsewhere": {"m_old.pt2", "a/b.pt2", `checkpoint: "a/b.pt2" must be the name of a .pt2 file`},
		"two channels":         {"[0.7, -0.5, 0]", "[0.7, -0.5]", "tile.mean: must be a list of 3 values"},
		"four channels":        {"[0.25, 1, 2]", "[0.25, 1, 2, 1]", "tile.std: must be a list of 3 values"},
		"text for a shape":     {"shape: [1536]", "shape: 1536", "outputs[1].shape: must be a list"},
		"name in capitals":     {"name: m-1.2_x", "name: M", `name: "M" must be lower-case letters, digits`},
		"name with a slash":    {"name: m-1.2_x", "name: ../m", `name: "../m" must be`},
		"no name":              {"name: m-1.2_x", `name: ""`, `name: "" must be`},
		"bad alias":            {"[m-old]", "[m-old, m old]", `aliases[1]: "m old" must be`},
		"alias is the name":    {"[m-old]", "[m-1.2_x]", `aliases[0]: "m-1.2_x" is listed twice`},
		"alias twice":          {"[m-old]", "[m-old, m-old]", `aliases[1]: "m-old" is listed twice`},
		"no width":             {"width: 64", "width: 0", "tile: width and height must be from 1 to 8192"},
		"negative height":      {"height: 32", "height: -32", "tile: width and height must be from 1 to 8192"},
		"height too large":     {"height: 32", "height: 8193", "tile: width and height must be from 1 to 8192"},
		"microns of zero":      {"microns_per_pixel: 0.5", "microns_per_pixel: 0", "tile.microns_per_pixel: must be above zero"},
		"mean beyond float32":  {"[0.7, -0.5, 0]", "[0.7, -0.5, -1.0e39]", "tile.mean: must be finite"},
		"std of zero":          {"[0.25, 1, 2]", "[0.25, 0, 2]", "tile.std: must be above zero and finite"},
		"std zero in float32":  {"[0.25, 1, 2]", "[0.25, 1.0e-46, 2]", "tile.std: must be above zero and finite"},
		"negative std":         {"[0.25, 1, 2]", "[-0.25, 1, 2]", "tile.std: must be above zero and finite"},
		"tensor without name":  {"{name: tile", `{name: ""`, `inputs[0].name: "" is not a tensor's name`},
		"tensor name twice":    {"{name: embedding", "{name: tile", `outputs[1].name: "tile" stands for two tensors`},
		"source":               {"source: tile", "source: tyle", `inputs[0].source: "tyle" must be`},
		"dtype":                {"dtype: float16", "dtype: float64", `inputs[0].dtype: "float64" must be`},
		"tile of bytes":        {"dtype: float16", "dtype: uint8", `inputs[0].dtype: "uint8" must be float32 or float16, as the model takes it; for bytes on the way to Triton set tile_transport: uint8`},
		"transport":            {"task:", "tile_transport: float32\ntask:", `tile_transport: "float32" must be float or uint8`},
		"transport of a tile":  {"dtype: float16,", "dtype: float16, tile_transport: uint8,", "inputs[0].tile_transport: unknown field; the fields here are"},
		"output in half":       {"dtype: float32, shape: [6, 2]", "dtype: float16, shape: [6, 2]", "must be float32: answers are written as float32"},
		"size of zero":         {"[6, 2]", "[6, 0]", "outputs[0].shape: [6 0] must be positive sizes"},
		"negative size":        {"[6, 2]", "[-1]", "outputs[0].shape: [-1] must be positive sizes"},
		"too many elements":    {"[6, 2]", "[65536, 65536]", "outputs[0].shape: [65536 65536] must be positive sizes of at most 67108864"},
		"elements overflow":    {"[6, 2]", "[9223372036854775807, 9]", "outputs[0].shape: [9223372036854775807 9] must be"},
		"no shape":             {"[6, 2]", "[]", "outputs[0].shape: must not be empty"},
		"height, width turned": {"[3, 32, 64]", "[3, 64, 32]", "inputs[0].shape: [3 64 32] must be [3 32 64]"},
		"no tile":              {"  - {name: tile, source: tile, dtype: float16, shape: [3, 32, 64]}", "  []", "inputs: must hold exactly one with source tile"},
		"role":                 {"role: prediction", "role: prophecy", `outputs[0].role: "prophecy" must be prediction or embedding`},
		"role twice":           {"role: prediction", "role: embedding", "outputs[1].role: two outputs are the model's embedding"},
		"no modes":             {"[prediction, embedding, prediction_with_embedding]", "[]", "modes: must list at least one mode"},
		"unknown mode":         {"[prediction, embedding,", "[prediction, embed,", `modes[1]: "embed" must be prediction, embedding or`},
		"mode twice":           {"[prediction, embedding,", "[prediction, prediction,", `modes[1]: "prediction" is listed twice`},
		"mode without output": {"  - {name: embedding, role: embedding, dtype: float32, shape: [1536]}\n", "",
			`modes[2]: "prediction_with_embedding" needs an output with the role embedding`},
		"batch of none":    {"max_batch_size: 48", "max_batch_size: 0", "batching.max_batch_size: must be from 1 to 1024"},
		"batch too large":  {"max_batch_size: 48", "max_batch_size: 1025", "batching.max_batch_size: must be from 1 to 1024"},
		"negative delay":   {"max_queue_delay_ms: 0.5", "max_queue_delay_ms: -0.5", "batching.max_queue_delay_ms: must be from 0 to 1000"},
		"delay of minutes": {"max_queue_delay_ms: 0.5", "max_queue_delay_ms: 60000", "batching.max_queue_delay_ms: must be from 0 to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(goodSpec, test.old) {
				t.Fatalf("the good spec does not hold %q", test.old)
			}
			_, err := readSpecText(t, strings.Replace(goodSpec, test.old, test.new, 1))
			if err == nil {
				t.Fatal("taken")
			}
			if text := err.Error(); !strings.Contains(text, "spec.yaml: ") || !strings.Contains(text, test.want) {
				t.Errorf("the error is\n%s\nand does not say %q", text, test.want)
			}
		})
	}
}

// All mistakes of a kind are reported at once, each on a line of its own,
// in the order of the fields.
func TestReadSpecReportsEveryMistake(t *testing.T) {
	for name, test := range map[string]struct {
		changes []string // old, new, ...
		want    []string
	}{
		"form": {
			[]string{"task: tile embedding", "tusk: x\ntask2: x\nzeal: x\nalas: x", "width: 64", `width: "64"`, "[6, 2]", "6", "max_batch_size: 48, ", ""},
			[]string{"task: missing", "tile.width: must be an integer", "outputs[0].shape: must be a list", "batching.max_batch_size: missing",
				"alas: unknown field", "task2: unknown field", "tusk: unknown field", "zeal: unknown field"},
		},
		"values": {
			[]string{"name: m-1.2_x", "name: M", "[m-old]", "[Old]", "microns_per_pixel: 0.5", "microns_per_pixel: -1",
				"role: embedding", "role: x", "max_batch_size: 48", "max_batch_size: 0", "max_queue_delay_ms: 0.5", "max_queue_delay_ms: -1"},
			[]string{`name: "M"`, `aliases[0]: "Old"`, "tile.microns_per_pixel:", `outputs[1].role: "x"`, "modes[1]:", "modes[2]:",
				"batching.max_batch_size:", "batching.max_queue_delay_ms:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSpecText(t, strings.NewReplacer(test.changes...).Replace(goodSpec))
			if err == nil {
				t.Fatal("taken")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("%d mistakes reported, want %d:\n%v", len(lines), len(test.want), err)
			}
			for i, want := range test.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %d does not say %q:\n%v", i, want, err)
				}
			}
		})
	}
}

func TestReadSpecNamesAFileThatIsNotThere(t *testing.T) {
	if _, err := ReadSpec(filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("the error is %v", err)
	}
}

// A field that may be absent is held to its type when it is present.
func TestCheckFieldsFollowsPointers(t *testing.T) {
	type like struct {
		Factor *float64 `yaml:"factor,omitempty"`
	}
	for _, good := range []map[string]any{{}, {"factor": 0.5}, {"factor": uint64(2)}, {"factor": "1e6"}} {
		if err := checkFields(good, like{}); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, bad := range []any{"0.5", "e", nil, true, []any{0.5}} {
		err := checkFields(map[string]any{"factor": bad}, like{})
		if err == nil || !strings.HasPrefix(err.Error(), "factor: must be a number") {
			t.Errorf("%v: the error is %v", bad, err)
		}
	}
}
