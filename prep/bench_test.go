package prep

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
)

// benchImage is as long as the PNG of a common tile, 89 KB; the body that
// carries it is 119 KB.
func benchImage(b *testing.B) []byte { return readTile(b, tileFiles(b)[0])[:89_000] }

// The body of a request: checked, its fields found and their values validated.
func BenchmarkParseRequest(b *testing.B) {
	body := tileBody(benchImage(b), "S1", 7)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := ParseRequest(body)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.validate(); err != nil {
			b.Fatal(err)
		}
	}
}

// The same body through the standard library, which copies the image's text and
// does not look at UTF-8.
func BenchmarkParseRequestWithEncodingJSON(b *testing.B) {
	body := tileBody(benchImage(b), "S1", 7)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var request struct {
			ImageData   string    `json:"image_data"`
			BulkRNA     []float32 `json:"bulk_rna"`
			SlideName   string    `json:"slide_name"`
			X           int64     `json:"x"`
			Y           int64     `json:"y"`
			Width       int64     `json:"width"`
			Height      int64     `json:"height"`
			TissueRatio *float64  `json:"tissue_ratio"`
			PatchIdx    int64     `json:"patch_idx"`
			Resolution  *float64  `json:"resolution"`
		}
		if err := json.Unmarshal(body, &request); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeBase64(b *testing.B) {
	for name, change := range map[string]func(text []byte) []byte{
		"plain": func(text []byte) []byte { return text },
		"lines": func(text []byte) []byte { // as MIME writers break them, in JSON
			var out []byte
			for len(text) > 76 {
				out = append(append(out, text[:76]...), `\n`...)
				text = text[76:]
			}
			return append(out, text...)
		},
	} {
		b.Run(name, func(b *testing.B) {
			text := parse(b, tileBody(benchImage(b), "S1", 7)).fields[imageData].inner()
			changed := change(text)
			sent := token{kind: stringKind, escaped: len(changed) > len(text), raw: append(append([]byte(`"`), changed...), '"')}
			dst := make([]byte, 0, len(text))
			b.SetBytes(int64(len(changed)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decodeBase64(dst, sent); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// All of stage 1, from the body to the tensor, on one core: a tile of 114 KB.
func BenchmarkPrepare(b *testing.B) {
	body := tileBody(readTile(b, tileFiles(b)[0]), "S1", 7)
	for _, dtype := range []DType{Float32, Float16} {
		b.Run(string(dtype), func(b *testing.B) {
			spec := testSpec()
			spec.Inputs[0].DType = dtype
			p, tensor := NewPreparer(spec), make([]byte, spec.SentBytes(0))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r, err := ParseRequest(body)
				if err != nil {
					b.Fatal(err)
				}
				sample, err := p.Prepare(r)
				if err != nil {
					b.Fatal(err)
				}
				sample.Write(0, tensor)
				sample.Release()
			}
		})
	}
}

// The numbers of one embedding.
func BenchmarkAppendFloats(b *testing.B) {
	random := rand.New(rand.NewPCG(17, 18))
	values := make([]float32, 1536)
	for i := range values {
		values[i] = float32(random.NormFloat64() * math.Pi)
	}
	raw := appendFloat32s(values...)
	dst := make([]byte, 0, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := AppendFloats(dst, raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendEcho(b *testing.B) {
	r := parse(b, tileBody(benchImage(b), "S1", 7))
	dst := make([]byte, 0, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		r.AppendEcho(dst)
	}
}
