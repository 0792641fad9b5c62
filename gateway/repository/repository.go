// Package repository makes a Triton model repository of a folder of .pt2
// checkpoints and of the specs that say what to make of them.
//
// A spec names the file of its checkpoint. What the checkpoint says of itself
// goes first where the two may differ: the names of its tensors, which are taken
// by position, and whether it takes float16. Where they must not differ, in
// number, order and shape of the tensors, the model is not built, and neither is
// one whose checkpoint was compiled for another machine. That concerns this
// model alone: the others are built.
package repository

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"histogate/gateway/checkpoint"
	"histogate/prep"
)

// Options say what to build and from what.
type Options struct {
	Specs     string   // folder that holds a folder with a spec.yaml for each model
	Models    []string // to build; when empty, all whose checkpoint is in ModelDir
	ModelDir  string   // folder that holds the checkpoints
	AssetsDir string   // folder that holds, in a folder a model, the lists that its spec names
	Target    Target
	Changes
	Copy bool // copies checkpoints rather than linking to them
}

// Model is what became of one spec.
type Model struct {
	// Spec is the one that holds for the checkpoint; the one in the specs' folder,
	// its lists not read, where there is a problem.
	Spec    *prep.Spec
	Package *checkpoint.Package // nil where it could not be read
	// Problem is why the model was not built, in words for its users: what is
	// wrong, and what to change. It holds no path.
	Problem error
}

// Result is what became of all.
type Result struct {
	Models []Model // in the order of the names
	// LeftOut are the models whose checkpoint is not there; Unknown the .pt2 files
	// that no spec names.
	LeftOut, Unknown []string
}

// Built tells how many models have no problem.
func (r *Result) Built() int {
	n := 0
	for _, m := range r.Models {
		if m.Problem == nil {
			n++
		}
	}
	return n
}

// Holds tells whether a folder has a checkpoint, whether a spec names it or not. A
// folder that is not there has none; one that cannot be read is an error.
func Holds(modelDir string) (bool, error) {
	files, err := os.ReadDir(modelDir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(files, isCheckpoint), err
}

func isCheckpoint(f os.DirEntry) bool { return strings.HasSuffix(f.Name(), ".pt2") }

// AssetsDir is where lists are looked for when nothing else is said.
func AssetsDir(modelDir string) string {
	if beside := filepath.Join(modelDir, "assets"); isThere(modelDir, "assets") {
		return beside
	}
	return "/opt/ml/assets"
}

func isThere(folder, name string) bool {
	_, err := os.Stat(filepath.Join(folder, name))
	return err == nil
}

// Build writes the repository into the folder out, which must be empty or not be
// there. Its error is about all: a folder that cannot be read, a spec that is
// wrong. What is wrong with one checkpoint is in the result.
func Build(out string, o Options) (*Result, error) {
	specs, err := readSpecs(o.Specs, o.Models)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkOwners(specs), checkBeside(out, o.Specs)); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(o.ModelDir)
	if err != nil {
		return nil, fmt.Errorf("the model folder: %w", err)
	}
	if err := makeEmpty(out); err != nil {
		return nil, err
	}
	result := new(Result)
	known := map[string]bool{}
	for _, spec := range specs {
		if len(o.Models) == 0 && (spec.Checkpoint == "" || !isThere(o.ModelDir, spec.Checkpoint)) {
			result.LeftOut = append(result.LeftOut, spec.Name)
			continue
		}
		m, err := build(filepath.Join(out, spec.Name), spec, &o)
		if err != nil {
			return nil, err
		}
		result.Models = append(result.Models, m)
	}
	for _, spec := range readable(o.Specs) { // those that Models leaves out, too
		known[spec.Checkpoint] = true
	}
	for _, f := range files {
		if isCheckpoint(f) && !known[f.Name()] {
			result.Unknown = append(result.Unknown, f.Name())
		}
	}
	return result, nil
}

// checkOwners refuses a checkpoint that two specs name: one of them is hardly meant.
func checkOwners(specs []*prep.Spec) error {
	owners := map[string]string{}
	var mistakes []error
	for _, spec := range specs {
		if owner := owners[spec.Checkpoint]; owner != "" && spec.Checkpoint != "" {
			mistakes = append(mistakes, fmt.Errorf("%s and %s both name the checkpoint %s; name another in the %s of one of them, or none", owner, spec.Name, spec.Checkpoint, specName))
		}
		owners[spec.Checkpoint] = spec.Name
	}
	return errors.Join(mistakes...)
}

