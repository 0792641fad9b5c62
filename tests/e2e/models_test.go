package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
	"histogate/tests/stack"
	"histogate/tritonclient"
)

// routes are the routes that a mode has of its own.
var routes = map[prep.Mode]string{
	prep.Embedding:               "/api/embed/",
	prep.Prediction:              "/api/predict/",
	prep.PredictionWithEmbedding: "/api/predict_with_embedding/",
}

// requestsFor are sound requests for a model: four tiles of its size and, where it
// takes bulk RNA, each of them with and without.
func requestsFor(spec *prep.Spec) (requests []stack.Tile) {
	for i := range 4 {
		request := tileRequest(spec.Name, i, len(requests))
		if spec.Tile.Width != request.Width || spec.Tile.Height != request.Height {
			request.Width, request.Height = spec.Tile.Width, spec.Tile.Height
			request.ImageData = stack.Mosaic(request.Width, request.Height, 100*i)
		}
		requests = append(requests, request)
		for _, in := range spec.Inputs {
			if in.Source == prep.BulkRNASource {
				request.BulkRNA = bulkRNA(in, uint64(i))
				request.PatchIdx++
				requests = append(requests, request)
			}
		}
	}
	return requests
}

// bulkRNA is a slide's: counts of which most are small and many 0, with a gene in 16
// not measured; or, where any value is allowed, numbers around 0.
func bulkRNA(in prep.Input, seed uint64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 3))
	values := make([]float64, prep.Elements(in.Shape))
	for i := range values {
		switch {
		case in.Domain == prep.AnyValue:
			values[i] = rng.NormFloat64() * 3
		case rng.IntN(16) == 0:
			values[i] = -1
		case rng.IntN(2) == 0:
			values[i] = float64(int(rng.ExpFloat64() * 40))
		default:
			values[i] = rng.ExpFloat64() * 200 // transcripts per million are no integers
		}
	}
	return values
}

// example is a request, and the reference's values for it.
type example struct {
	request stack.Tile
	mode    prep.Mode
	want    map[prep.Role][]float32
}

// examplesOf are the requests for a model in every mode that it has.
func examplesOf(t *testing.T, folder string) (examples []example) {
	t.Helper()
	spec := readSpec(t, folder)
	requests := requestsFor(spec)
	for i, want := range expect(t, folder, requests) {
		for _, mode := range spec.Modes {
			request := requests[i]
			request.Mode = string(mode)
			examples = append(examples, example{request, mode, want})
		}
	}
	return examples
}

// holdToReference sends each request alone on both routes and then all at once, and
// compares each answer with the reference, to the bit.
func holdToReference(t *testing.T, s *stack.Stack, model string, examples []example) {
	t.Helper()
	bodies := make([][]byte, len(examples))
	for i, c := range examples {
		bodies[i] = c.request.Body()
	}
	hold := func(where string, i int, a *stack.Answer) {
		t.Helper()
		c := examples[i]
		roles := c.mode.Roles()
		if a.Status != http.StatusOK || !sameBits(a.Output, c.want[roles[0]]) {
			t.Errorf("%s, request %d, %s: status %d, %d values that differ from the reference's %d (%s)",
				where, i, c.mode, a.Status, len(a.Output), len(c.want[roles[0]]), a.Detail)
		}
		if len(roles) == 1 && a.Embedding != nil || len(roles) == 2 && !sameBits(a.Embedding, c.want[roles[1]]) {
			t.Errorf("%s, request %d, %s: an embedding of %d values that the reference does not give", where, i, c.mode, len(a.Embedding))
		}
		if a.SlideName != c.request.SlideName || a.PatchIdx != c.request.PatchIdx {
			t.Errorf("%s: the answer is of slide %q, patch %d", where, a.SlideName, a.PatchIdx)
		}
	}
	for i, c := range examples {
		for _, route := range []string{"/invocations", routes[c.mode] + model} {
			hold(route, i, post(t, s, route, bodies[i]))
		}
	}
	before := count(t, s, model)
	for i, a := range together(t, s, bodies) {
		hold("among others", i, a)
	}
	did := count(t, s, model).minus(before)
	t.Logf("%d requests at once took %d executions", did.inferences, did.executions)
}

