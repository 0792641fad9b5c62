package prep

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tileRequest is a request for a real tile with the given JSON as bulk_rna;
// empty for a request without.
func tileRequest(t testing.TB, rna string) *Request {
	t.Helper()
	image, err := os.ReadFile(filepath.Join("..", "tests", "testdata", "tiles", "cmu1_x784_y2688.png"))
	if err != nil {
		t.Fatal(err)
	}
	if rna != "" {
		rna = `,"bulk_rna":` + rna
	}
	r, err := ParseRequest([]byte(fmt.Sprintf(`{"image_data":%q,"slide_name":"S1","x":0,"y":0,"width":224,"height":224,"patch_idx":7%s}`,
		base64.StdEncoding.EncodeToString(image), rna)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// jsonArray writes values as a client does: from float32, in the shortest form.
func jsonArray(values []float32) string {
	text := []byte{'['}
	for i, v := range values {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = strconv.AppendFloat(text, float64(v), 'g', -1, 32)
	}
	return string(append(text, ']'))
}

func count(n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i)
	}
	return values
}

func TestPrepareBulkRNA(t *testing.T) {
	p := NewPreparer(readModel(t, "expression"))
	counts := count(64)
	counts[5], counts[63] = notMeasured, 1234.5
	logs := slices.Clone(counts)
	for i, v := range logs {
		if v != notMeasured {
			logs[i] = float32(math.Log1p(float64(v)))
		}
	}
	spaced := strings.NewReplacer(", ", " ,\n\t", "[", "[ ", "]", "\r]", "-1", "-10e-1").Replace(jsonArray(counts))
	for _, test := range []struct {
		name, rna string
		want      []float32
	}{
		{"counts", jsonArray(counts), logs},
		{"counts again", jsonArray(counts), logs},
		{"counts written otherwise", spaced, logs},
		{"absent", "", make([]float32, 64)},
		{"null", "null", make([]float32, 64)},
		{"zeros", "[" + strings.Repeat("0,", 63) + "0.0]", make([]float32, 64)},
	} {
		t.Run(test.name, func(t *testing.T) {
			// Memory that holds another request's values.
			dirty := p.samples.Get().(*Sample)
			dirty.bulkRNA = bytes.Repeat([]byte{0xa5}, 4*64)
			dirty.Release()
			sample, err := p.Prepare(tileRequest(t, test.rna))
			if err != nil {
				t.Fatal(err)
			}
			defer sample.Release()
			if got := bytesFloat(tensorOf(sample, 1)); !slices.Equal(got, test.want) {
				t.Errorf("%v, not %v", got, test.want)
			}
			if got := tensorOf(sample, 2); !bytes.Equal(got, make([]byte, 8)) {
				t.Errorf("probe groups are %v, not one int64 zero", got)
			}
		})
	}
	if stats := p.RNACacheStats(); stats.Hits != 1 || stats.Misses != 3 || stats.Entries != 3 || stats.Bytes != 3*256 {
		t.Errorf("three texts, one of them twice: %+v", stats)
	}
}

// Bulk RNA must be an array where the model takes it.
func TestBulkRNAMustBeAnArray(t *testing.T) {
	spec, err := ReadSpec(filepath.Join("testdata", "models", "expression", "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPreparer(spec)
	for _, rna := range []string{"7", `"x"`, "{}", "true"} {
		var refused *Error
		if _, err := p.Prepare(tileRequest(t, rna)); !errors.As(err, &refused) || refused.Code != InvalidRNA ||
			refused.Detail != "must be an array of numbers or null" {
			t.Errorf("%s: %v", rna, err)
		}
	}
}

// A model without an RNA input takes no notice of the field.
func TestBulkRNAIgnored(t *testing.T) {
	spec, err := ReadSpec(filepath.Join("..", "model_repository", "h1", "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPreparer(spec)
	for _, rna := range []string{"[1]", `["x"]`, "[-7]", "null", "7", `"x"`, "{}"} {
		sample, err := p.Prepare(tileRequest(t, rna))
		if err != nil {
			t.Errorf("%s: %v", rna, err)
			continue
		}
		sample.Release()
	}
	if stats := p.RNACacheStats(); stats != (CacheStats{}) {
		t.Errorf("a cache that is never used: %+v", stats)
	}
}

func TestPrepareRefusesBulkRNA(t *testing.T) {
	spec := readModel(t, "expression")
	ratios := *spec
	ratios.Inputs = slices.Clone(spec.Inputs)
	ratios.Inputs[1].Domain = AnyValue
	vector := func(index int, value string) string {
		values := strings.Split(strings.Repeat("1 ", 63)+"1", " ")
		values[index] = value
		return "[" + strings.Join(values, ",") + "]"
	}
	long := "1" + strings.Repeat("0", 60)
	for _, test := range []struct {
		spec      *Spec
		rna, want string // want is empty for a vector that is taken
	}{
		{spec, "[]", "bulk_rna: holds 0 values; expression takes 64, one for each of its input genes"},
		{spec, "[ ]", "holds 0 values"},
		{spec, jsonArray(count(63)), "holds 63 values; expression takes 64,"},
		{spec, jsonArray(count(65)), "holds 65 values; expression takes 64,"},
		{spec, vector(0, `"1"`), "the value at index 0 is not a number"},
		{spec, vector(3, `null`), "the value at index 3 is not a number"},
		{spec, vector(9, `true`), "the value at index 9 is not a number"},
		{spec, vector(63, `[1]`), "the value at index 63 is not a number"},
		{spec, vector(1, `{"a":[1,2]}`), "the value at index 1 is not a number"},
		{spec, vector(2, "-2"), "the value at index 2, -2, is negative; expression takes counts, and -1 for a gene that was not measured"},
		{spec, vector(2, "-1.001"), "the value at index 2, -1.001, is negative"},
		{spec, vector(2, "-1e-30"), "the value at index 2, -1e-30, is negative"},
		{spec, vector(2, "-1e-60"), ""}, // zero in float32
		{spec, vector(2, "-1.0000000001"), ""},
		{spec, vector(2, "-0.0"), ""},
		{spec, vector(4, "1e39"), "the value at index 4, 1e39, is not finite in 32-bit floating point"},
		{spec, vector(4, long), "the value at index 4, " + long[:40] + "..., is not finite"},
		{spec, vector(4, "3.4028235e38"), ""},
		{&ratios, vector(4, "-1e39"), "the value at index 4, -1e39, is not finite"},
		{&ratios, vector(4, "-0.5"), ""},
		{&ratios, vector(4, "-7"), "the value at index 4 becomes NaN by what expression does to it: log1p"},
	} {
		_, err := NewPreparer(test.spec).Prepare(tileRequest(t, test.rna))
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", test.rna, err)
			}
			continue
		}
		var refused *Error
		if !errors.As(err, &refused) || refused.Code != InvalidRNA {
			t.Errorf("%s: %v, not %s", test.rna, err, InvalidRNA)
			continue
		}
		if text := err.Error(); !strings.Contains(text, test.want) || !strings.HasPrefix(text, "bulk_rna: ") ||
			!strings.HasSuffix(text, `(slide_name "S1", patch_idx 7)`) {
			t.Errorf("%s: %q does not say %q of the tile", test.rna, text, test.want)
		}
	}
}

// arrayToken is what the scanner makes of a JSON array.
func arrayToken(t testing.TB, text string) token {
	t.Helper()
	s := scanner{data: []byte(text)}
	value, err := s.value(0)
	if err != nil || s.pos != len(text) {
		t.Fatalf("%.40q is not JSON: %v", text, err)
	}
	return value
}

// pipelineModel is a checked spec with the given RNA input.
func pipelineModel(genes int, in Input) *Spec {
	in.Name, in.Source, in.DType = "rna", BulkRNASource, Float32
	spec := &Spec{Name: "pipeline", Inputs: []Input{in}}
	for i := range genes {
		spec.InputGenes = append(spec.InputGenes, strconv.Itoa(i))
	}
	return spec
}

// A pipeline of every transform, in order, is what numpy makes of it.
func TestBulkRNAPipeline(t *testing.T) {
	const genes, kept, rows = 500, 200, 40
	r := rand.New(rand.NewPCG(5, 6))
	indices := r.Perm(genes)[:kept]
	mean, std := make([]float64, kept), make([]float64, kept)
	for i := range mean {
		mean[i], std[i] = r.NormFloat64(), r.Float64()
	}
	std[3] = 0
	factor := 1e4
	spec := pipelineModel(genes, Input{Shape: []int64{kept}, Domain: Counts, Transforms: []Transform{
		{Name: TPM, Factor: &factor}, {Name: Log1p}, {Name: SubsetColumns, Indices: indices}, {Name: ZScore, Mean: mean, Std: std},
	}})
	if err := spec.checkLists(); err != nil {
		t.Fatal(err)
	}
	p := newBulkRNAPreparer(spec, spec.Inputs[0], nil)
	var all, got []float32
	for range rows {
		row := make([]float32, genes)
		for i := range row {
			switch r.IntN(4) {
			case 0:
				row[i] = notMeasured
			case 1:
				row[i] = float32(r.IntN(1000))
			case 2:
				row[i] = float32(math.Exp(r.NormFloat64() * 4))
			}
		}
		tensor, err := p.prepare(arrayToken(t, jsonArray(row)))
		if err != nil {
			t.Fatal(err)
		}
		all, got = append(all, row...), append(got, bytesFloat(tensor)...)
	}
	want := numpyTransforms(t, all, genes, true, map[string]any{"name": "tpm", "factor": factor}, map[string]any{"name": "log1p"},
		map[string]any{"name": "subset_columns", "indices": indices}, map[string]any{"name": "zscore", "mean": mean, "std": std})
	for i := range got {
		if ulps(got[i], want[i]) != 0 {
			t.Fatalf("row %d, value %d: %v, numpy has %v", i/kept, i%kept, got[i], want[i])
		}
	}
}

// An index in an error is that of the value that was sent.
func TestSpoiledIndex(t *testing.T) {
	spec := pipelineModel(5, Input{Shape: []int64{2}, Domain: AnyValue, Transforms: []Transform{
		{Name: SubsetColumns, Indices: []int{4, 2, 0}}, {Name: SubsetColumns, Indices: []int{2, 1}}, {Name: Expm1},
	}})
	p := newBulkRNAPreparer(spec, spec.Inputs[0], newVectorCache(9, 999))
	_, err := p.prepare(arrayToken(t, "[1,1,100,1,1]"))
	if err == nil || err.Detail != "the value at index 2 becomes +Inf by what pipeline does to it: subset_columns, subset_columns, expm1" {
		t.Errorf("%v", err)
	}
	if stats := p.cache.snapshot(); stats.Entries != 0 {
		t.Errorf("a vector that was refused is in the cache: %+v", stats)
	}
	// A column that is not kept may hold what the transforms cannot take.
	if _, err := p.prepare(arrayToken(t, "[1,100,1,1,100]")); err != nil {
		t.Errorf("%v", err)
	}
}

// FuzzRNA holds the parser of arrays against encoding/json and strconv.
func FuzzRNA(f *testing.F) {
	for _, seed := range []string{
		"[1,2,3,4]", "[ 0 , -1 ,\t2.5\n,1e3 ]", "[]", "[1,2,3]", "[1,2,3,4,5]", `[1,"2",3,4]`, "[1,null,3,4]", "[[1],2,3,4]",
		"[1,2,3,-2]", "[1,2,3,1e39]", "[16777217,33554434,1.000000059604644775390625,-0]", "[1e-46,1e-45,9999999999999999999,0.1]",
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, text string, counts bool) {
		s := scanner{data: []byte(text)}
		value, err := s.value(0)
		if err != nil || value.kind != arrayKind {
			return
		}
		domain := AnyValue
		if counts {
			domain = Counts
		}
		spec := pipelineModel(4, Input{Shape: []int64{4}, Domain: domain})
		got, refused := newBulkRNAPreparer(spec, spec.Inputs[0], newVectorCache(1, 99)).prepare(value)
		want, ok := referenceVector(t, value.raw, domain)
		if ok != (refused == nil) {
			t.Fatalf("%q: taken %v, by encoding/json and strconv %v: %v", text, refused == nil, ok, refused)
		}
		if ok && !bytes.Equal(got, floatBytes(want)) {
			t.Fatalf("%q: %v, strconv has %v", text, bytesFloat(got), want)
		}
	})
}

func referenceVector(t *testing.T, array []byte, domain Domain) (values []float32, ok bool) {
	var elements []json.RawMessage
	if err := json.Unmarshal(array, &elements); err != nil {
		t.Fatalf("%q: %v", array, err)
	}
	for _, element := range elements {
		var number json.Number
		if element[0] == '"' || json.Unmarshal(element, &number) != nil || number == "" {
			return nil, false
		}
		v, err := strconv.ParseFloat(string(number), 32)
		if err != nil || domain == Counts && v < 0 && v != -1 {
			return nil, false
		}
		values = append(values, float32(v))
	}
	return values, len(values) == 4
}
