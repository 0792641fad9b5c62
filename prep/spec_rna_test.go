package prep

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func readModel(t testing.TB, name string) *Spec {
	t.Helper()
	spec, err := ReadSpec(filepath.Join("testdata", "models", name, "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestReadSpecWithBulkRNA(t *testing.T) {
	spec := readModel(t, "expression")
	if n := len(spec.InputGenes); n != 64 || spec.InputGenes[0] != "ENSG00000100000" || spec.InputGenes[63] != "ENSG00000102331" {
		t.Errorf("%d input genes, from %v", n, spec.InputGenes)
	}
	if n := len(spec.OutputGenes); n != 40 || spec.OutputGenes[39] != "ENSG00000701443" {
		t.Errorf("%d output genes, from %v", n, spec.OutputGenes)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"domain":"counts","transforms":[{"name":"log1p"}]`,
		`"transforms":[{"name":"expm1"},{"name":"nonfinite_to_zero"},{"name":"round"}]`,
		`"input_genes_file":"input_gene_set.csv"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if strings.Contains(string(text), "ENSG") {
		t.Error("the genes are in the configuration and again in the metadata")
	}
}

// Every list beside a spec, read and in the right place.
func TestReadSpecLists(t *testing.T) {
	folder := editedModel(t, "expression", strings.NewReplacer(
		"shape: [64]", "shape: [2]", "- name: log1p", strings.Join([]string{
			"- {name: tpm, factor: 1e4}", "- {name: zscore, mean_file: mean.csv, std_file: std.csv}",
			"- {name: subset_columns, indices_file: columns.csv}", "- {name: zscore, mean: [1, 2], std: [3, 0]}"}, "\n      ")),
		map[string]string{
			"input_gene_set.csv": "gene\r\nA\r\n\"B,b\"\r\nC\r\n",
			"mean.csv":           "mean\n1\n-2.5e-1\n3",
			"std.csv":            "std\n0\n1\n2\n",
			"columns.csv":        "column\n2\n0\n",
		})
	spec, err := ReadSpec(filepath.Join(folder, "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal([]any{spec.InputGenes, spec.Inputs[1].Transforms[1].Mean, spec.Inputs[1].Transforms[1].Std,
		spec.Inputs[1].Transforms[2].Indices, spec.Inputs[1].Transforms[3].Std, spec.Inputs[1].Transforms[0].Factor})
	if err != nil {
		t.Fatal(err)
	}
	if want := `[["A","B,b","C"],[1,-0.25,3],[0,1,2],[2,0],[3,0],10000]`; string(got) != want {
		t.Errorf("read %s, not %s", got, want)
	}
}

// editedModel copies a model's folder, edits the text of its spec and adds files.
func editedModel(t *testing.T, name string, edit *strings.Replacer, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(filepath.Join("testdata", "models", name))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "spec.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edited := edit.Replace(string(text))
	if edited == string(text) {
		t.Fatal("the edit changes nothing")
	}
	files["spec.yaml"] = edited
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestReadSpecRefusesBulkRNA(t *testing.T) {
	const (
		transform = "- name: log1p"
		expm1Step = "- name: expm1"
	)
	for _, test := range []struct {
		name     string
		old, new string
		files    map[string]string
		want     string
	}{
		{name: "source", old: "source: constant\n    value: 0", new: "source: probe_group",
			want: `inputs[2].source: "probe_group" must be tile, bulk_rna or constant`},
		{name: "tile as int64", old: "source: tile\n    dtype: float32", new: "source: tile\n    dtype: int64",
			want: `inputs[0].dtype: "int64" must be float32 or float16`},
		{name: "RNA as float16", old: "dtype: float32\n    shape: [64]", new: "dtype: float16\n    shape: [64]",
			want: `inputs[1].dtype: "float16" must be float32`},
		{name: "RNA in two dimensions", old: "shape: [64]", new: "shape: [8, 8]", want: "inputs[1].shape: [8 8] must be one size, the number of genes"},
		{name: "no domain", old: "    domain: counts\n", want: `inputs[1].domain: "" must be counts or any`},
		{name: "unknown domain", old: "domain: counts", new: "domain: tpm", want: `inputs[1].domain: "tpm" must be counts or any`},
		{name: "domain of a tile", old: "source: tile", new: "source: tile\n    domain: any", want: "inputs[0].domain: belongs to an input with source bulk_rna alone"},
		{name: "transform of a constant", old: "shape: [1]", new: "shape: [1]\n    transforms: [{name: log1p}]",
			want: "inputs[2].transforms: belong to an input with source bulk_rna alone"},
		{name: "two RNA inputs", old: "source: constant\n    value: 0\n    dtype: int64", new: "source: bulk_rna\n    domain: any\n    dtype: float32",
			want: "inputs: must hold at most one with source bulk_rna"},
		{name: "constant without a value", old: "    value: 0\n", want: "inputs[2].value: missing; a constant needs one"},
		{name: "value of a tile", old: "source: tile", new: "source: tile\n    value: 0", want: "inputs[0].value: belongs to an input with source constant alone"},
		{name: "value that is no integer", old: "value: 0", new: "value: 0.5", want: "inputs[2].value: must be a number that int64 holds"},
		{name: "value with gaps around it", old: "value: 0", new: "value: 1e16", want: "inputs[2].value: must be a number that int64 holds"},
		{name: "value that is infinite", old: "value: 0\n    dtype: int64", new: "value: .inf\n    dtype: float32", want: "inputs[2].value: must be a number that float32 holds"},
		{name: "value that is no number", old: "value: 0\n    dtype: int64", new: "value: .nan\n    dtype: float16", want: "inputs[2].value: must be a number that float16 holds"},
		{name: "value above float16", old: "value: 0\n    dtype: int64", new: "value: 65520\n    dtype: float16", want: "inputs[2].value: must be a number that float16 holds"},
		{name: "unknown transform", old: transform, new: "- name: log2", want: `inputs[1].transforms[0].name: "log2" must be one of log1p, expm1, tpm, zscore, subset_columns`},
		{name: "output's transform on the way in", old: transform, new: "- name: mask", want: `inputs[1].transforms[0].name: "mask" must be one of log1p`},
		{name: "input's transform on the way out", old: expm1Step, new: "- name: tpm",
			want: `outputs[0].transforms[0].name: "tpm" must be one of expm1, nonfinite_to_zero, round, mask`},
		{name: "mask not last", old: expm1Step, new: "- name: mask", want: "outputs[0].transforms[0]: mask must be the last"},
		{name: "unknown field", old: transform, new: transform + "\n        base: 2", want: "inputs[1].transforms[0].base: unknown field"},
		{name: "no name", old: transform, new: "- factor: 2", want: "inputs[1].transforms[0].name: missing"},
		{name: "factor of another", old: transform, new: transform + "\n        factor: 2", want: "inputs[1].transforms[0].factor: belongs to tpm alone"},
		{name: "factor zero", old: transform, new: "- {name: tpm, factor: 0}", want: "inputs[1].transforms[0].factor: must be above zero and finite"},
		{name: "factor infinite", old: transform, new: "- {name: tpm, factor: .inf}", want: "inputs[1].transforms[0].factor: must be above zero and finite"},
		{name: "zscore without std", old: transform, new: "- {name: zscore, mean: [1]}", want: "inputs[1].transforms[0].std: missing; zscore needs std or std_file"},
		{name: "mean twice", old: transform, new: "- {name: zscore, mean: [1], mean_file: m.csv, std: [1]}",
			want: "inputs[1].transforms[0].mean: give either inputs[1].transforms[0].mean or inputs[1].transforms[0].mean_file"},
		{name: "short mean", old: transform, new: "- {name: zscore, mean: [1], std: [1]}", want: "inputs[1].transforms[0].mean: holds 1 values for a row of 64"},
		{name: "negative std", old: transform, new: "- {name: zscore, mean: [1], std: [-1]}", want: "inputs[1].transforms[0].std: must be finite and not negative"},
		{name: "mean not a number", old: transform, new: "- {name: zscore, mean: [.nan], std: [1]}", want: "inputs[1].transforms[0].mean: must be finite"},
		{name: "subset without indices", old: transform, new: "- name: subset_columns",
			want: "inputs[1].transforms[0].indices: missing; subset_columns needs indices or indices_file"},
		{name: "column out of range", old: transform, new: "- {name: subset_columns, indices: [0, 64]}",
			want: "inputs[1].transforms[0].indices: 64, number 1 of them, must be from 0 to 63 and listed once"},
		{name: "column below zero", old: transform, new: "- {name: subset_columns, indices: [-1]}", want: "inputs[1].transforms[0].indices: -1, number 0 of them"},
		{name: "column twice", old: transform, new: "- {name: subset_columns, indices: [5, 3, 5]}", want: "5, number 2 of them, must be from 0 to 63 and listed once"},
		{name: "subset of another size", old: transform, new: "- {name: subset_columns, indices: [5, 3]}",
			want: "inputs[1].shape: [64] is not what 64 input genes become: 2 values"},
		{name: "subset of the unknown", old: "input_genes_file: input_gene_set.csv\n", new: "", files: map[string]string{},
			want: "inputs[1].transforms[0]: subset_columns needs input_genes or input_genes_file"},
		{name: "fewer genes than values", old: "input_genes_file: input_gene_set.csv", new: "input_genes: [A, B]",
			want: "inputs[1].shape: [64] is not what 2 input genes become: 2 values"},
		{name: "fewer output genes", old: "output_genes_file: output_gene_set.csv", new: "output_genes: [A, B]",
			want: "output_genes: 2 genes for the 40 values of the prediction"},
		{name: "gene twice", old: "output_genes_file: output_gene_set.csv", new: "output_genes: [A, B, A]", want: `output_genes: "A" is both number 0 and number 2`},
		{name: "gene without a name", old: "output_genes_file: output_gene_set.csv", new: `output_genes: [A, ""]`, want: "output_genes: must not hold an empty name"},
		{name: "file outside", old: "input_gene_set.csv", new: "../genes.csv", want: `input_genes_file: "../genes.csv" must be a file in the spec's folder`},
		{name: "no such file", old: "input_gene_set.csv", new: "genes.csv", want: "input_genes_file: stat genes.csv"},
		{name: "two columns", old: transform, new: "- {name: zscore, mean_file: m.csv, std: [1]}", files: map[string]string{"m.csv": "m,n\n1,2\n"},
			want: "inputs[1].transforms[0].mean_file: m.csv: record on line 1: wrong number of fields"},
		{name: "not a number in a file", old: transform, new: "- {name: zscore, mean_file: m.csv, std: [1]}", files: map[string]string{"m.csv": "m\n1\nx\n"},
			want: `inputs[1].transforms[0].mean_file: m.csv: line 3: strconv.ParseFloat: parsing "x": invalid syntax`},
		{name: "empty file", old: "input_gene_set.csv", new: "g.csv", files: map[string]string{"g.csv": ""}, want: "input_genes_file: g.csv: empty; a header is expected"},
		{name: "only a header", old: "input_gene_set.csv", new: "g.csv", files: map[string]string{"g.csv": "gene\n"}, want: "input_genes_file: g.csv: holds a header and no values"},
	} {
		t.Run(test.name, func(t *testing.T) {
			replace := []string{test.old, test.new}
			if test.name == "subset of the unknown" {
				replace = append(replace, transform, "- {name: subset_columns, indices: [1]}")
			}
			if test.files == nil {
				test.files = map[string]string{}
			}
			folder := editedModel(t, "expression", strings.NewReplacer(replace...), test.files)
			path := filepath.Join(folder, "spec.yaml")
			_, err := ReadSpec(path)
			if err == nil {
				t.Fatal("taken")
			}
			if !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q does not say %q of %s", err, test.want, path)
			}
		})
	}
}

func TestReadSpecRefusesGenesWithoutUse(t *testing.T) {
	folder := editedModel(t, "segmentation", strings.NewReplacer("modes: [prediction]", "modes: [prediction]\ninput_genes: [A]"), map[string]string{})
	_, err := ReadSpec(filepath.Join(folder, "spec.yaml"))
	if err == nil || !strings.Contains(err.Error(), "input_genes: needs an input with source bulk_rna") {
		t.Errorf("input genes of a model without bulk RNA: %v", err)
	}
}
