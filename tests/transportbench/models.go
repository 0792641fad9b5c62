package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"histogate/prep"
	"histogate/prep/raster"
	"histogate/tests/stack"
	"histogate/tritonclient"
)

// model is a model that costs nothing, with one of the product's contracts.
type model struct {
	name    string
	weight  int // how many of the smallest model's requests one of this costs
	inputs  []tritonclient.TensorSpec
	request tritonclient.InferRequest
}

// makeModels makes a repository of the models and the folder of their backend.
func makeModels(folder string) (models []*model, err error) {
	backends := filepath.Join(folder, "backends")
	if err := os.Mkdir(backends, 0o755); err != nil {
		return nil, err
	}
	for name, target := range map[string]string{"python": "build/triton/backends/python", "instant": "tests/transportbench/testdata/instant"} {
		if err := os.Symlink(filepath.Join(stack.Root(), target), filepath.Join(backends, name)); err != nil {
			return nil, err
		}
	}
	for _, m := range []*model{{name: "tile", weight: 1}, {name: "mask", weight: 4}} {
		like := map[string]string{"tile": "h1", "mask": "tissue-seg"}[m.name]
		if err := m.make(filepath.Join("model_repository", like), like, filepath.Join(folder, "models", m.name)); err != nil {
			return nil, err
		}
		models = append(models, m)
	}
	return models, nil
}

// make makes the model's folder after another's, and its request.
func (m *model) make(from, like, folder string) error {
	if err := os.MkdirAll(filepath.Join(folder, "1"), 0o755); err != nil {
		return err
	}
	replaced := strings.NewReplacer("name: "+like+"\n", "name: "+m.name+"\n", strconv.Quote(like), strconv.Quote(m.name), `backend: "histogate"`, `backend: "instant"`)
	for _, file := range []string{"spec.yaml", "config.pbtxt"} {
		text, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, file), []byte(replaced.Replace(string(text))), 0o600); err != nil {
			return err
		}
	}
	spec, err := prep.ReadSpec(filepath.Join(folder, "spec.yaml"))
	if err != nil {
		return err
	}
	tensor := func(name string, shape []int64) []tritonclient.TensorSpec {
		return []tritonclient.TensorSpec{{Name: name, Datatype: tritonclient.Float32, Shape: append([]int64{1}, shape...)}}
	}
	m.inputs = tensor(spec.Inputs[0].Name, spec.Inputs[0].Shape)
	table := raster.NewTable([3]float32{0.7, 0.6, 0.7}, [3]float32{0.2, 0.2, 0.2})
	rgb := make([]byte, prep.Elements(spec.Inputs[0].Shape))
	for i := range rgb {
		rgb[i] = byte(i * 7)
	}
	m.request = tritonclient.InferRequest{
		Model:   m.name,
		ID:      "a-request-of-the-benchmark",
		Inputs:  m.inputs,
		Write:   func(_ int, dst []byte) { table.Write(dst, raster.Float32, rgb) },
		Outputs: tensor(spec.Outputs[0].Name, spec.Outputs[0].Shape),
	}
	return nil
}

// own is the processor time that this process has used, in microseconds.
func own() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it fails on wrong arguments alone
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

// children are the processes that a process has started: a Triton's, its backends'.
func children(parent int) (pids []int, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, process := range processes {
		name := filepath.Base(process)
		if fields, err := stat(name); err == nil && fields[1] == strconv.Itoa(parent) { // else it has ended
			pid, err := strconv.Atoi(name)
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// stat is what stands behind the name in a process's stat file: state, parent, ...
func stat(pid string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("process %s has a stat file of %d fields", pid, len(fields))
	}
	return fields, nil
}
