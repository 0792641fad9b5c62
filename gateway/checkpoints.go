package gateway

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
)

// defaultModelDir is where platforms put what they are told to serve.
const defaultModelDir = "/opt/ml/model"

// makeRepository makes the model repository that the child is to serve: out of the
// checkpoints in MODEL_DIR, where there are some, or of MODEL_REPOSITORY with other
// batches, where those are set. It returns the configuration that serves it, by name
// the models that could not be built, and the folder that was made, which is the
// caller's to remove. With nothing to make it returns cfg alone. The checkpoints of
// otherwise are served where MODEL_DIR is not set; one that no spec names is then as
// much a mistake as there.
func makeRepository(ctx context.Context, cfg *Config, otherwise string, log *slog.Logger) (_ *Config, broken map[string]modelrepo.Model, folder string, err error) {
	served, rebatch := *cfg, cfg.BatchMaxSize > 0 || cfg.BatchMaxWaitMS != nil
	if cfg.TritonServer == "" {
		if cfg.ModelDir != "" || rebatch {
			err = errors.New("MODEL_DIR, BATCH_MAX_SIZE and BATCH_MAX_WAIT_MS need TRITON_SERVER; for a Triton that something else runs, " +
				"make its repository with gateway repository build and name it in MODEL_REPOSITORY")
		}
		return cfg, nil, "", err
	}
	if served.ModelDir, err = cfg.modelDir(otherwise); err != nil {
		return nil, nil, "", err
	}
	if served.ModelDir == "" && !rebatch {
		return cfg, nil, "", nil
	}
	if folder, err = os.MkdirTemp("", "histogate-models-"); err != nil {
		return nil, nil, "", err
	}
	if served.ModelDir == "" {
		err = modelrepo.Convert(folder, cfg.ModelRepository, cfg.Models, cfg.changes())
	} else {
		served.Models, broken, err = build(ctx, folder, &served, log)
	}
	if err != nil {
		return nil, nil, "", errors.Join(err, os.RemoveAll(folder))
	}
	served.ModelRepository = folder
	return &served, broken, folder, nil
}

// modelDir is MODEL_DIR or, where that is not set, otherwise if it holds a checkpoint.
func (c *Config) modelDir(otherwise string) (string, error) {
	if c.ModelDir != "" {
		return c.ModelDir, nil
	}
	there, err := modelrepo.Holds(otherwise)
	if err != nil {
		return "", fmt.Errorf("checkpoints are looked for in %s, as MODEL_DIR is not set: %w", otherwise, err)
	}
	if there {
		return otherwise, nil
	}
	return "", nil
}

// changes are what the configuration says in place of the specs.
func (c *Config) changes() modelrepo.Changes {
	return modelrepo.Changes{MaxBatchSize: c.BatchMaxSize, MaxQueueDelayMS: c.BatchMaxWaitMS}
}

// buildOptions are what the configuration says of building a repository.
func (c *Config) buildOptions(ctx context.Context) (o modelrepo.Options, err error) {
	o = modelrepo.Options{
		Specs: c.ModelRepository, Models: c.Models, ModelDir: c.ModelDir, AssetsDir: c.AssetsDir,
		Changes: c.changes(),
	}
	if o.AssetsDir == "" {
		o.AssetsDir = modelrepo.AssetsDir(c.ModelDir)
	}
	o.Target, err = modelrepo.FindTarget(ctx, c.TargetSM)
	return o, err
}

// readRepositorySettings reads the settings with the given names as [ReadConfig] reads
// them. Flags may hold others. The usage of the flags is usage and a list of those read
// here.
func readRepositorySettings(flags *flag.FlagSet, usage string, args []string, lookupEnv func(string) (string, bool), names ...string) (c *Config, mistakes []error, err error) {
	list := slices.DeleteFunc(settings(), func(s setting) bool { return !slices.Contains(names, s.env) })
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		writeSettings(flags.Output(), list)
	}
	c, _, mistakes, err = readSettings(list, flags, args, lookupEnv)
	return c, mistakes, err
}

// Conversion is what "gateway repository convert" is to do.
type Conversion struct {
	From    string   // the model repository
	Models  []string // of it; all when empty
	Changes modelrepo.Changes
}

