package prep

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

var inf = float32(math.Inf(1))

func floatBytes(values []float32) []byte {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}

func bytesFloat(data []byte) []float32 {
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values
}

// numpyTransforms is what numpy makes of rows: with double, each step in float64
// and rounded once, else in float32 throughout.
func numpyTransforms(t *testing.T, values []float32, columns int, double bool, pipeline ...map[string]any) []float32 {
	t.Helper()
	python, script := filepath.Join("..", "build", "tools", "bin", "python"), filepath.Join("..", "tests", "reference", "transforms.py")
	steps, err := json.Marshal(pipeline)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{script, string(steps), strconv.Itoa(columns)}
	if !double {
		args = append(args, "--float32")
	}
	command := exec.CommandContext(t.Context(), python, args...)
	command.Stdin = bytes.NewReader(floatBytes(values))
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		t.Fatalf("numpy, the reference, cannot be asked; deploy/setup installs it: %v\n%s", err, complaint.Bytes())
	}
	return bytesFloat(out)
}

// ulps is the number of float32 values from a to b; any two NaNs are the same.
func ulps(a, b float32) int64 {
	if a != a && b != b {
		return 0
	}
	rank := func(v float32) int64 {
		n := int64(math.Float32bits(v))
		if n&(1<<31) != 0 {
			return -(n &^ (1 << 31))
		}
		return n
	}
	d := rank(a) - rank(b)
	return max(d, -d)
}

// edges are values at which a transform might go wrong.
func edges() []float32 {
	values := []float32{0, float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32, 0x1p-126, math.MaxFloat32, 88.72283, 88.72284, 1e-8, 0x1p-24}
	for _, v := range slices.Clone(values) {
		values = append(values, -v, math.Nextafter32(v, inf), math.Nextafter32(v, -inf))
	}
	for e := -30; e <= 30; e++ {
		v := float32(math.Ldexp(1, e))
		values = append(values, v, math.Nextafter32(v, inf), math.Nextafter32(v, 0), -v)
	}
	for v := float32(0); v < 4096; v++ {
		values = append(values, v, v+0.5)
	}
	return values
}

// spread fills up to n values: edges, then random ones of every size up to most.
func spread(n int, most float64, negative bool) []float32 {
	r := rand.New(rand.NewPCG(4, uint64(n)))
	values := edges()
	for len(values) < n {
		v := float32(math.Exp(r.Float64()*(math.Log(most)+20) - 20))
		if negative && r.IntN(2) == 0 {
			v = -v
		}
		values = append(values, v)
	}
	values = values[:n]
	if !negative {
		for i, v := range values {
			values[i] = max(v, -v)
		}
	}
	r.Shuffle(n, func(i, j int) { values[i], values[j] = values[j], values[i] })
	return values
}

