package repository

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A model can be named by an alias wherever models are named, and is meant once.
func TestNames(t *testing.T) {
	specs := filepath.Join("..", "..", "tests", "pt2", "testdata", "specs")
	for _, test := range []struct {
		given, want []string
	}{
		{nil, nil},
		{[]string{"m-optimus-stx"}, []string{"m-optimus"}},
		{[]string{"m-optimus", "h1", "m-optimus-stx"}, []string{"m-optimus", "h1"}},
	} {
		if names, err := Names(specs, test.given); err != nil || !slices.Equal(names, test.want) {
			t.Errorf("%v are %v, %v; want %v", test.given, names, err, test.want)
		}
	}
	_, err := Names(specs, []string{"h1", "m-optima", "nope"})
	for _, want := range []string{`"m-optima" is no model of MODEL_REPOSITORY=`, `"nope"`, "h1, m-optimus"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	broken := t.TempDir()
	if err := os.Mkdir(filepath.Join(broken, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "m", specName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Names(broken, []string{"alias"}); err == nil || !strings.Contains(err.Error(), "there are: ") {
		t.Errorf("beside a spec that cannot be read: %v", err)
	}
}

// Every folder is a model's, whatever the folder that holds them is called, and one
// without a spec is told of.
func TestFolders(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "models[v2]")
	if err := os.CopyFS(folder, os.DirFS(filepath.Join("..", "..", "tests", "pt2", "testdata", "specs"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".git", "lost+found", "no-spec"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("h1", filepath.Join(folder, "linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "a file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := Folders(folder); err != nil || !slices.Equal(names, []string{"h1", "linked", "m-optimus", "no-spec", "tissue-seg"}) {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := Folders("/nonexistent"); err == nil {
		t.Error("a folder that is not there has no models, and that is no error")
	}
	for name, err := range map[string]error{
		"build":   func() error { _, err := Build(t.TempDir(), Options{Specs: folder, ModelDir: t.TempDir()}); return err }(),
		"convert": Convert(t.TempDir(), folder, nil, Changes{MaxBatchSize: 3}),
	} {
		if err == nil || !strings.Contains(err.Error(), filepath.Join("no-spec", specName)) || !strings.Contains(err.Error(), "the name in it is \"h1\"") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := Names(folder, []string{"m-optimus-stx"}); err != nil || !slices.Equal(names, []string{"m-optimus"}) {
		t.Errorf("by an alias: %q, %v", names, err)
	}
}
