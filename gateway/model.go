package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	inputs   []tritonclient.TensorSpec // of a batch of one
	metadata []byte                    // the metadata answer
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
}

// readModels reads the models to serve from the repository and holds each spec
// against its config.pbtxt. Every mistake is reported. The broken models are known
// by name but not in the repository.
func readModels(cfg *Config, broken map[string]modelrepo.Model) (*models, error) {
	names := cfg.Models
	if len(names) == 0 {
		entries, err := os.ReadDir(cfg.ModelRepository)
		if err != nil {
			return nil, fmt.Errorf("MODEL_REPOSITORY: %w", err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || e.Name() == "lost+found" { // of version control and file systems
				continue
			}
			// A link to a folder counts: mounted volumes are made of them.
			if info, err := os.Stat(filepath.Join(cfg.ModelRepository, e.Name())); err == nil && info.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("MODEL_REPOSITORY=%q holds no model", cfg.ModelRepository)
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
	if len(mistakes) == 0 && cfg.DefaultModel != "" {
		if served.fallback = served.byName[cfg.DefaultModel]; served.fallback == nil {
			mistakes = append(mistakes, fmt.Errorf("DEFAULT_MODEL=%q is not among the models: %v", cfg.DefaultModel, served.names))
		}
	}
	if len(mistakes) == 0 {
		mistakes = append(mistakes, served.checkPingMode(cfg.PingMode))
	}
	return served, errors.Join(mistakes...)
}

func readModel(cfg *Config, folder, name string) (*model, error) {
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
	return &model{spec: spec, config: config, preparer: preparer, inputs: inputs(spec), metadata: metadata, window: newWindow(places(config))}, nil
}

// places is how many requests of a model are inside Triton at once: two full
// batches for each of its instances, one that runs and one that gathers.
func places(config *kserve.ModelConfig) int {
	instances := 0
	for _, group := range config.InstanceGroup {
		instances += int(max(group.Count, 1))
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

// inputs are the tensors of a batch of one.
func inputs(spec *prep.Spec) []tritonclient.TensorSpec {
	specs := make([]tritonclient.TensorSpec, len(spec.Inputs))
	for i, in := range spec.Inputs {
		specs[i] = tritonclient.TensorSpec{Name: in.Name, Datatype: datatype(in.DType), Shape: batchOfOne(in.Shape)}
	}
	return specs
}

// outputs are the tensors that the roles stand for, in their order.
func (m *model) outputs(roles []prep.Role) []tritonclient.TensorSpec {
	specs := make([]tritonclient.TensorSpec, len(roles))
	for i, role := range roles {
		out, _ := m.spec.Output(role) // a checked spec has one for each role of its modes
		specs[i] = tritonclient.TensorSpec{Name: out.Name, Datatype: datatype(out.DType), Shape: batchOfOne(out.Shape)}
	}
	return specs
}

func batchOfOne(shape []int64) []int64 { return append([]int64{1}, shape...) }

// tensorDescription is how the metadata answer describes a tensor. A dimension
// is a number or, where it differs from call to call, a name.
type tensorDescription struct {
	Shape []any  `json:"shape"`
	DType string `json:"dtype"`
}

// metadata is the answer that tells clients what a model takes and gives.
type metadata struct {
	ModelName    string                       `json:"model_name"`
	InputDType   string                       `json:"input_dtype"`
	TileSize     [2]int                       `json:"tile_size"` // width, height
	Inputs       map[string]tensorDescription `json:"inputs"`
	Outputs      map[string]tensorDescription `json:"outputs"`
	EmbeddingDim int64                        `json:"embedding_dim,omitempty"`
	InputGenes   []string                     `json:"input_genes,omitempty"`
	OutputGenes  []string                     `json:"output_genes,omitempty"`
	Config       *prep.Spec                   `json:"config"`
}

func describe(spec *prep.Spec) metadata {
	d := metadata{
		ModelName:   spec.Name,
		TileSize:    [2]int{spec.Tile.Width, spec.Tile.Height},
		Inputs:      map[string]tensorDescription{},
		Outputs:     map[string]tensorDescription{},
		InputGenes:  spec.InputGenes,
		OutputGenes: spec.OutputGenes,
		Config:      spec,
	}
	tensor := func(dtype prep.DType, shape []int64) tensorDescription {
		t := tensorDescription{[]any{"batch"}, string(dtype)}
		for _, size := range shape {
			t.Shape = append(t.Shape, size)
		}
		return t
	}
	for _, in := range spec.Inputs {
		d.Inputs[in.Name] = tensor(in.DType, in.Shape)
		if in.Source == prep.TileSource {
			d.InputDType = "torch." + string(in.DType) // as clients know it
		}
	}
	for _, out := range spec.Outputs {
		d.Outputs[out.Name] = tensor(out.DType, out.Shape)
		if out.Role == prep.EmbeddingRole {
			d.EmbeddingDim = out.Shape[len(out.Shape)-1]
		}
	}
	return d
}
