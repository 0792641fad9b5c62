package repository

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"

	"histogate/prep"
	"histogate/tritonclient"
)

// Rebatch copies a model repository into the folder out, with other batches than
// its specs and configurations say: maxBatchSize unless it is 0, maxQueueDelayMS
// unless it is nil, and no more rows than a model was compiled for. All else is linked
// to. No models means all that have a spec.
func Rebatch(out, from string, models []string, maxBatchSize int, maxQueueDelayMS *float64) error {
	specs, err := readSpecs(from, models)
	if err != nil {
		return err
	}
	var mistakes []error
	for _, spec := range specs {
		spec.Batching = rebatched(spec.Batching, maxBatchSize, maxQueueDelayMS)
		if err := rebatch(filepath.Join(out, spec.Name), filepath.Join(from, spec.Name), spec); err != nil {
			mistakes = append(mistakes, fmt.Errorf("model %s: %w", spec.Name, err))
		}
	}
	return errors.Join(mistakes...)
}

func rebatched(b prep.Batching, maxBatchSize int, maxQueueDelayMS *float64) prep.Batching {
	if maxBatchSize > 0 {
		b.MaxBatchSize = maxBatchSize
	}
	if maxQueueDelayMS != nil {
		b.MaxQueueDelayMS = *maxQueueDelayMS
	}
	return b
}

func rebatch(out, from string, spec *prep.Spec) error {
	const configName = "config.pbtxt"
	config, err := tritonclient.ReadModelConfig(filepath.Join(from, configName))
	if err != nil {
		return err
	}
	if config.GetDynamicBatching() == nil {
		return fmt.Errorf("%s: dynamic_batching is missing", configName)
	}
	compiledFor, err := FixedBatch(config)
	if err != nil {
		return fmt.Errorf("%s: %w", configName, err)
	}
	if compiledFor > 0 {
		spec.Batching.MaxBatchSize = min(spec.Batching.MaxBatchSize, compiledFor)
	}
	config.MaxBatchSize = int32(spec.Batching.MaxBatchSize) // at most 1024, as settings and specs are checked
	config.GetDynamicBatching().MaxQueueDelayMicroseconds = Microseconds(spec.Batching)
	text, err := yaml.Marshal(spec)
	if err != nil {
		return err
	}
	if from, err = filepath.Abs(from); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != specName && name != configName {
			if err := os.Symlink(filepath.Join(from, name), filepath.Join(out, name)); err != nil {
				return err
			}
		}
	}
	return errors.Join(os.WriteFile(filepath.Join(out, specName), text, 0o644), os.WriteFile(filepath.Join(out, configName), written(config), 0o644))
}
