package prep

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// testSpec is a model that takes a 224x224 tile of tissue.
func testSpec() *Spec {
	return &Spec{
		Name: "m",
		Tile: Tile{
			Width: 224, Height: 224, MicronsPerPixel: 0.5,
			Mean: [3]float64{0.707223, 0.578729, 0.703617}, Std: [3]float64{0.211883, 0.230117, 0.177517},
		},
		Inputs:   []Input{{Name: "tile", Source: TileSource, DType: Float32, Shape: []int64{3, 224, 224}}},
		Outputs:  []Output{{Name: "embedding", Role: EmbeddingRole, DType: Float32, Shape: []int64{1536}}},
		Modes:    []Mode{Embedding},
		Batching: Batching{MaxBatchSize: 48},
	}
}

// tileFiles are real tiles of 224x224 pixels.
func tileFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "tests", "testdata", "tiles", "*.png"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d tiles found (%v)", len(files), err)
	}
	return files
}

func readTile(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tileBody is the body of a request as clients write it.
func tileBody(image []byte, slide string, patch int) []byte {
	return fmt.Appendf(nil, `{"image_data": "%s", "bulk_rna": null, "slide_name": "%s", "x": 1120, "y": 2464, "width": 224, "height": 224, `+
		`"tissue_ratio": 0.87, "patch_idx": %d, "resolution": 0.5}`, base64.StdEncoding.EncodeToString(image), slide, patch)
}

func parse(t testing.TB, body []byte) *Request {
	t.Helper()
	r, err := ParseRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPreparedTileEqualsPillowAndNumpy(t *testing.T) {
	files := tileFiles(t)
	python := filepath.Join("..", "build", "tools", "bin", "python")
	script := filepath.Join("..", "tests", "reference", "normalise.py")
	for name, test := range map[string]struct {
		mean, std         [3]float64
		meanText, stdText string
	}{
		"tissue":          {testSpec().Tile.Mean, testSpec().Tile.Std, "0.707223,0.578729,0.703617", "0.211883,0.230117,0.177517"},
		"division by 255": {[3]float64{}, [3]float64{1, 1, 1}, "0,0,0", "1,1,1"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(python, append([]string{script, "tile", test.meanText, test.stdText}, files...)...)
			var complaint bytes.Buffer
			cmd.Stderr = &complaint
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("the reference needs Python with numpy and Pillow in build/tools, which deploy/setup makes: %v\n%s", err, &complaint)
			}
			want := strings.Fields(string(out))
			if len(want) != 2*len(files) {
				t.Fatalf("%d digests for %d tiles", len(want), len(files))
			}
			for d, dtype := range []DType{Float32, Float16} {
				spec := testSpec()
				spec.Tile.Mean, spec.Tile.Std = test.mean, test.std
				spec.Inputs[0].DType = dtype
				p := NewPreparer(spec)
				for i, file := range files {
					sample, err := p.Prepare(parse(t, tileBody(readTile(t, file), "S1", i)))
					if err != nil {
						t.Fatal(err)
					}
					sum := sha256.Sum256(tensorOf(sample, 0))
					if got := hex.EncodeToString(sum[:]); got != want[2*i+d] {
						t.Errorf("%s as %s has the digest %s, want %s", filepath.Base(file), dtype, got, want[2*i+d])
					}
					sample.Release()
				}
			}
		})
	}
}

