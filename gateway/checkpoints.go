package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
)

// defaultModelDir is where platforms put what they are told to serve.
const defaultModelDir = "/opt/ml/model"

// fromCheckpoints builds the model repository out of the checkpoints in MODEL_DIR
// where there are some to serve. It returns the configuration that serves it, by
// name the models that could not be built, and the folder that was made for it,
// which is the caller's to remove. With nothing to build it returns cfg alone.
func fromCheckpoints(cfg *Config, log *slog.Logger) (_ *Config, broken map[string]modelrepo.Model, folder string, err error) {
	modelDir := cfg.ModelDir
	switch {
	case modelDir != "" && cfg.TritonServer == "":
		return nil, nil, "", errors.New("MODEL_DIR needs TRITON_SERVER; for a Triton that something else runs, " +
			"make its repository with gateway repository build and name it in MODEL_REPOSITORY")
	case modelDir == "" && cfg.TritonServer != "" && modelrepo.Holds(cfg.ModelRepository, defaultModelDir):
		modelDir = defaultModelDir
	case modelDir == "":
		if cfg.BatchMaxSize > 0 || cfg.BatchMaxWaitMS != nil {
			log.Warn("BATCH_MAX_SIZE and BATCH_MAX_WAIT_MS have no effect: nothing is built from MODEL_DIR, and MODEL_REPOSITORY is served as it is")
		}
		return cfg, nil, "", nil
	}
	options := modelrepo.Options{
		Specs: cfg.ModelRepository, Models: cfg.Models, ModelDir: modelDir, AssetsDir: cfg.AssetsDir,
		MaxBatchSize: cfg.BatchMaxSize, MaxQueueDelayMS: cfg.BatchMaxWaitMS,
	}
	if options.AssetsDir == "" {
		options.AssetsDir = modelrepo.AssetsDir(modelDir)
	}
	if options.Target, err = modelrepo.FindTarget(context.Background(), cfg.TargetSM); err != nil {
		return nil, nil, "", fmt.Errorf("TARGET_SM: %w", err)
	}
	if options.Target.SMs == nil {
		log.Info("GPU code in checkpoints is not checked: neither TARGET_SM nor nvidia-smi tells the SM version")
	}
	if folder, err = os.MkdirTemp("", "histogate-models-"); err != nil {
		return nil, nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	result, err := modelrepo.Build(folder, options)
	if err != nil {
		return nil, nil, "", fmt.Errorf("MODEL_DIR=%q: %w", modelDir, err)
	}
	if len(result.Models) == 0 {
		return nil, nil, "", fmt.Errorf("MODEL_DIR=%q holds no checkpoint that a spec in MODEL_REPOSITORY=%q names in its field checkpoint",
			modelDir, cfg.ModelRepository)
	}
	log.Info("models are made from checkpoints", "folder", modelDir, "built", result.Built(), "left_out", result.LeftOut, "named_by_no_spec", result.Unknown)
	served := *cfg
	served.ModelRepository, served.Models = folder, nil
	broken = map[string]modelrepo.Model{}
	for _, m := range result.Models {
		served.Models = append(served.Models, m.Spec.Name)
		if m.Problem != nil {
			log.Error("a model cannot be served", "model", m.Spec.Name, "problem", m.Problem.Error())
			broken[m.Spec.Name] = m
		}
	}
	return &served, broken, folder, nil
}

// brokenModel is a model that is known but can never be used. It does no stage 1:
// the lists that that takes may be what is broken.
func brokenModel(spec *prep.Spec, problem error) *model {
	return &model{spec: spec, broken: problem.Error()}
}

// unusable refuses whatever is asked of a broken model.
func (m *model) unusable() error {
	return refuse(CodeBackendUnavailable, "%s cannot be used until its operator mends it: %s", m.spec.Name, m.broken)
}
