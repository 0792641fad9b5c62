package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
)

// model is one served model: its contract, and what is derived from it once.
type model struct {
	spec     *prep.Spec
	config   *kserve.ModelConfig // the config.pbtxt beside the spec
	preparer *prep.Preparer
	metadata []byte // the metadata answer
	window   *window
	health   *health
	// broken is why the model can never be used, in words for a caller; empty for
	// one that can. A broken model has nothing but its spec and its health.
	broken string
}

// models is what is served, by every name that it is served under.
type models struct {
	list     []*model
	names    []string // without aliases, in order
	byName   map[string]*model
	fallback *model // of a request that names none; nil when there is no such
	pinged   readiness
}

// readModels reads the models to serve from the repository and holds each spec
// against its config.pbtxt. Every mistake is reported. The broken models are known
// by name but not in the repository.
func readModels(cfg *Config, broken map[string]modelrepo.Model) (*models, error) {
	names := cfg.Models
	if len(names) == 0 {
		var err error
		if names, err = modelrepo.Folders(cfg.ModelRepository); err != nil {
			return nil, fmt.Errorf("MODEL_REPOSITORY=%q: %w; name the folder that holds a folder for each model", cfg.ModelRepository, err)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("MODEL_REPOSITORY=%q holds no model: put a folder with a spec.yaml and a config.pbtxt for each there", cfg.ModelRepository)
	}
	served := &models{byName: map[string]*model{}}
	var mistakes []error
	for _, name := range names {
		var m *model
		if b, ok := broken[name]; ok {
			m = brokenModel(b.Spec, b.Problem)
		} else {
			var err error
			if m, err = readModel(cfg, filepath.Join(cfg.ModelRepository, name), name); err != nil {
				mistakes = append(mistakes, err)
				continue
			}
		}
		served.list = append(served.list, m)
		served.names = append(served.names, name)
		for _, n := range slices.Concat([]string{name}, m.spec.Aliases) {
			if other, taken := served.byName[n]; taken {
				mistakes = append(mistakes, fmt.Errorf("%q is a name of both %s and %s", n, other.spec.Name, name))
			}
			served.byName[n] = m
		}
	}
	if len(mistakes) > 0 { // what is named may be what could not be read
		return served, errors.Join(mistakes...)
	}
	if cfg.DefaultModel != "" {
		if served.fallback = served.byName[cfg.DefaultModel]; served.fallback == nil {
			mistakes = append(mistakes, fmt.Errorf("DEFAULT_MODEL=%q is not among the models: %v", cfg.DefaultModel, served.names))
		}
	}
	var err error
	served.pinged, err = served.readiness(cfg.PingMode)
	return served, errors.Join(append(mistakes, err)...)
}

func readModel(cfg *Config, folder, name string) (*model, error) {
	if !isFile(folder, "spec.yaml") || !isFile(folder, "config.pbtxt") {
		return nil, fmt.Errorf("model %s: its folder %s must hold a spec.yaml and a config.pbtxt, both files", name, folder)
	}
	spec, specErr := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
	configPath := filepath.Join(folder, "config.pbtxt")
	config, configErr := tritonclient.ReadModelConfig(configPath)
	if err := errors.Join(specErr, configErr); err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	if spec.Name != name {
		return nil, fmt.Errorf("model %s: the name in its spec.yaml is %q; it must be the folder's", name, spec.Name)
	}
	if err := checkConfig(spec, config, configPath); err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(describe(spec))
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	preparer := prep.NewPreparer(spec, prep.ImageFormats(cfg.ImageFormats...), prep.RNACache(prep.DefaultRNACacheEntries, cfg.RNACacheBytes))
	return &model{spec: spec, config: config, preparer: preparer, metadata: metadata, window: newWindow(places(config))}, nil
}

// places is how many requests of a model are inside Triton at once: two full
// batches for each of its instances, one that runs and one that gathers. A group has
// its instances on each of its GPUs; which those are, where the configuration does not
// say, Triton tells of a loaded model.
func places(config *kserve.ModelConfig) int {
	instances := 0
	for _, group := range config.InstanceGroup {
		instances += int(max(group.Count, 1)) * max(len(group.Gpus), 1)
	}
	return 2 * int(config.MaxBatchSize) * max(instances, 1)
}

// find looks a model up by its name or an alias.
func (s *models) find(name string) (*model, error) {
	if m, ok := s.byName[name]; ok {
		return m, nil
	}
	return nil, unknownModel(name, s.names)
}

// modeName is a mode that the model is asked for, in text of the model's own: that of
// a request may be anything, and be overwritten when the request has ended.
func (m *model) modeName(mode prep.Mode) string {
	if i := slices.Index(m.spec.Modes, mode); i >= 0 {
		return string(m.spec.Modes[i])
	}
	if mode == metadataMode {
		return string(metadataMode)
	}
	return ""
}

// writeBlank writes the i-th input of as many samples as dst takes, for which nothing
// was sent.
func (m *model) writeBlank(i int, dst []byte) { m.spec.Inputs[i].WriteBlank(dst) }

// inputs are the tensors of a batch.
func (m *model) inputs(rows int) []tritonclient.TensorSpec {
	specs := make([]tritonclient.TensorSpec, len(m.spec.Inputs))
	for i, in := range m.spec.Inputs {
		specs[i] = tritonclient.TensorSpec{Name: in.Name, Datatype: datatype(m.spec.Sent(i)), Shape: batchShape(rows, in.Shape)}
	}
	return specs
}

// sharedInputs is what goes through shared memory. A batch that is given up can be
// read for as long as three take (see infer).
func (m *model) sharedInputs(places int) tritonclient.SharedInputs {
	return tritonclient.SharedInputs{Model: m.spec.Name, Inputs: m.inputs(1), Requests: places, Settle: 3 * m.spec.Batching.ExecuteLimit()}
}

// outputs are the tensors that the roles stand for, in their order.
func (m *model) outputs(roles []prep.Role, rows int) []tritonclient.TensorSpec {
	specs := make([]tritonclient.TensorSpec, len(roles))
	for i, role := range roles {
		out, _ := m.spec.Output(role) // a checked spec has one for each role of its modes
		specs[i] = tritonclient.TensorSpec{Name: out.Name, Datatype: datatype(out.DType), Shape: batchShape(rows, out.Shape)}
	}
	return specs
}

func batchShape(rows int, shape []int64) []int64 { return append([]int64{int64(rows)}, shape...) }

// tensorDescription is how the metadata answer describes a tensor. A dimension
// is a number or, where it differs from call to call, a name.
type tensorDescription struct {
	name  string
	Shape []any  `json:"shape"`
	DType string `json:"dtype"`
}

// describedTensors are tensors by name, written in the order in which the model takes
// or gives them.
type describedTensors []tensorDescription

func describeTensor(name string, dtype prep.DType, shape []int64) tensorDescription {
	t := tensorDescription{name, []any{"batch"}, string(dtype)}
	for _, size := range shape {
		t.Shape = append(t.Shape, size)
	}
	return t
}

// MarshalJSON writes an object.
func (d describedTensors) MarshalJSON() ([]byte, error) {
	var members [][]byte
	for _, t := range d {
		name, err := json.Marshal(t.name)
		if err != nil {
			return nil, err
		}
		description, err := json.Marshal(t)
		if err != nil {
			return nil, err
		}
		members = append(members, slices.Concat(name, []byte(":"), description))
	}
	return slices.Concat([]byte("{"), bytes.Join(members, []byte(",")), []byte("}")), nil
}

// metadata is the answer that tells clients what a model takes and gives.
type metadata struct {
	ModelName    string           `json:"model_name"`
	InputDType   string           `json:"input_dtype"`
	TileSize     [2]int           `json:"tile_size"` // width, height
	Inputs       describedTensors `json:"inputs"`
	Outputs      describedTensors `json:"outputs"`
	EmbeddingDim int64            `json:"embedding_dim,omitempty"`
	InputGenes   []string         `json:"input_genes,omitempty"`
	OutputGenes  []string         `json:"output_genes,omitempty"`
	Config       *prep.Spec       `json:"config"`
}

func describe(spec *prep.Spec) metadata {
	d := metadata{
		ModelName:   spec.Name,
		TileSize:    [2]int{spec.Tile.Width, spec.Tile.Height},
		InputGenes:  spec.InputGenes,
		OutputGenes: spec.OutputGenes,
		Config:      spec,
	}
	for _, in := range spec.Inputs {
		d.Inputs = append(d.Inputs, describeTensor(in.Name, in.DType, in.Shape))
		if in.Source == prep.TileSource {
			d.InputDType = "torch." + string(in.DType) // as clients know it
		}
	}
	for _, out := range spec.Outputs {
		d.Outputs = append(d.Outputs, describeTensor(out.Name, out.DType, out.Shape))
		if out.Role == prep.EmbeddingRole {
			d.EmbeddingDim = out.Shape[len(out.Shape)-1]
		}
	}
	return d
}