// Each model answers each mode with what onnxruntime makes of the tensors that Pillow
// and numpy make of the same request, after the output's transforms: bit for bit, be
// the tensors handed to Triton in shared memory or in messages, and the tiles among
// them as floats or as bytes.
func TestEveryModelAndModeEqualsReference(t *testing.T) {
	models := []string{"h0-mini", "h0", "h1", "m-optimus", "tissue-seg"}
	floats, ofBytes := filepath.Join(stack.Root(), "model_repository"), filepath.Join(t.TempDir(), "models")
	if err := modelrepo.Convert(ofBytes, floats, nil, modelrepo.Changes{TileTransport: prep.UInt8Transport}); err != nil {
		t.Fatal(err)
	}
	examples := map[string][]example{}
	for _, model := range models {
		examples[model] = examplesOf(t, filepath.Join(floats, model))
	}
	for _, test := range []struct {
		name, repository, transport string
		segments                    int
	}{
		{"floats/raw", floats, "raw", 0},
		{"floats/auto", floats, "auto", len(models)},
		{"bytes/raw", ofBytes, "raw", 0},
		{"bytes/auto", ofBytes, "auto", len(models)},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := start(t, stack.Options{Repository: test.repository, Env: []string{"TENSOR_TRANSPORT=" + test.transport}})
			for _, model := range models {
				t.Run(model, func(t *testing.T) {
					holdToReference(t, s, model, examples[model])
					holdTile(t, s, model, test.repository == ofBytes)
				})
			}
			holdSegments(t, s, test.segments)
			t.Run("mask", func(t *testing.T) { maskOfTissue(t, s) })
			t.Run("counts", func(t *testing.T) { wholeCounts(t, s) })
			t.Run("metadata", func(t *testing.T) { contracts(t, s) })
			t.Run("names and modes", func(t *testing.T) { namesAndModes(t, s) })
		})
	}
}

// A model answers under its alias, and in no mode that it does not offer.
func namesAndModes(t *testing.T, s *stack.Stack) {
	request := tileRequest("m-optimus", 0, 0)
	byName := post(t, s, "/invocations", request.Body())
	request.ModelName = "m-optimus-stx"
	if a := post(t, s, "/invocations", request.Body()); a.Status != http.StatusOK || !sameBits(a.Output, byName.Output) {
		t.Errorf("by its alias m-optimus answers %d %s", a.Status, a.Detail)
	}
	wantFailure(t, post(t, s, "/api/predict/h1", request.Body()), http.StatusBadRequest, "unsupported_mode", "prediction", "embedding")
	wantFailure(t, post(t, s, "/api/embed/tissue-seg", request.Body()), http.StatusBadRequest, "unsupported_mode", "embedding", "prediction")
}

// A mask is one value, 0 or 1, for each pixel, and tells the tissue from the glass
// around it.
func maskOfTissue(t *testing.T, s *stack.Stack) {
	const side = 512
	request := tileRequest("tissue-seg", 0, 0)
	request.ImageData, request.Width, request.Height = stack.Mosaic(side, side, 0), side, side
	a := post(t, s, "/api/predict/tissue-seg", request.Body())
	if a.Status != http.StatusOK || len(a.Output) != side*side {
		t.Fatalf("status %d, %d values: %s", a.Status, len(a.Output), a.Detail)
	}
	tissue := 0
	for i, v := range a.Output {
		x, y := i%side, i/side
		glass := x < 16 || y < 16 || x >= side-16 || y >= side-16 // as the mosaic is made
		if v != 0 && v != 1 || v == 1 && glass {
			t.Fatalf("the mask is %v at (%d, %d)", v, x, y)
		}
		tissue += int(v)
	}
	share := float64(tissue) / (side * side)
	t.Logf("%.1f %% of the picture is tissue", 100*share)
	if share < 0.05 || share > 0.95 {
		t.Errorf("%.1f %% of the picture is tissue", 100*share)
	}
}

