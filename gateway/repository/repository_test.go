package repository

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"histogate/gateway/checkpoint/checkpointtest"
	"histogate/prep"
	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
)

const (
	testdata = "../../tests/pt2/testdata"

	h1Metadata = `{"model": "ViT", "inputs": {"x": {"shape": ["B", 3, 224, 224], "dtype": "torch.float16"}},
	 "outputs": {"cls": {"shape": ["B", 1536], "dtype": "torch.float16"}}}`
	optimusMetadata = `{"model": "MOptimus", "inputs": {"image": {"shape": ["B", 3, 224, 224], "dtype": "float32"},
	 "bulkrna_processed_counts": {"shape": ["B", 64], "dtype": "torch.float16"}, "probes": {"shape": ["B"], "dtype": "torch.int64"}},
	 "outputs": {"p": {"shape": ["B", 40], "dtype": "float32"}, "e": {"shape": ["B", 16], "dtype": "bfloat16"}}}`
)

// machine is this machine's processor as an ELF file says it, and another.
func machine(t *testing.T) (here, other elf.Machine) {
	t.Helper()
	switch runtime.GOARCH {
	case "amd64":
		return elf.EM_X86_64, elf.EM_AARCH64
	case "arm64":
		return elf.EM_AARCH64, elf.EM_X86_64
	}
	t.Skip("no checkpoints are made for " + runtime.GOARCH)
	return 0, 0
}

// modelDir is a folder with the checkpoints, by file name.
func modelDir(t *testing.T, packages map[string]checkpointtest.Package) string {
	t.Helper()
	here, _ := machine(t)
	folder := t.TempDir()
	for name, p := range packages {
		if p.Machine == 0 {
			p.Machine = here
		}
		p.Write(t, filepath.Join(folder, name))
	}
	return folder
}

func options(folder string) Options {
	return Options{Specs: filepath.Join(testdata, "specs"), ModelDir: folder, AssetsDir: filepath.Join(testdata, "assets")}
}

func TestBuild(t *testing.T) {
	out := filepath.Join(t.TempDir(), "repository")
	o := options(modelDir(t, map[string]checkpointtest.Package{
		"h1_optimus_cls_token.pt2": {Metadata: h1Metadata, SMs: []byte{90}},
		"m_optimus_prediction.pt2": {Metadata: optimusMetadata},
		"extra.pt2":                {},
	}))
	wait := 0.25
	o.MaxBatchSize, o.MaxQueueDelayMS, o.Target.SMs = 16, &wait, []int{90}
	result, err := Build(out, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(result.Built(), result.LeftOut, result.Unknown); got != "2 [tissue-seg] [extra.pt2]" {
		t.Errorf("the result is %s", got)
	}
	for name, want := range map[string]struct {
		inputs, outputs string
		kind            kserve.ModelInstanceGroup_Kind
		parameters      string
	}{
		"h1": {"[x FP16 [3 224 224]]", "[cls FP32 [1536]]", kserve.ModelInstanceGroup_KIND_GPU, "float16 4 0"},
		"m-optimus": {"[image FP32 [3 224 224] bulkrna_processed_counts FP32 [64] probes INT64 [1]]", "[p FP32 [40] e FP32 [16]]",
			kserve.ModelInstanceGroup_KIND_CPU, "float32,float16,int64 4,2,1 0"},
	} {
		folder := filepath.Join(out, name)
		config, err := tritonclient.ReadModelConfig(filepath.Join(folder, "config.pbtxt"))
		if err != nil {
			t.Fatal(err)
		}
		spec, err := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckVersion(out, config, o.Target); err != nil {
			t.Errorf("what was built is no good: %v", err)
		}
		var inputs, outputs []any
		for i, in := range config.Input {
			inputs = append(inputs, in.Name, tritonclient.DatatypeOf(in.DataType), in.Dims)
			if spec.Inputs[i].Name != in.Name {
				t.Errorf("%s: input %s of the spec", name, spec.Inputs[i].Name)
			}
		}
		for _, o := range config.Output {
			outputs = append(outputs, o.Name, tritonclient.DatatypeOf(o.DataType), o.Dims)
		}
		parameters := ""
		for _, key := range []string{"input_dtypes", "input_ranks", "fixed_batch"} {
			parameters += " " + config.Parameters[key].GetStringValue()
		}
		if fmt.Sprint(inputs) != want.inputs || fmt.Sprint(outputs) != want.outputs || config.InstanceGroup[0].Kind != want.kind || parameters != " "+want.parameters {
			t.Errorf("%s: inputs %v, outputs %v, %v, parameters%s", name, inputs, outputs, config.InstanceGroup[0].Kind, parameters)
		}
		if config.Backend != "histogate" || config.MaxBatchSize != 16 || config.GetDynamicBatching().GetMaxQueueDelayMicroseconds() != 250 ||
			spec.Batching != (prep.Batching{MaxBatchSize: 16, MaxQueueDelayMS: 0.25}) {
			t.Errorf("%s: %v, spec's batching %v", name, config, spec.Batching)
		}
		if info, err := os.Lstat(filepath.Join(folder, "1", "model.pt2")); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: the checkpoint is no link: %v, %v", name, info, err)
		}
		if _, err := os.Stat(filepath.Join(folder, "1", "model.pt2")); err != nil {
			t.Error(err)
		}
	}
	if _, err := Build(out, o); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("built into a folder that is not empty: %v", err)
	}
}

