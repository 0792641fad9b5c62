package repository

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CheckVersion tells what is wrong with the version of a model that Triton would load
// from a repository: the one with the highest number. It must hold something, and what
// lies there as .pt2 must be whole, for the target and as the model's spec says.
func CheckVersion(repository, model string, target Target) error {
	specs, err := readSpecs(repository, []string{model}) // without its lists, as fit takes it
	if err != nil {
		return err
	}
	folder := filepath.Join(repository, model)
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
	var mistakes []error
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

// checkFile tells of a file in a version's folder that cannot be read, such as a link to
// nothing, and of a model's that is empty. What else may be wrong only its backend knows.
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
	}
	return nil
}
