package repository

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"histogate/prep"
)

// specName is a spec's file, in the folder of its model.
const specName = "spec.yaml"

// Folders are the names of the models' folders in a folder of them, in order: every
// folder but those of version control and of file systems.
func Folders(folder string) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "lost+found" {
			continue
		}
		// A link to a folder counts: mounted volumes are made of them.
		if info, err := os.Stat(filepath.Join(folder, e.Name())); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Names are the models of a folder of specs that the given names and aliases stand
// for, each once. All that stand for none are reported.
func Names(folder string, given []string) ([]string, error) {
	var names []string
	var mistakes []error
	for _, name := range given {
		if !isThere(folder, filepath.Join(name, specName)) {
			owner, known := ownerOf(folder, name)
			if owner == "" {
				mistakes = append(mistakes, fmt.Errorf("MODELS: %q is no model of MODEL_REPOSITORY=%q, nor an alias of one; there are: %s",
					name, folder, strings.Join(known, ", ")))
				continue
			}
			name = owner
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, errors.Join(mistakes...)
}

// ownerOf is the model that has an alias, empty where none has, and the names of all.
func ownerOf(folder, alias string) (owner string, known []string) {
	for _, spec := range readable(folder) {
		known = append(known, spec.Name)
		if slices.Contains(spec.Aliases, alias) {
			owner = spec.Name
		}
	}
	return owner, known
}

// readable are the specs in a folder without those that are wrong: whoever serves
// their models will complain.
func readable(folder string) (specs []*prep.Spec) {
	names, _ := Folders(folder) // none, of what cannot be read
	for _, name := range names {
		if read, err := readSpecs(folder, []string{name}); err == nil {
			specs = append(specs, read...)
		}
	}
	return specs
}
