package repository

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"histogate/gateway/checkpoint/checkpointtest"
	"histogate/prep"
	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
)

// read reads what was made of a model.
func read(t *testing.T, folder string) (*prep.Spec, *kserve.ModelConfig) {
	t.Helper()
	spec, err := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := tritonclient.ReadModelConfig(filepath.Join(folder, "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	return spec, config
}

// holdBytes holds a configuration against a spec whose tile goes as bytes: the tile's
// type, the table and its hash, and nothing else of it changed.
func holdBytes(t *testing.T, spec *prep.Spec, config *kserve.ModelConfig, dtype prep.DType) {
	t.Helper()
	if spec.TileTransport != prep.UInt8Transport || spec.Inputs[0].DType != dtype || config.Input[0].DataType != kserve.DataType_TYPE_UINT8 {
		t.Errorf("%s: transport %q, dtype %s, Triton takes %s", spec.Name, spec.TileTransport, spec.Inputs[0].DType, config.Input[0].DataType)
	}
	for i, in := range spec.Inputs[1:] {
		if config.Input[i+1].DataType != DataType(in.DType) {
			t.Errorf("%s: input %s is %s", spec.Name, in.Name, config.Input[i+1].DataType)
		}
	}
	table, err := base64.StdEncoding.DecodeString(config.Parameters["tile_table"].GetStringValue())
	if err != nil || !bytes.Equal(table, spec.TileTable()) {
		t.Errorf("%s: another table (%v)", spec.Name, err)
	}
	hash := sha256.Sum256(table)
	if got := config.Parameters["tile_table_sha256"].GetStringValue(); got != hex.EncodeToString(hash[:]) || config.Parameters["tile_table_dtype"].GetStringValue() != string(dtype) {
		t.Errorf("%s: hash %s, type %s", spec.Name, got, config.Parameters["tile_table_dtype"].GetStringValue())
	}
	if err := CheckTileTable(spec, config); err != nil {
		t.Error(err)
	}
}

// What is built of a checkpoint has the table of the type that the checkpoint takes.
func TestBuildForBytes(t *testing.T) {
	o := options(modelDir(t, map[string]checkpointtest.Package{
		"h1_optimus_cls_token.pt2": {Metadata: h1Metadata}, "m_optimus_prediction.pt2": {Metadata: optimusMetadata}, "tissue_seg_aoti.pt2": {},
	}))
	o.TileTransport = prep.UInt8Transport
	out := t.TempDir()
	if result, err := Build(out, o); err != nil || result.Built() != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	for name, dtype := range map[string]prep.DType{"h1": prep.Float16, "m-optimus": prep.Float32, "tissue-seg": prep.Float32} {
		spec, config := read(t, filepath.Join(out, name))
		holdBytes(t, spec, config, dtype)
		if types := config.Parameters["input_dtypes"].GetStringValue(); (types == "") != (name == "tissue-seg") {
			t.Errorf("%s: the checkpoint's types are %q", name, types)
		}
	}
}

// A repository is converted there and back, its checkpoints linked to.
func TestConvertTransport(t *testing.T) {
	from, there, back := "../../model_repository", filepath.Join(t.TempDir(), "there"), t.TempDir()
	if err := Convert(there, from, nil, Changes{TileTransport: prep.UInt8Transport}); err != nil {
		t.Fatal(err)
	}
	if err := Convert(back, there, []string{"m-optimus"}, Changes{TileTransport: prep.FloatTransport}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"h0-mini", "h0", "h1", "m-optimus", "tissue-seg"} {
		spec, config := read(t, filepath.Join(there, name))
		holdBytes(t, spec, config, prep.Float32)
		if link, err := os.Readlink(filepath.Join(there, name, "1")); err != nil || !filepath.IsAbs(link) {
			t.Errorf("%s: the checkpoint is at %q, %v", name, link, err)
		}
		was, err := os.ReadFile(filepath.Join(from, name, specName))
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.ReadFile(filepath.Join(there, name, specName))
		if want := string(was) + "tile_transport: uint8\n"; err != nil || string(is) != want {
			t.Errorf("%s: %v, the spec is\n%swant\n%s", name, err, is, want)
		}
	}
	was, wasConfig := read(t, filepath.Join(from, "m-optimus"))
	spec, config := read(t, filepath.Join(back, "m-optimus"))
	if spec.TileTransport != prep.FloatTransport || !bytes.Equal(written(config), written(wasConfig)) {
		t.Errorf("back again: %q, %s", spec.TileTransport, written(config))
	}
	if err := CheckTileTable(was, config); err != nil {
		t.Error(err)
	}
	if err := Convert(there, from, nil, Changes{}); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("converted into a folder that is not empty: %v", err)
	}
}

// A configuration with another table than the spec's is refused, and it is said what
// to run.
func TestCheckTileTable(t *testing.T) {
	out := t.TempDir()
	if err := Convert(out, "../../model_repository", []string{"h1"}, Changes{TileTransport: prep.UInt8Transport}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*prep.Spec, *kserve.ModelConfig)
		want   string
	}{
		"another mean":   {func(s *prep.Spec, _ *kserve.ModelConfig) { s.Tile.Mean[1] += 0.01 }, "the parameter tile_table_sha256 is "},
		"another dtype":  {func(s *prep.Spec, _ *kserve.ModelConfig) { s.Inputs[0].DType = prep.Float16 }, "the parameter tile_table_sha256 is "},
		"floats":         {func(s *prep.Spec, _ *kserve.ModelConfig) { s.TileTransport = "" }, "it has a table for a tile that goes as bytes, and by spec.yaml the tile goes as floats; "},
		"no parameters":  {func(_ *prep.Spec, c *kserve.ModelConfig) { c.Parameters = nil }, "the parameter tile_table_sha256 is missing: by spec.yaml the tile goes as bytes; "},
		"no table":       {func(_ *prep.Spec, c *kserve.ModelConfig) { delete(c.Parameters, "tile_table") }, "the parameter tile_table is missing: "},
		"no type":        {func(_ *prep.Spec, c *kserve.ModelConfig) { delete(c.Parameters, "tile_table_dtype") }, "the parameter tile_table_dtype is missing: "},
		"table edited":   {func(_ *prep.Spec, c *kserve.ModelConfig) { c.Parameters["tile_table"].StringValue += "A" }, "the parameter tile_table is not the table that its tile_table_sha256 is of; "},
		"type is edited": {func(_ *prep.Spec, c *kserve.ModelConfig) { c.Parameters["tile_table_dtype"].StringValue = "float16" }, "the parameter tile_table_dtype is float16, and what spec.yaml says of the tile gives float32; "},
	} {
		spec, config := read(t, filepath.Join(out, "h1"))
		test.change(spec, config)
		err := CheckTileTable(spec, config)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "gateway repository build or, for a model that is no .pt2, gateway repository convert") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
