package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
	"histogate/prep/raster"
	"histogate/tests/stack"
	"histogate/tritonclient"
)

// model is a model that costs nothing, with one of the product's contracts.
type model struct {
	name    string
	like    string // the model of the product
	bytes   bool   // the tile is sent as bytes
	weight  int    // how many of the smallest model's requests one of this costs
	inputs  []tritonclient.TensorSpec
	request tritonclient.InferRequest
}

// makeModels makes a repository of the models and the folder of their backend.
func makeModels(folder string) (models []*model, err error) {
	backends := filepath.Join(folder, "backends")
	if err := os.Mkdir(backends, 0o755); err != nil {
		return nil, err
	}
	for name, target := range map[string]string{
		"python": "build/triton/backends/python", "histogate": "deploy/triton/backends/histogate",
		"instant": "tests/transportbench/testdata/instant",
	} {
		if err := os.Symlink(filepath.Join(stack.Root(), target), filepath.Join(backends, name)); err != nil {
			return nil, err
		}
	}
	for _, m := range []*model{
		{name: "tile", like: "h1", weight: 1},
		{name: "tile-bytes", like: "h1", bytes: true, weight: 1},
		{name: "mask", like: "tissue-seg", weight: 4},
		{name: "mask-bytes", like: "tissue-seg", bytes: true, weight: 4},
	} {
		if err := m.make(folder); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		models = append(models, m)
	}
	return models, nil
}

// make makes the model's folder, in that of all models, and its request.
func (m *model) make(folder string) error {
	from, floats := filepath.Join(stack.Root(), "model_repository", m.like), filepath.Join(folder, "floats-"+m.name)
	to := filepath.Join(floats, m.name)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	replaced := strings.NewReplacer("name: "+m.like+"\n", "name: "+m.name+"\n", strconv.Quote(m.like), strconv.Quote(m.name), `"histogate"`, `"instant"`)
	for _, file := range []string{"spec.yaml", "config.pbtxt"} {
		text, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, file), []byte(replaced.Replace(string(text))), 0o600); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(from, "1"), filepath.Join(to, "1")); err != nil {
		return err
	}
	transport := prep.FloatTransport
	if m.bytes {
		transport = prep.UInt8Transport
	}
	converted, models := filepath.Join(folder, "converted-"+m.name), filepath.Join(folder, "models")
	if err := modelrepo.Convert(converted, floats, nil, modelrepo.Changes{TileTransport: transport}); err != nil {
		return err
	}
	if err := os.MkdirAll(models, 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(converted, m.name), filepath.Join(models, m.name)); err != nil {
		return err
	}
	return m.prepare(filepath.Join(models, m.name, "spec.yaml"))
}

// prepare makes the model's request.
func (m *model) prepare(path string) error {
	spec, err := prep.ReadSpec(path)
	if err != nil {
		return err
	}
	tensor := func(name string, datatype tritonclient.Datatype, shape []int64) []tritonclient.TensorSpec {
		return []tritonclient.TensorSpec{{Name: name, Datatype: datatype, Shape: append([]int64{1}, shape...)}}
	}
	table := raster.NewTable([3]float32{0.7, 0.6, 0.7}, [3]float32{0.2, 0.2, 0.2})
	rgb := make([]byte, prep.Elements(spec.Inputs[0].Shape))
	picture := stack.Mosaic(spec.Tile.Width, spec.Tile.Height, 0) // how long a table takes hangs on what is looked up
	if err := raster.Decode(picture, spec.Tile.Width, spec.Tile.Height, raster.Formats(), rgb); err != nil {
		return err
	}
	datatype, write := tritonclient.Float32, func(_ int, dst []byte) { table.Write(dst, raster.Float32, rgb) }
	if m.bytes {
		datatype, write = tritonclient.Uint8, func(_ int, dst []byte) { raster.WritePlanes(dst, rgb) }
	}
	m.inputs = tensor(spec.Inputs[0].Name, datatype, spec.Inputs[0].Shape)
	m.request = tritonclient.InferRequest{
		Model:   m.name,
		ID:      "a-request-of-the-benchmark",
		Inputs:  m.inputs,
		Write:   write,
		Outputs: tensor(spec.Outputs[0].Name, tritonclient.Float32, spec.Outputs[0].Shape),
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