// Without metadata the spec's own names and shapes hold; a fixed batch bounds
// the batches; copies are files.
func TestBuildVariants(t *testing.T) {
	out := filepath.Join(t.TempDir(), "repository")
	o := options(modelDir(t, map[string]checkpointtest.Package{
		"h1_optimus_cls_token.pt2": {},
		"tissue_seg_aoti.pt2": {Metadata: `{"inputs": {"x": {"shape": [4, 3, 512, 512], "dtype": "float32"}},
			"outputs": {"y": {"shape": [4, 1, 512, 512], "dtype": "float32"}}}`},
		"m_optimus_prediction.pt2": {Metadata: strings.NewReplacer(`["B", 40]`, "[6, 40]", `["B", 16]`, "[6, 16]").Replace(optimusMetadata)},
	}))
	o.Copy = true
	if result, err := Build(out, o); err != nil || result.Built() != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	plain, err := tritonclient.ReadModelConfig(filepath.Join(out, "h1", "config.pbtxt"))
	if err != nil || plain.Input[0].Name != "tile" || plain.Parameters != nil || plain.MaxBatchSize != 48 {
		t.Errorf("without metadata: %v, %v", plain, err)
	}
	fixed, err := tritonclient.ReadModelConfig(filepath.Join(out, "tissue-seg", "config.pbtxt"))
	if err != nil || fixed.MaxBatchSize != 4 || fixed.Parameters["fixed_batch"].GetStringValue() != "4" {
		t.Errorf("with a fixed batch: %v, %v", fixed, err)
	}
	padded, err := tritonclient.ReadModelConfig(filepath.Join(out, "m-optimus", "config.pbtxt"))
	if err != nil || padded.MaxBatchSize != 6 || padded.Parameters["fixed_batch"].GetStringValue() != "0" {
		t.Errorf("with a batch that the checkpoint pads by itself: %v, %v", padded, err)
	}
	original, err := os.ReadFile(filepath.Join(o.ModelDir, "tissue_seg_aoti.pt2"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(out, "tissue-seg", "1", "model.pt2")
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		t.Fatalf("the checkpoint is no copy: %v, %v", info, err)
	}
	if copied, err := os.ReadFile(path); err != nil || !bytes.Equal(copied, original) {
		t.Errorf("the copy differs (%v)", err)
	}
}

// What is wrong with a checkpoint keeps its own model from being built, and says
// what to change without a path.
func TestBuildProblems(t *testing.T) {
	_, other := machine(t)
	optimus := func(old, changed string) checkpointtest.Package {
		if !strings.Contains(optimusMetadata, old) {
			t.Fatalf("the metadata does not hold %q", old)
		}
		return checkpointtest.Package{Metadata: strings.Replace(optimusMetadata, old, changed, 1)}
	}
	// rows has a batch dimension of a number, before the changes.
	rows := func(n int, changes ...string) checkpointtest.Package {
		text := strings.ReplaceAll(optimusMetadata, `"B"`, strconv.Itoa(n))
		return checkpointtest.Package{Metadata: strings.NewReplacer(changes...).Replace(text)}
	}
	contradicts := "model_metadata.json in m_optimus_prediction.pt2 contradicts the model's spec: "
	for name, test := range map[string]struct {
		p      checkpointtest.Package
		assets string
		want   string
	}{
		"other CPU":    {p: checkpointtest.Package{Machine: other}, want: "m_optimus_prediction.pt2 is built for "},
		"other GPU":    {p: checkpointtest.Package{SMs: []byte{80}}, want: "m_optimus_prediction.pt2 is built for sm_80 and TARGET_SM says sm_90; export it anew on a GPU of sm_90"},
		"damaged":      {p: optimus(`"inputs"`, `"inputs`), want: "its checkpoint cannot be used: m_optimus_prediction.pt2: "},
		"two inputs":   {p: optimus(`, "probes": {"shape": ["B"], "dtype": "torch.int64"}`, ""), want: contradicts + "it has 2 inputs (image, bulkrna_processed_counts), the spec 3 (tile, bulkrna, probe_groups)"},
		"order":        {p: optimus(`"image"`, `"bulkrna"`), want: contradicts + `input 1 is "bulkrna" in the metadata and "tile" in the spec, where "bulkrna" is number 2`},
		"output order": {p: optimus(`"p"`, `"embedding"`), want: contradicts + `output 1 is "embedding" in the metadata and "predictions" in the spec, where "embedding" is number 2`},
		"shape":        {p: optimus(`["B", 64]`, `["B", 63]`), want: contradicts + `input 2, "bulkrna_processed_counts", has the shape [B, 63] in the metadata; the spec has "bulkrna" with [batch, 64]`},
		"rank":         {p: optimus(`["B", 40]`, `["B", 40, 1]`), want: contradicts + `output 1, "p", has the shape [B, 40, 1] in the metadata; the spec has "predictions" with [batch, 40]`},
		"tile's dtype": {p: optimus(`"float32"}`, `"uint8"}`), want: contradicts + `input 1, "image", has the dtype uint8 in the metadata; the spec has "tile" with float32`},
		"RNA's dtype":  {p: optimus(`"torch.float16"`, `"int64"`), want: contradicts + `input 2, "bulkrna_processed_counts", has the dtype int64 in the metadata; the spec has "bulkrna" with float32`},
		"output dtype": {p: optimus(`"bfloat16"`, `"float64"`), want: contradicts + `output 2, "e", has the dtype float64 in the metadata; the spec has "embedding" with float32, float16 or bfloat16`},
		"name":         {p: optimus(`"image"`, `"an image"`), want: `inputs[0].name: "an image" is not a tensor's name`},
		"one fixed":    {p: optimus(`["B"], "dtype": "torch.int64"`, `[1], "dtype": "torch.int64"`), want: contradicts + `the batch dimension of input "image" is B, of input "probes" 1: all must have names there, or all the same number`},
		"first fixed":  {p: optimus(`["B", 3, 224, 224]`, `[2, 3, 224, 224]`), want: contradicts + `the batch dimension of input "image" is 2, of input "bulkrna_processed_counts" B: `},
		"output fixed": {p: optimus(`["B", 40]`, `[2, 40]`), want: contradicts + `the batch dimension of output "p" is 2, of output "e" B: `},
		"output's":     {p: rows(4, `[4, 40]`, `[5, 40]`, `[4, 16]`, `[5, 16]`), want: contradicts + `the batch dimension of input "image" is 4, of output "p" 5: `},
		"no output's":  {p: rows(4, `[4, 40]`, `["B", 40]`, `[4, 16]`, `["B", 16]`), want: contradicts + `the batch dimension of input "image" is 4, of output "p" B: `},
		"huge":         {p: rows(1025), want: contradicts + `it is compiled for batches of 1025; at most 1024 rows are taken`},
		"huge outputs": {p: rows(1<<40, "[1099511627776, 3, 224", `["B", 3, 224`, "[1099511627776, 64]", `["B", 64]`, "[1099511627776]", `["B"]`), want: contradicts + `it is compiled for batches of 1099511627776; at most 1024 rows are taken`},
		"no assets":    {p: optimus("MOptimus", "M"), assets: "nothing", want: "input_gene_set.csv, which its spec names, is not in its assets; put it into the folder m-optimus of ASSETS_DIR"},
		"short assets": {p: optimus("MOptimus", "M"), assets: "short", want: "its assets do not fit its checkpoint: inputs[1].shape: [64] is not what 1 input genes become"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(modelDir(t, map[string]checkpointtest.Package{
				"m_optimus_prediction.pt2": test.p, "h1_optimus_cls_token.pt2": {Metadata: h1Metadata},
			}))
			o.Target = Target{SMs: []int{90}, Source: "TARGET_SM"}
			if test.assets != "" {
				o.AssetsDir = t.TempDir()
			}
			if test.assets == "short" {
				for _, name := range []string{"input_gene_set.csv", "output_gene_set.csv"} {
					path := filepath.Join(o.AssetsDir, "m-optimus", name)
					if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte("gene\nA\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			out := filepath.Join(t.TempDir(), "out")
			result, err := Build(out, o)
			if err != nil {
				t.Fatal(err)
			}
			if result.Built() != 1 || result.Models[0].Problem != nil {
				t.Errorf("h1 is not built: %v", result.Models[0].Problem)
			}
			problem := result.Models[1].Problem
			if problem == nil || !strings.Contains(problem.Error(), test.want) || strings.ContainsAny(problem.Error(), "\n") || strings.Contains(problem.Error(), o.ModelDir) {
				t.Errorf("%v\ndoes not say\n%s", problem, test.want)
			}
			if _, err := os.Stat(filepath.Join(out, "m-optimus")); err == nil {
				t.Error("a folder of the model is there")
			}
		})
	}
}

// A model that is asked for by name must be there.
func TestBuildNamed(t *testing.T) {
	o := options(modelDir(t, map[string]checkpointtest.Package{"h1_optimus_cls_token.pt2": {}}))
	o.Models = []string{"h1", "tissue-seg"}
	result, err := Build(filepath.Join(t.TempDir(), "out"), o)
	if err != nil || result.Built() != 1 || result.Models[1].Problem == nil ||
		result.Models[1].Problem.Error() != "its checkpoint tissue_seg_aoti.pt2 is not in the model folder; put it there" {
		t.Errorf("%+v, %v", result, err)
	}
	o.Models = []string{"nope"}
	if _, err := Build(filepath.Join(t.TempDir(), "out"), o); err == nil {
		t.Error("a model without a spec is built")
	}
}

// A model that was made of a copy of another's folder is converted beside it, as each has
// a checkpoint of its own there. Built, both would be the same.
func TestCheckpointOfTwo(t *testing.T) {
	models := t.TempDir()
	for name, from := range map[string]string{"tissue-seg": "tissue-seg", "liver-seg": "tissue-seg"} {
		if err := os.CopyFS(filepath.Join(models, name), os.DirFS(filepath.Join("../../model_repository", from))); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{specName, "config.pbtxt"} {
			path := filepath.Join(models, name, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), from, name)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Convert(t.TempDir(), models, nil, Changes{TileTransport: prep.UInt8Transport}); err != nil {
		t.Error(err)
	}
	o := options(modelDir(t, map[string]checkpointtest.Package{"tissue_seg_aoti.pt2": {}}))
	o.Specs = models
	if _, err := Build(t.TempDir(), o); err == nil || !strings.Contains(err.Error(), "liver-seg and tissue-seg both name the checkpoint tissue_seg_aoti.pt2; name another") {
		t.Error(err)
	}
}

func TestHolds(t *testing.T) {
	other := modelDir(t, map[string]checkpointtest.Package{"other.pt2": {}})
	for folder, want := range map[string]bool{other: true, t.TempDir(): false, "/nonexistent": false} {
		if holds, err := Holds(folder); err != nil || holds != want {
			t.Errorf("%s: %t, %v", folder, holds, err)
		}
	}
	if _, err := Holds(filepath.Join(other, "other.pt2")); err == nil {
		t.Error("what is no folder holds nothing, and that is no error")
	}
}

// A repository with other batches: the rest is what it was, and links to it.
func TestConvertBatches(t *testing.T) {
	built := filepath.Join(t.TempDir(), "built")
	o := options(modelDir(t, map[string]checkpointtest.Package{"m_optimus_prediction.pt2": {Metadata: optimusMetadata}}))
	if result, err := Build(built, o); err != nil || result.Built() != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	fixed := filepath.Join(t.TempDir(), "fixed")
	o = options(modelDir(t, map[string]checkpointtest.Package{"m_optimus_prediction.pt2": {Metadata: strings.ReplaceAll(optimusMetadata, `"B"`, "4")}}))
	if result, err := Build(fixed, o); err != nil || result.Built() != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	wait := 7.5
	for _, test := range []struct {
		built string
		size  int
		wait  *float64
		want  prep.Batching
		delay uint64
	}{
		{built, 3, nil, prep.Batching{MaxBatchSize: 3, MaxQueueDelayMS: 30}, 30000},
		{built, 0, &wait, prep.Batching{MaxBatchSize: 48, MaxQueueDelayMS: 7.5}, 7500},
		{fixed, 3, nil, prep.Batching{MaxBatchSize: 3, MaxQueueDelayMS: 30}, 30000},
		{fixed, 48, nil, prep.Batching{MaxBatchSize: 4, MaxQueueDelayMS: 30}, 30000}, // no more than it was compiled for
	} {
		built, out := test.built, t.TempDir()
		if err := Convert(out, built, nil, Changes{MaxBatchSize: test.size, MaxQueueDelayMS: test.wait}); err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(out, "m-optimus")
		was, err := prep.ReadSpec(filepath.Join(built, "m-optimus", "spec.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		spec, err := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if was.Batching = test.want; !reflect.DeepEqual(spec, was) {
			t.Errorf("the spec is\n%+v, want\n%+v", spec, was)
		}
		config, err := tritonclient.ReadModelConfig(filepath.Join(folder, "config.pbtxt"))
		if err != nil || int(config.MaxBatchSize) != test.want.MaxBatchSize || config.GetDynamicBatching().GetMaxQueueDelayMicroseconds() != test.delay ||
			config.Parameters["input_ranks"].GetStringValue() != "4,2,1" {
			t.Errorf("%v, %v", config, err)
		}
		if _, err := os.Stat(filepath.Join(folder, "1", "model.pt2")); err != nil {
			t.Error(err)
		}
	}
	path := filepath.Join(built, "m-optimus", "config.pbtxt")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`string_value: *"0"`).ReplaceAll(text, []byte(`string_value: "x"`))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Convert(t.TempDir(), built, nil, Changes{MaxBatchSize: 3}); err == nil || !strings.Contains(err.Error(), `fixed_batch is "x"`) {
		t.Errorf("a parameter that is no number: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := Convert(t.TempDir(), built, nil, Changes{MaxBatchSize: 3}); err == nil || !strings.Contains(err.Error(), "model m-optimus") {
		t.Errorf("without a configuration: %v", err)
	}
}
