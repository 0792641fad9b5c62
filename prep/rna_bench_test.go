package prep

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// The published model for spatial gene expression takes 19,374 genes and
// predicts 6,002.
const (
	benchGenes       = 19374
	benchPredictions = 6002
)

// transcripts is a row like a slide's: a third zeros, the rest log-normal, with
// at most two decimals; some 100 KB of JSON.
func transcripts() []float32 {
	r := rand.New(rand.NewPCG(1, 9))
	row := make([]float32, benchGenes)
	for i := range row {
		if r.IntN(3) > 0 {
			row[i] = float32(math.Round(math.Exp(r.NormFloat64()*2+1)*100) / 100)
		}
	}
	return row
}

// wide is a row as long in JSON as is met: every number with 7 to 9 digits.
func wide() []float32 {
	r := rand.New(rand.NewPCG(1, 9))
	row := make([]float32, benchGenes)
	for i := range row {
		row[i] = float32(math.Exp(r.NormFloat64()*2 + 1))
	}
	return row
}

func benchPreparer(cache *vectorCache, transforms ...Transform) *bulkRNAPreparer {
	spec := pipelineModel(benchGenes, Input{Shape: []int64{benchGenes}, Domain: Counts, Transforms: transforms})
	return newBulkRNAPreparer(spec, spec.Inputs[0], cache)
}

func BenchmarkBulkRNA(b *testing.B) {
	for _, text := range []struct {
		name string
		row  []float32
	}{{"short", transcripts()}, {"wide", wide()}} {
		array := arrayToken(b, jsonArray(text.row))
		run := func(name string, body func() bool) {
			b.Run(text.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(array.raw)))
				for b.Loop() {
					if !body() {
						b.Fatal("failed")
					}
				}
			})
		}
		run("scan", func() bool {
			s := scanner{data: array.raw}
			_, err := s.value(0)
			return err == nil
		})
		plain := benchPreparer(nil)
		row := make([]float32, benchGenes)
		run("parse", func() bool { return plain.parse(row, array.raw) == nil })
		for _, t := range []Transform{{Name: Log1p}, {Name: TPM}} {
			run(string(t.Name), func() bool {
				copy(row, text.row)
				return len(t.apply(row)) == benchGenes
			})
		}
		missed := benchPreparer(nil, Transform{Name: Log1p})
		run("uncached", func() bool {
			_, err := missed.prepare(array)
			return err == nil
		})
		cached := benchPreparer(newVectorCache(10, 1<<20), Transform{Name: Log1p})
		run("cached", func() bool {
			_, err := cached.prepare(array)
			return err == nil
		})
		run("key", func() bool { return cached.cache.key(array.raw) != textKey{} })
	}
}

func BenchmarkParseFloat32(b *testing.B) {
	for _, text := range []struct {
		name string
		row  []float32
	}{{"short", transcripts()}, {"wide", wide()}} {
		numbers := strings.Split(strings.Trim(jsonArray(text.row), "[]"), ", ")
		tokens := make([][]byte, len(numbers))
		for i, number := range numbers {
			tokens[i] = []byte(number)
		}
		var sum float32
		b.Run(text.name+"/ours", func(b *testing.B) {
			for b.Loop() {
				for _, number := range tokens {
					v, _ := parseFloat32(number)
					sum += v
				}
			}
		})
		b.Run(text.name+"/strconv", func(b *testing.B) {
			for b.Loop() {
				for _, number := range tokens {
					v, _ := strconv.ParseFloat(string(number), 32)
					sum += float32(v)
				}
			}
		})
	}
}

func BenchmarkOutput(b *testing.B) {
	expression, segmentation := readModel(b, "expression"), readModel(b, "segmentation")
	predictions, _ := expression.Output(PredictionRole)
	predictions.Shape = []int64{benchPredictions}
	mask, _ := segmentation.Output(PredictionRole)
	r := rand.New(rand.NewPCG(1, 1))
	random := func(n int) []byte {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(r.NormFloat64() * 2)
		}
		return floatBytes(values)
	}
	for _, bench := range []struct {
		name   string
		output Output
		data   []byte
	}{{"predictions", predictions, random(benchPredictions)}, {"mask", mask, random(512 * 512)}} {
		work := make([]byte, len(bench.data))
		b.Run(bench.name+"/transform", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				copy(work, bench.data)
				if err := bench.output.Transform(work); err != nil {
					b.Fatal(err)
				}
			}
		})
		text := make([]byte, 0, 4*len(work))
		b.Run(bench.name+"/json", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bench.output.AppendJSON(text, work); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
