package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"histogate/tests/stack"
)

// device is how slow a made-up device is, in milliseconds.
type device struct{ batch, row float64 }

// onDevice makes a repository with h1 alone, whose batches take the device's time
// behind the checkpoint's own, and the backends for it, under a folder.
func (d device) onDevice(folder string) (stack.Options, error) {
	o := stack.Options{Repository: filepath.Join(folder, "models"), Backends: filepath.Join(folder, "backends")}
	source, model := filepath.Join(stack.Root(), "model_repository", "h1"), filepath.Join(o.Repository, "h1")
	for _, path := range []string{model, o.Backends} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return o, err
		}
	}
	config, err := os.ReadFile(filepath.Join(source, "config.pbtxt"))
	if err != nil {
		return o, err
	}
	text := strings.Replace(string(config), `"histogate"`, `"device"`, 1) +
		parameter("device_batch_ms", d.batch) + parameter("device_row_ms", d.row)
	if err := os.WriteFile(filepath.Join(model, "config.pbtxt"), []byte(text), 0o644); err != nil {
		return o, err
	}
	for from, to := range map[string]string{
		filepath.Join(source, "spec.yaml"):                                   filepath.Join(model, "spec.yaml"),
		filepath.Join(source, "1"):                                           filepath.Join(model, "1"),
		filepath.Join(stack.Root(), "build", "triton", "backends", "python"): filepath.Join(o.Backends, "python"),
		filepath.Join(stack.Root(), "deploy/triton/backends/histogate"):      filepath.Join(o.Backends, "histogate"),
		filepath.Join(stack.Root(), "tests/bench/testdata/device"):           filepath.Join(o.Backends, "device"),
	} {
		if err := os.Symlink(from, to); err != nil {
			return o, err
		}
	}
	return o, nil
}

func parameter(name string, value float64) string {
	return fmt.Sprintf("parameters { key: %q value: { string_value: \"%g\" } }\n", name, value)
}
