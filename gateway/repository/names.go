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
// Specs that cannot be read have none: whoever serves their models will complain.
func ownerOf(folder, alias string) (owner string, known []string) {
	paths, _ := filepath.Glob(filepath.Join(folder, "*", specName)) // of a folder that is a bad pattern there are none
	for _, path := range paths {
		name := filepath.Base(filepath.Dir(path))
		known = append(known, name)
		text, err := prep.ReadFile(os.DirFS(filepath.Dir(path)), specName)
		if err != nil {
			continue
		}
		if spec, err := prep.ParseSpec(text); err == nil && slices.Contains(spec.Aliases, alias) {
			owner = name
		}
	}
	return owner, known
}