// ReadConversion reads what of the configuration "gateway repository convert" goes by,
// as [ReadBuildOptions] does.
func ReadConversion(flags *flag.FlagSet, usage string, args []string, lookupEnv func(string) (string, bool)) (Conversion, error) {
	c, mistakes, err := readRepositorySettings(flags, usage, args, lookupEnv, "MODEL_REPOSITORY", "MODELS", "BATCH_MAX_SIZE", "BATCH_MAX_WAIT_MS")
	if err = errors.Join(append(mistakes, err)...); err != nil {
		return Conversion{}, err
	}
	models, err := modelrepo.Names(c.ModelRepository, c.Models)
	return Conversion{From: c.ModelRepository, Models: models, Changes: c.changes()}, err
}

// ReadBuildOptions reads what of the configuration "gateway repository" goes by when it
// builds, under the names and rules of [ReadConfig]. Flags may hold others. The usage of
// the flags is usage and a list of those read here.
func ReadBuildOptions(ctx context.Context, flags *flag.FlagSet, usage string, args []string, lookupEnv func(string) (string, bool)) (modelrepo.Options, error) {
	c, mistakes, err := readRepositorySettings(flags, usage, args, lookupEnv,
		"MODEL_DIR", "MODEL_REPOSITORY", "ASSETS_DIR", "MODELS", "TARGET_SM", "BATCH_MAX_SIZE", "BATCH_MAX_WAIT_MS")
	if err != nil {
		return modelrepo.Options{}, err
	}
	dir, err := c.modelDir(defaultModelDir)
	switch {
	case err != nil:
		mistakes = append(mistakes, err)
	case dir == "":
		mistakes = append(mistakes, fmt.Errorf("MODEL_DIR is not set, and %s holds no checkpoint: name the folder that holds them", defaultModelDir))
	}
	if mistakes != nil {
		return modelrepo.Options{}, errors.Join(mistakes...)
	}
	c.ModelDir = dir
	if c.Models, err = modelrepo.Names(c.ModelRepository, c.Models); err != nil {
		return modelrepo.Options{}, err
	}
	return c.buildOptions(ctx)
}

// build builds the checkpoints in MODEL_DIR and returns the names of the models
// to serve and, by name, those that could not be built.
func build(ctx context.Context, folder string, cfg *Config, log *slog.Logger) (names []string, broken map[string]modelrepo.Model, err error) {
	options, err := cfg.buildOptions(ctx)
	if err != nil {
		return nil, nil, err
	}
	if options.Target.SMs == nil {
		log.Info("GPU code in checkpoints is not checked: TARGET_SM is not set", "reason", options.Target.Unknown)
	}
	result, err := modelrepo.Build(folder, options)
	if err != nil {
		return nil, nil, fmt.Errorf("MODEL_DIR=%q: %w", cfg.ModelDir, err)
	}
	if len(result.Models) == 0 {
		err = fmt.Errorf("MODEL_DIR=%q holds no checkpoint that a spec in MODEL_REPOSITORY=%q names in its field checkpoint", cfg.ModelDir, cfg.ModelRepository)
		if result.Unknown != nil {
			err = fmt.Errorf("%w, but %q: rename the file, or name it in a spec", err, result.Unknown)
		}
		return nil, nil, err
	}
	log.Info("models are made from checkpoints", "folder", cfg.ModelDir, "built", result.Built(), "left_out", result.LeftOut)
	if result.Unknown != nil {
		log.Warn("checkpoints are not served: no spec in MODEL_REPOSITORY names them in its field checkpoint", "folder", cfg.ModelDir, "files", result.Unknown)
	}
	broken = map[string]modelrepo.Model{}
	for _, m := range result.Models {
		names = append(names, m.Spec.Name)
		if m.Problem != nil {
			log.Error("a model cannot be served", "model", m.Spec.Name, "problem", m.Problem.Error(), "model_dir", options.ModelDir, "assets_dir", options.AssetsDir)
			broken[m.Spec.Name] = m
		}
	}
	return names, broken, nil
}

// brokenModel is a model that is known but can never be used. It does no stage 1:
// the lists that that takes may be what is broken.
func brokenModel(spec *prep.Spec, problem error) *model {
	return &model{spec: spec, window: newWindow(0), broken: problem.Error()}
}

// unusable refuses whatever is asked of a broken model.
func (m *model) unusable() error { return m.unavailable(&trouble{reason: m.broken, lasting: true}) }
