package stack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Variant makes, in an empty folder, what a stack needs that serves one of the models
// from a backend of a test's own, whose folder is given: the stack's options, and the
// model's folder in its repository. Texts of the model's config.pbtxt and spec.yaml
// can be replaced, each by the one that follows it.
func Variant(folder, model, backend string, replacements ...string) (o Options, modelFolder string, err error) {
	o = Options{Repository: filepath.Join(folder, "models"), Backends: filepath.Join(folder, "backends"), Env: []string{"MODELS=" + model}}
	source, modelFolder := filepath.Join(Root(), "model_repository", model), filepath.Join(o.Repository, model)
	for _, dir := range []string{modelFolder, o.Backends} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return o, "", err
		}
	}
	replacements = append([]string{`"histogate"`, fmt.Sprintf("%q", filepath.Base(backend))}, replacements...)
	var before []byte
	for _, name := range []string{"config.pbtxt", "spec.yaml"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return o, "", err
		}
		before = append(before, text...)
		if err := os.WriteFile(filepath.Join(modelFolder, name), []byte(strings.NewReplacer(replacements...).Replace(string(text))), 0o644); err != nil {
			return o, "", err
		}
	}
	for i := 0; i < len(replacements); i += 2 {
		if !bytes.Contains(before, []byte(replacements[i])) {
			return o, "", fmt.Errorf("neither config.pbtxt nor spec.yaml of %s holds %q", model, replacements[i])
		}
	}
	for from, to := range map[string]string{
		filepath.Join(source, "1"):                                     filepath.Join(modelFolder, "1"),
		filepath.Join(Root(), "build", "triton", "backends", "python"): filepath.Join(o.Backends, "python"),
		filepath.Join(Root(), "deploy/triton/backends/histogate"):      filepath.Join(o.Backends, "histogate"),
		backend: filepath.Join(o.Backends, filepath.Base(backend)),
	} {
		if err := os.Symlink(from, to); err != nil {
			return o, "", err
		}
	}
	return o, modelFolder, nil
}

// SlowDevice makes, in an empty folder, what a stack needs that serves h1 on a made-up
// device: behind the checkpoint's own time it takes so many milliseconds for a batch, and
// for each of its rows.
func SlowDevice(folder string, batch, row float64) (Options, error) {
	const before = "instance_group"
	parameter := func(name string, value float64) string {
		return fmt.Sprintf("parameters { key: %q value: { string_value: \"%g\" } }\n", name, value)
	}
	parameters := parameter("device_batch_ms", batch) + parameter("device_row_ms", row)
	o, _, err := Variant(folder, "h1", filepath.Join(Root(), "tests/stack/testdata/device"), before, parameters+before)
	return o, err
}