func TestTransformsAreNumpys(t *testing.T) {
	const n, columns = 400_000, 4000
	counts := spread(n, 1e6, false)
	for i := 0; i < n; i += 17 {
		counts[i] = notMeasured
	}
	for i := range columns { // one row of nothing but zeros and -1
		counts[i] = min(counts[i], 0)
	}
	for i, v := range counts {
		if v > 1e30 { // in float32 the reference's own total would be infinite
			counts[i] = 7
		}
	}
	ratios := spread(n, 80, true)
	r := rand.New(rand.NewPCG(1, 2))
	mean, std := make([]float64, columns), make([]float64, columns)
	for i := range mean {
		mean[i], std[i] = r.NormFloat64()*3, max(0, r.NormFloat64())
	}
	indices := r.Perm(columns)[:columns/2]
	factor := 1e4
	for _, test := range []struct {
		name      string
		transform Transform
		values    []float32
		step      map[string]any
		// inSingle: numpy's float32 is near; a sum or difference in float32 need not be.
		inSingle bool
	}{
		{"log1p", Transform{Name: Log1p}, counts, map[string]any{"name": "log1p"}, true},
		{"expm1", Transform{Name: Expm1}, ratios, map[string]any{"name": "expm1"}, true},
		{"tpm", Transform{Name: TPM}, counts, map[string]any{"name": "tpm"}, false},
		{"tpm with a factor", Transform{Name: TPM, Factor: &factor}, counts, map[string]any{"name": "tpm", "factor": factor}, false},
		{"zscore", Transform{Name: ZScore, Mean: mean, Std: std}, ratios, map[string]any{"name": "zscore", "mean": mean, "std": std}, false},
		{"subset_columns", Transform{Name: SubsetColumns, Indices: indices}, counts, map[string]any{"name": "subset_columns", "indices": indices}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []float32
			for i := 0; i < n; i += columns {
				got = append(got, test.transform.apply(slices.Clone(test.values[i:i+columns]))...)
			}
			want := numpyTransforms(t, test.values, columns, true, test.step)
			if len(got) != len(want) {
				t.Fatalf("%d values, numpy has %d", len(got), len(want))
			}
			for i := range got {
				if ulps(got[i], want[i]) != 0 {
					t.Fatalf("value %d of a row: %v, numpy has %v", i%columns, got[i], want[i])
				}
			}
			if !test.inSingle {
				return
			}
			// numpy's own float32 is at most one unit off where it uses the C
			// library, but two now and then with AVX-512.
			single := numpyTransforms(t, test.values, columns, false, test.step)
			var apart [3]int
			for i := range got {
				d := ulps(got[i], single[i])
				if d > 2 {
					t.Fatalf("%v, numpy in float32 has %v", got[i], single[i])
				}
				apart[d]++
			}
			if apart[2] > n/100 {
				t.Errorf("%d of %d values are two units in the last place from numpy in float32", apart[2], n)
			}
			t.Logf("of %d values %d are one and %d two units in the last place from numpy in float32", n, apart[1], apart[2])
		})
	}
}

func TestTransformRules(t *testing.T) {
	tenThousand := 1e4
	for _, test := range []struct {
		name      string
		transform Transform
		row, want []float32
	}{
		{"log1p leaves -1", Transform{Name: Log1p}, []float32{-1, 0, 1}, []float32{-1, 0, 0.6931472}},
		{"expm1 knows no -1", Transform{Name: Expm1}, []float32{-1, 0}, []float32{-0.63212055, 0}},
		{"tpm keeps -1 out of the total", Transform{Name: TPM}, []float32{1, -1, 3, 0}, []float32{250000, -1, 750000, 0}},
		{"tpm to another total", Transform{Name: TPM, Factor: &tenThousand}, []float32{1, 3}, []float32{2500, 7500}},
		{"tpm of zeros", Transform{Name: TPM}, []float32{0, 0}, []float32{0, 0}},
		{"tpm of nothing measured", Transform{Name: TPM}, []float32{-1, -1, 0}, []float32{-1, -1, 0}},
		{"tpm of a total that float32 cannot hold", Transform{Name: TPM}, []float32{3e38, 3e38}, []float32{500000, 500000}},
		{"zscore", Transform{Name: ZScore, Mean: []float64{1, 2}, Std: []float64{2, 4}}, []float32{5, -6}, []float32{2, -2}},
		{"zscore floors std", Transform{Name: ZScore, Mean: []float64{1, 1}, Std: []float64{0, 1e-9}}, []float32{2, 1}, []float32{1e8, 0}},
		{"subset in the order listed", Transform{Name: SubsetColumns, Indices: []int{2, 0}}, []float32{5, 6, 7}, []float32{7, 5}},
	} {
		if got := test.transform.apply(slices.Clone(test.row)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v becomes %v, not %v", test.name, test.row, got, test.want)
		}
	}
}

// The order of the genes must not show in the total, whatever their sizes.
func TestMeasuredTotal(t *testing.T) {
	for _, test := range []struct {
		row  []float32
		want float64
	}{
		{nil, 0},
		{[]float32{-1, 2, -1, 3}, 5},
		{[]float32{0x1p60, 1, -0x1p60}, 1},
		{[]float32{1, 0x1p60, 1, -0x1p60}, 2},
	} {
		if got := measuredTotal(test.row); got != test.want {
			t.Errorf("total of %v is %v, not %v", test.row, got, test.want)
		}
	}
}
