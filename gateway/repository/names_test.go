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
	if _, err := Names(broken, []string{"alias"}); err == nil || !strings.Contains(err.Error(), "there are: m") {
		t.Errorf("beside a spec that cannot be read: %v", err)
	}
}
