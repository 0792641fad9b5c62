package prep

import (
	"math"
	"slices"
	"strings"
)

// Transform is one step of what is done to a row of values: to the bulk RNA on
// its way in, or to an output of the model on its way out. A step takes float32
// values, computes each result in float64 and rounds it once, to float32.
type Transform struct {
	Name TransformName `yaml:"name" json:"name"`
	// Factor is the total that tpm scales a row to; 1e6 when absent.
	Factor *float64 `yaml:"factor,omitempty" json:"factor,omitempty"`
	// Mean and Std are zscore's, one a value of the row. They, like Indices, are
	// given in the spec or in a file as [Spec.InputGenes] may be.
	Mean     []float64 `yaml:"mean,omitempty" json:"mean,omitempty"`
	MeanFile string    `yaml:"mean_file,omitempty" json:"mean_file,omitempty"`
	Std      []float64 `yaml:"std,omitempty" json:"std,omitempty"`
	StdFile  string    `yaml:"std_file,omitempty" json:"std_file,omitempty"`
	// Indices are the columns that subset_columns keeps, counted from 0, in the
	// order in which it gives them.
	Indices     []int  `yaml:"indices,omitempty" json:"indices,omitempty"`
	IndicesFile string `yaml:"indices_file,omitempty" json:"indices_file,omitempty"`
}

// TransformName says what a transform does.
type TransformName string

// The transforms of bulk RNA, v being a value and -1 one that was not measured.
const (
	// Log1p is ln(1 + v); -1 stays -1.
	Log1p TransformName = "log1p"
	// Expm1 is exp(v) - 1. It is a transform of outputs as well.
	Expm1 TransformName = "expm1"
	// TPM scales the row to transcripts per million: v x factor / total, with
	// the total of the measured values. -1 stays -1, zero stays zero.
	TPM TransformName = "tpm"
	// ZScore is (v - mean) / std, with a std of at least 1e-8.
	ZScore TransformName = "zscore"
	// SubsetColumns keeps the columns listed.
	SubsetColumns TransformName = "subset_columns"
)

// The transforms of outputs, beside Expm1.
const (
	// NonFiniteToZero makes zero of NaN and of both infinities.
	NonFiniteToZero TransformName = "nonfinite_to_zero"
	// Round gives the nearest integer, the even one of two.
	Round TransformName = "round"
	// Mask is 1 where the float32 sigmoid of a logit is above 0.5, else 0.
	Mask TransformName = "mask"
)

const (
	notMeasured = -1
	unmeasured  = "-1 for a gene that was not measured" // as errors have it
	perMillion  = 1e6
	smallestStd = 1e-8
)

// check holds the transform's own fields against its name.
func (t *Transform) check(c *checker, field string, allowed ...TransformName) {
	if !slices.Contains(allowed, t.Name) {
		var names []string
		for _, name := range allowed {
			names = append(names, string(name))
		}
		c.require(false, field+".name", "%q must be one of %s", t.Name, strings.Join(names, ", "))
		return
	}
	c.require(t.Factor == nil || t.Name == TPM, field+".factor", "belongs to %s alone", TPM)
	c.require(t.Factor == nil || *t.Factor > 0 && *t.Factor <= math.MaxFloat32, field+".factor", "must be above zero and finite")
	for _, list := range [...]struct {
		name   string
		inline bool
		file   string
		of     TransformName
	}{
		{"mean", t.Mean != nil, t.MeanFile, ZScore},
		{"std", t.Std != nil, t.StdFile, ZScore},
		{"indices", t.Indices != nil, t.IndicesFile, SubsetColumns},
	} {
		at := field + "." + list.name
		given := list.inline || list.file != ""
		c.require(!given || t.Name == list.of, at, "belongs to %s alone", list.of)
		c.require(given || t.Name != list.of, at, "missing; %s needs %s or %s_file", list.of, list.name, list.name)
		c.oneList(at, list.inline, list.file)
	}
}

// checkLists holds the transform's lists against the length of the row that it
// is given, and returns the length of the row that it makes.
func (t *Transform) checkLists(c *checker, field string, length int) int {
	switch t.Name {
	case ZScore:
		c.require(len(t.Mean) == length, field+".mean", "holds %d values for a row of %d", len(t.Mean), length)
		c.require(len(t.Std) == length, field+".std", "holds %d values for a row of %d", len(t.Std), length)
		c.require(!slices.ContainsFunc(t.Mean, nonFinite), field+".mean", "must be finite")
		c.require(!slices.ContainsFunc(t.Std, func(v float64) bool { return nonFinite(v) || v < 0 }),
			field+".std", "must be finite and not negative")
	case SubsetColumns:
		seen := make([]bool, length)
		for i, index := range t.Indices {
			ok := index >= 0 && index < length && !seen[index]
			c.require(ok, field+".indices", "%d, number %d of them, must be from 0 to %d and listed once", index, i, length-1)
			if !ok {
				break
			}
			seen[index] = true
		}
		return len(t.Indices)
	}
	return length
}

func nonFinite(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// apply does the step in place where it can, and returns the row that it made.
// Values may come out that are not finite.
func (t *Transform) apply(row []float32) []float32 {
	switch t.Name {
	case Log1p:
		for i, v := range row {
			if v != notMeasured {
				row[i] = float32(math.Log1p(float64(v)))
			}
		}
	case Expm1:
		for i, v := range row {
			row[i] = expm1(v)
		}
	case TPM:
		t.tpm(row)
	case ZScore:
		for i, v := range row {
			row[i] = float32((float64(v) - t.Mean[i]) / max(t.Std[i], smallestStd))
		}
	case SubsetColumns:
		kept := make([]float32, len(t.Indices))
		for i, index := range t.Indices {
			kept[i] = row[index]
		}
		return kept
	}
	return row
}

func expm1(v float32) float32 { return float32(math.Expm1(float64(v))) }

func (t *Transform) tpm(row []float32) {
	factor := perMillion
	if t.Factor != nil {
		factor = *t.Factor
	}
	total := measuredTotal(row)
	for i, v := range row {
		if v != notMeasured && v != 0 {
			row[i] = float32(float64(v) * factor / total)
		}
	}
}

// measuredTotal is the sum of the measured values with Neumaier's correction
// (Zeitschrift für Angewandte Mathematik und Mechanik 54, 1974): what each
// addition loses is summed apart, so that the order of the genes does not show.
func measuredTotal(row []float32) float64 {
	var sum, lost float64
	for _, value := range row {
		if value == notMeasured {
			continue
		}
		v := float64(value)
		next := sum + v
		if math.Abs(sum) >= math.Abs(v) {
			lost += (sum - next) + v
		} else {
			lost += (v - next) + sum
		}
		sum = next
	}
	return sum + lost
}