// withWidth is a PNG whose header declares another width, its checksum right.
func withWidth(png []byte, width byte) []byte {
	png = bytes.Clone(png)
	copy(png[16:20], []byte{0, 0, 0, width})
	sum := crc32.ChecksumIEEE(png[12:29])
	copy(png[29:33], []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	return png
}

// badBodies are requests that fail at each step of Prepare.
func badBodies(t testing.TB) map[string][]byte {
	png := readTile(t, tileFiles(t)[0])
	good := tileBody(png, "bad", 1)
	return map[string][]byte{
		"missing field":  []byte(`{"slide_name":"bad","patch_idx":1}`),
		"field's type":   bytes.Replace(good, []byte(`"x": 1120`), []byte(`"x": 0.5`), 1),
		"empty image":    tileBody(nil, "bad", 1),
		"base64's end":   bytes.Replace(good, []byte(`", "bulk_rna"`), []byte(`*", "bulk_rna"`), 1),
		"base64's start": bytes.Replace(good, []byte(`"image_data": "`), []byte(`"image_data": "*`), 1),
		"no image":       tileBody([]byte("this is not an image"), "bad", 1),
		"wrong size":     tileBody(withWidth(png, 223), "bad", 1),
		"truncated":      tileBody(png[:len(png)/2], "bad", 1),
	}
}

func TestPrepareRefuses(t *testing.T) {
	p := NewPreparer(testSpec())
	bodies := badBodies(t)
	const where = ` (slide_name "bad", patch_idx 1)`
	for name, want := range map[string]struct {
		code        Code
		field, says string
	}{
		"missing field":  {InvalidRequest, "image_data, x, y, width, height", "missing"},
		"field's type":   {InvalidRequest, "x", "must be an integer"},
		"empty image":    {InvalidImage, "image_data", "not valid base64: empty"},
		"base64's end":   {InvalidImage, "image_data", `not valid base64: character "*" at 152352`},
		"base64's start": {InvalidImage, "image_data", `not valid base64: character "*" at 0`},
		"no image":       {InvalidImage, "image_data", "not an image in a format that is taken (PNG"},
		"wrong size":     {WrongShape, "image_data", "the PNG is 223x224 pixels; the model takes 224x224"},
		"truncated":      {InvalidImage, "image_data", "truncated"},
	} {
		t.Run(name, func(t *testing.T) {
			sample, err := p.Prepare(parse(t, bodies[name]))
			if sample != nil {
				t.Error("a sample beside an error")
			}
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("the error is %v", err)
			}
			if refused.Code != want.code || refused.Field != want.field || refused.Stack != nil {
				t.Errorf("code %s, field %s, stack %s", refused.Code, refused.Field, refused.Stack)
			}
			if text := err.Error(); !strings.HasPrefix(text, want.field+": ") || !strings.Contains(text, want.says) || !strings.HasSuffix(text, where) {
				t.Errorf("the error is %s", text)
			}
		})
	}
	if len(bodies) != 8 {
		t.Errorf("%d bad bodies, 8 of them tried", len(bodies))
	}
}

// A panic is the failure of one request: an error with a stack, and the next
// request is served.
func TestPrepareRecovers(t *testing.T) {
	p := NewPreparer(testSpec())
	body := tileBody(readTile(t, tileFiles(t)[0]), "S1", 7)
	for name, spoil := range map[string]func(){
		"a panic of the decoder": func() { p.spec = new(Spec) }, // a tile without a size
		"a fault at run time":    func() { p.spec = nil },
	} {
		t.Run(name, func(t *testing.T) {
			spoil()
			sample, err := p.Prepare(parse(t, body))
			p.spec = testSpec()
			var refused *Error
			if sample != nil || !errors.As(err, &refused) {
				t.Fatalf("the error is %v", err)
			}
			if refused.Code != InvalidRequest || !bytes.Contains(refused.Stack, []byte("prepare.go")) {
				t.Errorf("code %s, stack:\n%s", refused.Code, refused.Stack)
			}
			if want := `the request cannot be processed (slide_name "S1", patch_idx 7)`; err.Error() != want {
				t.Errorf("the error is %s, want %s", err, want)
			}
			if sample, err = p.Prepare(parse(t, body)); err != nil {
				t.Fatalf("the next request: %v", err)
			}
			sample.Release()
		})
	}
}

// A constant has its value in every element and type, whatever was in the memory before.
func TestConstant(t *testing.T) {
	value := func(v float64) *float64 { return &v }
	for _, test := range []struct {
		dtype DType
		value *float64
		want  []byte // of an element
	}{
		{Float32, value(0.1), []byte{0xcd, 0xcc, 0xcc, 0x3d}},
		{Float16, value(-1.5), []byte{0x00, 0xbe}},
		{Float16, value(65519.99), []byte{0xff, 0x7b}}, // the largest there is
		{Int64, value(-2), []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{Int64, value(1 << 53), []byte{0, 0, 0, 0, 0, 0, 0x20, 0}},
		{Float32, nil, []byte{0, 0, 0, 0}},
	} {
		in := Input{Name: "c", Source: ConstantSource, DType: test.dtype, Shape: []int64{2, 3}, Value: test.value}
		got := bytes.Repeat([]byte{0xee}, 6*test.dtype.Size())
		in.WriteBlank(got)
		if !bytes.Equal(got, bytes.Repeat(test.want, 6)) {
			t.Errorf("%s: % x", test.dtype, got)
		}
	}
}
