package repository

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"histogate/tritonclient/kserve"
)

// CheckVersion tells what is wrong with the version of a model that Triton would load
// from a repository: the one with the highest number. It must hold what the model's
// backend runs; what lies there as .pt2 must be whole, for the target and as the model's
// spec says, and a model.onnx must be whole.
func CheckVersion(repository string, model *kserve.ModelConfig, target Target) error {
	specs, err := readSpecs(repository, []string{model.Name}) // without its lists, as fit takes it
	if err != nil {
		return err
	}
	folder := filepath.Join(repository, model.Name)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	latest := 0
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			latest = max(latest, n)
		}
	}
	if latest == 0 {
		return errors.New("its folder holds no version: put its checkpoint into a folder 1 there")
	}
	version := filepath.Join(folder, strconv.Itoa(latest))
	files, err := os.ReadDir(version)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("its version %d is an empty folder: put its checkpoint there", latest)
	}
	mistakes := []error{checkLoaded(version, model)}
	for _, f := range files {
		if !isCheckpoint(f) {
			mistakes = append(mistakes, checkFile(version, f.Name()))
			continue
		}
		p, err := readCheckpoint(version, f.Name(), target)
		if err == nil {
			_, err = fit(specs[0], p, new(Options))
		}
		mistakes = append(mistakes, err)
	}
	return errors.Join(mistakes...)
}

// PythonBackend is Triton's own backend that runs a model.py, of a model's or of another
// backend's.
const PythonBackend = "python"

// backendName is the one backend that this repository's models name.
const backendName = "histogate"

// checkLoaded tells of a version's folder without a file that the backend could run. Of
// other backends than these two it is not known what they take.
func checkLoaded(folder string, model *kserve.ModelConfig) error {
	none := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			_, err := os.Lstat(filepath.Join(folder, name)) // a link to nothing is told of elsewhere
			return err == nil
		})
	}
	script := cmp.Or(model.DefaultModelFilename, "model.py")
	switch {
	case model.Backend == backendName && none("model.pt2", onnxName):
		return fmt.Errorf("its folder %s holds neither model.pt2 nor %s, which the backend %q looks for: name the checkpoint so", filepath.Base(folder), onnxName, backendName)
	case model.Backend == PythonBackend && none(script):
		return fmt.Errorf("its folder %s holds no %s, which the backend %q runs: put one there, or write backend: %q into its config.pbtxt, which runs checkpoints", filepath.Base(folder), script, PythonBackend, backendName)
	}
	return nil
}

const onnxName = "model.onnx"

// checkFile tells of a file in a version's folder that cannot be read, such as a link to
// nothing, of a model's that is empty, and of an ONNX model that is none. What else may be
// wrong only its backend knows.
func checkFile(folder, name string) error {
	path := filepath.Join(folder, name)
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() { // to open what is none could wait for ever
		var f *os.File
		if f, err = os.Open(path); err == nil {
			err = f.Close()
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s in its folder %s cannot be read: %w; put a file there that this process may read, or mend the link", name, filepath.Base(folder), withoutPath(err))
	case info.Mode().IsRegular() && info.Size() == 0 && strings.HasPrefix(name, "model."):
		return fmt.Errorf("%s in its folder %s is empty; put the checkpoint there", name, filepath.Base(folder))
	case info.Mode().IsRegular() && name == onnxName:
		if err := checkONNX(folder, name); err != nil {
			return fmt.Errorf("%s in its folder %s cannot be used: %w", name, filepath.Base(folder), err)
		}
	}
	return nil
}