// makeEmpty makes a folder, unless it is there and empty.
func makeEmpty(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	there, err := os.ReadDir(folder)
	if err == nil && len(there) > 0 {
		err = fmt.Errorf("%s is not empty; name another folder or remove what is in it", folder)
	}
	return err
}

// readSpecs reads the specs of the models, of all when none is named. All that
// are wrong are reported.
func readSpecs(folder string, names []string) ([]*prep.Spec, error) {
	if len(names) == 0 {
		var err error
		if names, err = Folders(folder); err != nil || names == nil {
			return nil, errors.Join(err, fmt.Errorf("%s holds no folder with a %s", folder, specName))
		}
	}
	specs := make([]*prep.Spec, 0, len(names))
	var mistakes []error
	for _, name := range names {
		path := filepath.Join(folder, name, specName)
		text, err := prep.ReadFile(os.DirFS(filepath.Dir(path)), filepath.Base(path))
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %w", path, err))
			continue
		}
		spec, err := prep.ParseSpec(text)
		switch {
		case err != nil:
			err = fmt.Errorf("%s: %w", path, err)
		case spec.Name != name:
			err = fmt.Errorf("%s: the name in it is %q; it must be the folder's", path, spec.Name)
		default:
			specs = append(specs, spec)
		}
		mistakes = append(mistakes, err)
	}
	return specs, errors.Join(mistakes...)
}

// build makes the folder of one model, or says why it cannot be. An error is a
// failure to write.
func build(folder string, spec *prep.Spec, o *Options) (Model, error) {
	m := Model{Spec: spec}
	var f *fitted
	var lists map[string][]byte
	if m.Package, m.Problem = inspect(spec, o); m.Problem == nil {
		f, m.Problem = fit(spec, m.Package, o)
	}
	if m.Problem == nil {
		lists, m.Problem = readLists(f.spec, filepath.Join(o.AssetsDir, spec.Name))
	}
	if m.Problem != nil {
		return m, nil //nolint:nilerr // what is wrong with one model is a result
	}
	m.Spec = f.spec
	return m, write(folder, filepath.Join(o.ModelDir, spec.Checkpoint), f, lists, o.Copy)
}

// inspect reads a spec's checkpoint and refuses one that is not for this machine.
func inspect(spec *prep.Spec, o *Options) (*checkpoint.Package, error) {
	switch {
	case spec.Checkpoint == "":
		return nil, errors.New("its spec names no checkpoint; add the field checkpoint: FILE.pt2")
	case !isThere(o.ModelDir, spec.Checkpoint):
		return nil, fmt.Errorf("its checkpoint %s is not in the model folder; put it there", spec.Checkpoint)
	}
	return readCheckpoint(o.ModelDir, spec.Checkpoint, o.Target)
}

// readCheckpoint reads a checkpoint and refuses one that is not for the target.
func readCheckpoint(folder, name string, target Target) (*checkpoint.Package, error) {
	p, err := checkpoint.Read(filepath.Join(folder, name))
	if err != nil {
		return nil, fmt.Errorf("its checkpoint cannot be used: %s; copy it anew or export it again", oneLine(err))
	}
	return p, target.check(p)
}

// readLists reads the lists that a spec names and checks them. They belong to
// the checkpoint: those beside the spec may be of a stand-in, so they are not
// fallen back to. It returns the files' contents by name.
func readLists(spec *prep.Spec, folder string) (map[string][]byte, error) {
	contents := map[string][]byte{}
	for _, name := range spec.ListFiles() {
		text, err := prep.ReadFile(os.DirFS(folder), name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s, which its spec names, is in its assets and cannot be read: %w; make it a file that this process may read", name, withoutPath(err))
		}
		if err != nil {
			return nil, fmt.Errorf("%s, which its spec names, is not in its assets; put it into the folder %s of ASSETS_DIR", name, spec.Name)
		}
		contents[name] = text
	}
	if err := spec.ReadLists(func(name string) ([]byte, error) { return contents[name], nil }); err != nil {
		return nil, fmt.Errorf("its assets do not fit its checkpoint: %s", oneLine(err))
	}
	return contents, nil
}

// withoutPath is a file system's error without the path, which is not for callers.
func withoutPath(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// oneLine writes joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// write writes the folder of one model.
func write(folder, source string, f *fitted, lists map[string][]byte, copied bool) error {
	version := filepath.Join(folder, "1")
	if err := os.MkdirAll(version, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{"config.pbtxt": f.config(), "spec.yaml": f.text}
	maps.Copy(files, lists)
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	target := filepath.Join(version, "model.pt2")
	if copied {
		return copyFile(target, source)
	}
	absolute, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	return os.Symlink(absolute, target)
}

func copyFile(target, source string) (err error) {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was only read
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
