package prep

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The reference of a spec's fields lists every field, whether it is needed, and every
// word that one may hold.
func TestSpecReferenceIsComplete(t *testing.T) {
	text, err := os.ReadFile("../model_repository/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## The fields of spec.yaml\n")
	section, _, _ = strings.Cut(section, "\n## ")
	needed, about := map[string]string{}, map[string]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		for _, field := range regexp.MustCompile("`[^`]+`").FindAllString(cells[1], -1) {
			field = strings.Trim(field, "`")
			needed[field], about[field] = strings.TrimSpace(cells[2]), cells[3]
		}
	}
	fields := map[string]string{}
	describeFields("", reflect.TypeFor[Spec](), fields)
	for _, name := range []string{"factor", "mean", "std", "indices"} {
		delete(fields, "outputs[].transforms[]."+name) // no transform of outputs has one
	}
	for field, want := range fields {
		if got := needed[field]; got != want {
			t.Errorf("%s: needed is %q, not %q", field, got, want)
		}
		delete(needed, field)
	}
	for field := range needed {
		t.Errorf("%s is no field", field)
	}
	for field, words := range map[string][]string{
		"inputs[].source": {string(TileSource), string(BulkRNASource), string(ConstantSource)},
		"inputs[].dtype":  {string(Float32), string(Float16), string(Int64)},
		"inputs[].domain": {string(Counts), string(AnyValue)},
		"tile_transport":  {string(FloatTransport), string(UInt8Transport)},
		"outputs[].role":  {string(PredictionRole), string(EmbeddingRole)},
		"modes":           {string(Prediction), string(Embedding), string(PredictionWithEmbedding)},
		"inputs[].transforms[].name": {
			string(Log1p), string(Expm1), string(TPM), string(ZScore), string(SubsetColumns), string(NonFiniteToZero), string(Round), string(Mask),
		},
	} {
		for _, word := range words {
			if !strings.Contains(about[field], "`"+word+"`") {
				t.Errorf("%s does not tell of %s", field, word)
			}
		}
	}
	for _, file := range []string{"input_genes_file", "output_genes_file", "mean_file", "std_file", "indices_file"} {
		if !strings.Contains(section, "`"+file+"`") {
			t.Errorf("%s is not told of", file)
		}
	}
}

// describeFields notes by its path whether each field of a spec is needed. The files
// that lists may lie in are left out.
func describeFields(path string, t reflect.Type, fields map[string]string) {
	for slices.Contains([]reflect.Kind{reflect.Slice, reflect.Array, reflect.Pointer}, t.Kind()) {
		if t = t.Elem(); t.Kind() == reflect.Struct {
			path += "[]"
		}
	}
	if t.Kind() != reflect.Struct {
		return
	}
	if path != "" {
		path += "."
	}
	for f := range t.Fields() {
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if strings.HasSuffix(key, "_file") {
			continue
		}
		fields[path+key] = "yes"
		if options == "omitempty" {
			fields[path+key] = "no"
		}
		describeFields(path+key, f.Type, fields)
	}
}
