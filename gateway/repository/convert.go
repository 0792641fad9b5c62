package repository

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"histogate/prep"
	"histogate/tritonclient"
)

// Changes are what a repository is to say in place of what its specs do.
type Changes struct {
	MaxBatchSize    int            // rows; as the specs say when 0
	MaxQueueDelayMS *float64       // as the specs say when nil
	TileTransport   prep.Transport // as the specs say when empty
}

func (c *Changes) apply(spec *prep.Spec) {
	if c.MaxBatchSize > 0 {
		spec.Batching.MaxBatchSize = c.MaxBatchSize
	}
	if c.MaxQueueDelayMS != nil {
		spec.Batching.MaxQueueDelayMS = *c.MaxQueueDelayMS
	}
	if c.TileTransport != "" {
		spec.TileTransport = c.TileTransport
	}
}

// Convert copies a model repository into the folder out, which must be empty or not be
// there. The configurations are made to say what the specs do of batches, which have no
// more rows than a model was compiled for, and of what the tile goes to Triton as, and
// the specs are changed before. All else is linked to. No models means all that have a
// spec.
func Convert(out, from string, models []string, changes Changes) error {
	specs, err := readSpecs(from, models)
	if err != nil {
		return err
	}
	if err := checkBeside(out, from); err != nil {
		return err
	}
	if err := makeEmpty(out); err != nil {
		return err
	}
	var mistakes []error
	for _, spec := range specs {
		changes.apply(spec)
		if err := convert(filepath.Join(out, spec.Name), filepath.Join(from, spec.Name), spec); err != nil {
			mistakes = append(mistakes, fmt.Errorf("model %s: %w", spec.Name, err))
		}
	}
	return errors.Join(mistakes...)
}

// checkBeside refuses to make a repository within another, to which it would be a model.
func checkBeside(out, repository string) error {
	outer, outerErr := filepath.Abs(repository)
	inner, innerErr := filepath.Abs(out)
	if err := errors.Join(outerErr, innerErr); err != nil {
		return err
	}
	if way, err := filepath.Rel(outer, inner); err == nil && way != "." && filepath.IsLocal(way) {
		return fmt.Errorf("%s lies in %s, where it would be taken for a model; name a folder beside it", out, repository)
	}
	return nil
}

func convert(out, from string, spec *prep.Spec) error {
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
	setTile(config, spec)
	text, err := respelled(from, spec)
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

// respelled is the text of a model's spec with what [Changes] may change in it as another
// spec has it, and its comments.
func respelled(folder string, spec *prep.Spec) ([]byte, error) {
	text, err := prep.ReadFile(os.DirFS(folder), specName)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseBytes(text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	was, err := prep.ParseSpec(text)
	if err != nil {
		return nil, err
	}
	changed := map[string]any{"$.batching.max_batch_size": spec.Batching.MaxBatchSize, "$.batching.max_queue_delay_ms": spec.Batching.MaxQueueDelayMS}
	if was.TileTransport != "" {
		changed["$.tile_transport"] = spec.TileTransport
	}
	for path, value := range changed {
		place, err := yaml.PathString(path)
		if err == nil {
			err = place.ReplaceWithReader(file, strings.NewReader(fmt.Sprint(value)))
		}
		if err != nil {
			return nil, err
		}
	}
	text = []byte(file.String())
	if was.TileTransport == "" && spec.TileTransport != "" {
		text = fmt.Appendf(text, "tile_transport: %s\n", spec.TileTransport)
	}
	return text, nil
}