// A prediction of m-optimus is whole counts, not their logarithms, and what no float32
// can hold is 0: so the last gene, whose logarithm the stand-in gives as about 120.
func wholeCounts(t *testing.T, s *stack.Stack) {
	a := post(t, s, "/api/predict/m-optimus", tileRequest("m-optimus", 0, 0).Body())
	if a.Status != http.StatusOK || len(a.Output) != 6002 {
		t.Fatalf("status %d, %d values: %s", a.Status, len(a.Output), a.Detail)
	}
	if i := slices.IndexFunc(a.Output, func(v float32) bool { return v < 0 || v != float32(int(v)) }); i >= 0 {
		t.Errorf("gene %d has the count %v", i, a.Output[i])
	}
	if last, most := a.Output[6001], slices.Max(a.Output); last != 0 || most < 20 {
		t.Errorf("the last gene has the count %v, the largest is %v", last, most)
	}
}

// contracts holds what each model says of itself against what its clients know, with
// the genes in the order of the files, on both routes.
func contracts(t *testing.T, s *stack.Stack) {
	genes := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(stack.Root(), "model_repository", "m-optimus", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))[1:] // without the header
	}
	type metadata struct {
		ModelName    string `json:"model_name"`
		TileSize     [2]int `json:"tile_size"`
		EmbeddingDim int    `json:"embedding_dim"`
		Config       struct {
			Tile  struct{ Mean, Std [3]float64 }
			Modes []string
		}
		InputGenes  []string `json:"input_genes"`
		OutputGenes []string `json:"output_genes"`
	}
	embedder := metadata{TileSize: [2]int{224, 224}, EmbeddingDim: 1536}
	embedder.Config.Tile.Mean, embedder.Config.Tile.Std = [3]float64{0.707223, 0.578729, 0.703617}, [3]float64{0.211883, 0.230117, 0.177517}
	embedder.Config.Modes = []string{"embedding"}
	expression := embedder
	expression.InputGenes, expression.OutputGenes = genes("input_gene_set.csv"), genes("output_gene_set.csv")
	expression.Config.Modes = []string{"prediction", "embedding", "prediction_with_embedding"}
	segmentation := metadata{TileSize: [2]int{512, 512}}
	segmentation.Config.Tile.Std = [3]float64{1, 1, 1}
	segmentation.Config.Modes = []string{"prediction"}
	if in, out := len(expression.InputGenes), len(expression.OutputGenes); in != 19374 || out != 6002 {
		t.Errorf("%d genes in and %d out", in, out)
	}
	for model, want := range map[string]metadata{
		"h0-mini": embedder, "h0": embedder, "h1": embedder, "m-optimus": expression, "tissue-seg": segmentation,
	} {
		want.ModelName = model
		byPath, err := s.Get("/api/metadata/" + model)
		if err != nil {
			t.Fatal(err)
		}
		byBody := post(t, s, "/invocations", stack.Tile{ModelName: model, Mode: "metadata"}.Body())
		if string(byBody.Raw) != string(byPath.Raw) {
			t.Errorf("%s: the two routes give different metadata", model)
		}
		var got metadata
		if err := json.Unmarshal(byPath.Raw, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s says of itself %.2000v, not %.2000v", model, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
}

// Requests share batches whatever their mode and whether they have bulk RNA or not,
// and none is changed by its company, nor by the rows that a checkpoint pads a batch
// with. Each model is there twice: alone its requests go to one that does not make
// them wait, together to one that does.
func TestModesShareBatches(t *testing.T) {
	repository := t.TempDir()
	long := []string{"microseconds: 0", "microseconds: 1000000", "max_queue_delay_ms: 0", "max_queue_delay_ms: 1000"}
	copyModel(t, repository, "m-optimus", "m-optimus")
	copyModel(t, repository, "m-optimus", "m-optimus-long", append([]string{"aliases: [m-optimus-stx]", "aliases: []", "max_batch_size: 48", "max_batch_size: 24"}, long...)...)
	copyModel(t, repository, "tissue-seg", "tissue-seg")
	copyModel(t, repository, "tissue-seg", "tissue-seg-long", long...)
	s := start(t, stack.Options{Repository: repository})
	for _, test := range []struct {
		model string
		rows  int // that one batch must have
	}{
		// Of 24 requests 8 are of one mode, and 12 have bulk RNA or have none: a larger
		// batch holds several modes, and both of the latter.
		{"m-optimus", 13},
		{"tissue-seg", 2}, // of eight of one mode
	} {
		t.Run(test.model, func(t *testing.T) {
			spec := readSpec(t, filepath.Join(repository, test.model))
			var alone []*stack.Answer
			var bodies [][]byte
			requests := requestsFor(spec)
			for len(requests) < 8 {
				requests = append(requests, requests...)
			}
			for _, request := range requests {
				for _, mode := range spec.Modes {
					request.Mode, request.ModelName = string(mode), test.model
					alone = append(alone, post(t, s, "/invocations", request.Body()))
					request.ModelName += "-long"
					bodies = append(bodies, request.Body())
				}
			}
			if sameBits(alone[0].Output, alone[len(spec.Modes)].Output) {
				t.Error("another tile, or the bulk RNA, makes no difference")
			}
			before := batches(t, s, test.model+"-long")
			for i, a := range together(t, s, bodies) {
				if a.Status != http.StatusOK || !sameBits(a.Output, alone[i].Output) || !sameBits(a.Embedding, alone[i].Embedding) || a.PatchIdx != alone[i].PatchIdx {
					t.Errorf("request %d among others: status %d, unlike its answer alone (%s)", i, a.Status, a.Detail)
				}
			}
			largest := 0
			for rows, n := range batches(t, s, test.model+"-long") {
				if n > before[rows] {
					largest = max(largest, rows)
				}
			}
			t.Logf("the largest batch of %d requests has %d rows", len(bodies), largest)
			if largest < test.rows {
				t.Errorf("the largest batch of %d requests has %d rows, want one of %d or more", len(bodies), largest, test.rows)
			}
		})
	}
}

// batches is how many batches Triton ran for a model, by their rows.
func batches(t *testing.T, s *stack.Stack, model string) map[int]uint64 {
	t.Helper()
	client, err := tritonclient.New(s.TritonAddress(), tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	statistics, err := client.ModelStatistics(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	ran := map[int]uint64{}
	for _, batch := range statistics.BatchStats {
		ran[int(batch.BatchSize)] = batch.GetComputeInfer().GetCount()
	}
	return ran
}

// A model is added by a folder: a spec, a configuration, a checkpoint. This one has
// another tile, other inputs and outputs, and another order of both.
func TestSixthModelIsAFolder(t *testing.T) {
	repository := t.TempDir()
	folder := filepath.Join(repository, "sixth")
	if err := os.CopyFS(folder, os.DirFS("testdata/sixth")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	python(t, nil, "e2e/testdata/sixth.py", filepath.Join(folder, "1", "model.onnx"))
	for _, model := range []string{"h0-mini", "h0", "h1", "m-optimus", "tissue-seg"} {
		if err := os.Symlink(filepath.Join(stack.Root(), "model_repository", model), filepath.Join(repository, model)); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, stack.Options{Repository: repository})
	holdToReference(t, s, readSpec(t, folder).Name, examplesOf(t, folder))

	request := requestsFor(readSpec(t, folder))[1]
	good := request.BulkRNA
	request.BulkRNA = good[:6]
	wantFailure(t, post(t, s, "/api/predict/sixth", request.Body()), http.StatusBadRequest, "invalid_rna", "bulk_rna", "6 values", "7")
	request.BulkRNA, request.ImageData = good, stack.Mosaic(96, 160, 0)
	wantFailure(t, post(t, s, "/api/predict/sixth", request.Body()), http.StatusBadRequest, "wrong_shape", "96x160", "160x96")
}
