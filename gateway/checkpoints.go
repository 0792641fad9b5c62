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

// makeRepository makes the model repository that the child is to serve: out of the
// checkpoints in MODEL_DIR, where there are some, or of MODEL_REPOSITORY with other
// batches, where those are set. It returns the configuration that serves it, by name
// the models that could not be built, and the folder that was made, which is the
// caller's to remove. With nothing to make it returns cfg alone. The checkpoints of
// otherwise are served where MODEL_DIR is not set; one that no spec names is then as
// much a mistake as there.
func makeRepository(cfg *Config, otherwise string, log *slog.Logger) (_ *Config, broken map[string]modelrepo.Model, folder string, err error) {
	served, rebatch := *cfg, cfg.BatchMaxSize > 0 || cfg.BatchMaxWaitMS != nil
	if cfg.TritonServer == "" {
		if cfg.ModelDir != "" || rebatch {
			err = errors.New("MODEL_DIR, BATCH_MAX_SIZE and BATCH_MAX_WAIT_MS need TRITON_SERVER; for a Triton that something else runs, " +
				"make its repository with gateway repository build and name it in MODEL_REPOSITORY")
		}
		return cfg, nil, "", err
	}
	if served.ModelDir == "" {
		there, err := modelrepo.Holds(otherwise)
		if err != nil {
			return nil, nil, "", fmt.Errorf("checkpoints are looked for in %s, as MODEL_DIR is not set: %w", otherwise, err)
		}
		if there {
			served.ModelDir = otherwise
		}
	}
	if served.ModelDir == "" && !rebatch {
		return cfg, nil, "", nil
	}
	if folder, err = os.MkdirTemp("", "histogate-models-"); err != nil {
		return nil, nil, "", err
	}
	if served.ModelDir == "" {
		err = modelrepo.Rebatch(folder, cfg.ModelRepository, cfg.Models, cfg.BatchMaxSize, cfg.BatchMaxWaitMS)
	} else {
		served.Models, broken, err = build(folder, &served, log)
	}
	if err != nil {
		return nil, nil, "", errors.Join(err, os.RemoveAll(folder))
	}
	served.ModelRepository = folder
	return &served, broken, folder, nil
}

// build builds the checkpoints in MODEL_DIR and returns the names of the models
// to serve and, by name, those that could not be built.
func build(folder string, cfg *Config, log *slog.Logger) (names []string, broken map[string]modelrepo.Model, err error) {
	options := modelrepo.Options{
		Specs: cfg.ModelRepository, Models: cfg.Models, ModelDir: cfg.ModelDir, AssetsDir: cfg.AssetsDir,
		MaxBatchSize: cfg.BatchMaxSize, MaxQueueDelayMS: cfg.BatchMaxWaitMS,
	}
	if options.AssetsDir == "" {
		options.AssetsDir = modelrepo.AssetsDir(cfg.ModelDir)
	}
	if options.Target, err = modelrepo.FindTarget(context.Background(), cfg.TargetSM); err != nil {
		return nil, nil, fmt.Errorf("TARGET_SM: %w", err)
	}
	if options.Target.SMs == nil {
		log.Info("GPU code in checkpoints is not checked: neither TARGET_SM nor nvidia-smi tells the SM version")
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
			log.Error("a model cannot be served", "model", m.Spec.Name, "problem", m.Problem.Error())
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
func (m *model) unusable() error {
	return refuse(CodeBackendUnavailable, "%s cannot be used until its operator mends it: %s", m.spec.Name, m.broken)
}
