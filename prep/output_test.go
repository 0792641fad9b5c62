package prep

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var nan = float32(math.NaN())

func TestOutputTransforms(t *testing.T) {
	expression, segmentation := readModel(t, "expression"), readModel(t, "segmentation")
	predictions, _ := expression.Output(PredictionRole)
	embedding, _ := expression.Output(EmbeddingRole)
	mask, _ := segmentation.Output(PredictionRole)
	for _, test := range []struct {
		name   string
		output Output
		values []float32
		want   string // JSON; an error's text where it begins with "output"
	}{
		// ln(1.5), ln(2.5), ln(3.5) in float32, whose expm1 is half-way in float32 or beside it.
		{"predictions", predictions, []float32{0, 1, -5, 7.5, 0.6931472}, "0,2,-1,1807,1"},
		{"half to even", predictions, []float32{0.4054651, 0.91629076, 1.2527629, 1.5040774}, "0,2,2,4"},
		{"not finite becomes zero", predictions, []float32{nan, inf, -inf, 89}, "0,0,-1,0"},
		{"large", predictions, []float32{88}, "1.6516363e+38"},
		{"embedding", embedding, []float32{-1.5, 0.1}, "-1.5,0.1"},
		{"embedding not finite", embedding, []float32{1, nan}, "output embedding: value 1 is NaN"},
		{"mask", mask, []float32{0, -3, 3, 1e-8, 0x1p-24, 0x1.8p-24, 0x1.800002p-24, 1.2e-7, 1e-6, 1000, -1000, -1e-6}, "0,0,1,0,0,0,1,1,1,1,0,0"},
		{"mask of an odd number", mask, []float32{0x1.8p-24, -1, 0x1.800002p-24}, "0,0,1"},
		{"mask of NaN", mask, []float32{1, 2, nan}, "output logits: value 2 is NaN"},
		{"mask of infinity among others", mask, []float32{1, 2, 3, -inf, nan, 6}, "output logits: value 3 is -Inf"},
		{"mask of infinity", mask, []float32{inf}, "output logits: value 0 is +Inf"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.output.Shape = []int64{int64(len(test.values))}
			data := floatBytes(test.values)
			err := test.output.Transform(data)
			if err != nil {
				if err.Error() != test.want {
					t.Errorf("%q, not %q", err, test.want)
				}
				return
			}
			got, err := test.output.AppendJSON([]byte("["), data)
			if err != nil || string(got) != "["+test.want {
				t.Errorf("%s, not %s; %v", got, test.want, err)
			}
		})
	}
}

func TestOutputOfAnotherSize(t *testing.T) {
	out, _ := readModel(t, "expression").Output(PredictionRole)
	if err := out.Transform(make([]byte, 4*39)); err == nil || err.Error() != "output predictions has 156 bytes, not 160" {
		t.Errorf("%v", err)
	}
}

// Predictions: expm1 in float64, rounded to float32, what is not finite to zero,
// then half to even, as numpy does it.
func TestPredictionsAreNumpys(t *testing.T) {
	const n = 1_000_000
	values := append(spread(n-4, 100, true), nan, inf, -inf, 88.72284)
	// Half of them where rounding is close: whose expm1 is next to k + 1/2.
	r := rand.New(rand.NewPCG(3, 4))
	for i := 0; i < n-4; i += 2 {
		values[i] = float32(math.Log1p(float64(r.IntN(5000)) + 0.5))
	}
	out, _ := readModel(t, "expression").Output(PredictionRole)
	out.Shape = []int64{n}
	data := floatBytes(values)
	if err := out.Transform(data); err != nil {
		t.Fatal(err)
	}
	want := numpyTransforms(t, values, n, true, map[string]any{"name": "expm1"}, map[string]any{"name": "nonfinite_to_zero"}, map[string]any{"name": "round"})
	for i, got := range bytesFloat(data) {
		if math.Float32bits(got) != math.Float32bits(want[i]) {
			t.Fatalf("%v becomes %v, by numpy %v", values[i], got, want[i])
		}
	}
}

// Every float32 near the threshold, and every 9973rd of all others.
func TestMaskIsNumpys(t *testing.T) {
	const limit = 200_000
	const threshold = maskThreshold
	var values []float32
	for bits := uint32(threshold - limit); bits < threshold+limit; bits++ {
		values = append(values, math.Float32frombits(bits), -math.Float32frombits(bits))
	}
	// From the threshold to where numpy's own exp in float32 is right again.
	const wrongTo = 0x34044622
	for bits := uint32(threshold); bits <= wrongTo+limit; bits += 13 {
		values = append(values, math.Float32frombits(bits))
	}
	for bits := uint32(0); bits < 0xff800000; bits += 9973 {
		if v := math.Float32frombits(bits); v == v && !math.IsInf(float64(v), 0) {
			values = append(values, v)
		}
	}
	out, _ := readModel(t, "segmentation").Output(PredictionRole)
	out.Shape = []int64{int64(len(values))}
	data := floatBytes(values)
	if err := out.Transform(data); err != nil {
		t.Fatal(err)
	}
	got := bytesFloat(data)
	rounded := numpyTransforms(t, values, len(values), true, map[string]any{"name": "mask"})
	single := numpyTransforms(t, values, len(values), false, map[string]any{"name": "mask"})
	for i, v := range values {
		if got[i] != rounded[i] {
			t.Fatalf("logit %v (%x): %v, with a correctly rounded exp %v", v, v, got[i], rounded[i])
		}
		if got[i] != single[i] && (v <= 0x1.8p-24 || math.Float32bits(v) > wrongTo) {
			t.Fatalf("logit %v (%x): %v, by numpy in float32 %v", v, v, got[i], single[i])
		}
	}
	if !slices.Contains(got, 1) || !slices.Contains(got, 0) {
		t.Error("one of 0 and 1 never comes")
	}
}

func TestAppendMask(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 512 * 512} {
		values := make([]float32, n)
		var want []string
		for i := range values {
			values[i] = float32(r.IntN(2))
			want = append(want, string("01"[int(values[i])]))
		}
		if got := appendMask([]byte("x"), floatBytes(values)); string(got) != "x"+strings.Join(want, ",") {
			t.Errorf("%d values: %.60s", n, got)
		}
	}
}

// A mask's JSON is what any other output's would be.
func TestOutputJSON(t *testing.T) {
	out, _ := readModel(t, "segmentation").Output(PredictionRole)
	data := make([]byte, 4*512*512)
	r := rand.New(rand.NewPCG(2, 2))
	values := bytesFloat(data)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	data = floatBytes(values)
	if err := out.Transform(data); err != nil {
		t.Fatal(err)
	}
	got, err := out.AppendJSON(nil, data)
	if err != nil {
		t.Fatal(err)
	}
	general, err := AppendFloats(nil, data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, general) || !json.Valid([]byte("["+string(got)+"]")) {
		t.Errorf("%.60s..., not %.60s...", got, general)
	}
}
