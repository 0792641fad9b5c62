package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"histogate/prep"
	"histogate/tests/stack"
)

// exchanged is an answer of any form.
type exchanged struct {
	status int
	header http.Header
	body   []byte
}

// exchange sends a body with headers, given as name, value pairs.
func exchange(t *testing.T, s *stack.Stack, path string, body []byte, headers ...string) exchanged {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return exchanged{response.StatusCode, response.Header, read}
}

// bits are float32 values as an answer in binary has them.
func bits(lists ...[]float32) []byte {
	var data []byte
	for _, list := range lists {
		for _, v := range list {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
	}
	return data
}

// Each model gives in each mode the same values, to the bit, whatever the form of
// the body and of the answer.
func TestFormsEqualJSON(t *testing.T) {
	s := start(t, stack.Options{})
	for model, shapes := range map[string]map[prep.Role]string{
		"h0-mini": {prep.EmbeddingRole: "1536"}, "h0": {prep.EmbeddingRole: "1536"}, "h1": {prep.EmbeddingRole: "1536"},
		"m-optimus":  {prep.EmbeddingRole: "1536", prep.PredictionRole: "6002"},
		"tissue-seg": {prep.PredictionRole: "1,512,512"},
	} {
		spec := readSpec(t, filepath.Join(stack.Root(), "model_repository", model))
		for _, request := range requestsFor(spec)[:2] {
			for _, mode := range spec.Modes {
				where := fmt.Sprintf("%s, %s, patch %d", model, mode, request.PatchIdx)
				request.Mode, request.ModelName = string(mode), model
				want := post(t, s, "/invocations", request.Body())
				if want.Status != http.StatusOK || len(want.Output) == 0 {
					t.Fatalf("%s: %d %s", where, want.Status, want.Detail)
				}
				var shape []string
				arrays := [][]float32{want.Output}
				for _, role := range mode.Roles() {
					shape = append(shape, shapes[role])
				}
				if want.Embedding != nil {
					arrays = append(arrays, want.Embedding)
				}
				binaryAnswer := func(form string, a exchanged) {
					t.Helper()
					if a.status != http.StatusOK || !bytes.Equal(a.body, bits(arrays...)) || a.header.Get("X-Output-Shape") != strings.Join(shape, ";") ||
						a.header.Get("Content-Type") != "application/octet-stream" {
						t.Errorf("%s, %s: %d, %d bytes unlike the JSON, %v", where, form, a.status, len(a.body), a.header)
					}
				}
				octets := []string{"Accept", "application/octet-stream"}
				binaryAnswer("JSON to binary", exchange(t, s, routes[mode]+model, request.Body(), octets...))
				if request.BulkRNA != nil {
					continue // it is larger than headers may be
				}
				raw := []string{"Content-Type", "image/png", "X-Model-Name", model, "X-Mode", string(mode)}
				binaryAnswer("image to binary", exchange(t, s, "/invocations", request.ImageData, append(raw, octets...)...))

				query := fmt.Sprintf("?slide_name=%s&x=%d&y=%d&width=%d&height=%d&tissue_ratio=%v&patch_idx=%d",
					request.SlideName, request.X, request.Y, request.Width, request.Height, request.Ratio, request.PatchIdx)
				for _, path := range []string{"/invocations", routes[mode] + model} {
					if a := exchange(t, s, path+query, request.ImageData, raw...); a.status != http.StatusOK || !bytes.Equal(a.body, want.Raw) {
						t.Errorf("%s, image to JSON on %s: %d, unlike the JSON", where, path, a.status)
					}
					var got [][]float32
					a := exchange(t, s, path, request.ImageData, raw...)
					if err := json.Unmarshal(a.body, &got); err != nil || !bytes.Equal(bits(got...), bits(arrays...)) || len(got) != len(arrays) {
						t.Errorf("%s, image alone on %s: %d, %v, unlike the JSON", where, path, a.status, err)
					}
				}
			}
		}
	}
	// Any format, and none of the fields: as the first version of h1 was called.
	a := exchange(t, s, "/invocations?model_name=h1", []byte("\x89PNG\r\n\x1a\n"), "Content-Type", "image/png")
	if a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "invalid_image") {
		t.Errorf("a broken image: %d %s", a.status, a.body)
	}
}

// many is a call of many tiles.
func many(mode string, tiles ...stack.Tile) []byte {
	body, err := json.Marshal(map[string]any{"mode": mode, "requests": tiles})
	if err != nil {
		panic(err) // it holds nothing that cannot be written
	}
	return body
}

func inPlace(t *testing.T, a exchanged) []json.RawMessage {
	t.Helper()
	var answer struct{ Responses []json.RawMessage }
	if err := json.Unmarshal(a.body, &answer); err != nil || a.status != http.StatusOK {
		t.Fatalf("%d %.500s: %v", a.status, a.body, err)
	}
	return answer.Responses
}

// In one call a bad tile fails in its place and alone, and the good ones are
// answered as they are alone.
func TestBatchCall(t *testing.T) {
	s := start(t, stack.Options{})
	const model = "m-optimus"
	tiles := make([]stack.Tile, 5)
	rna := readSpec(t, filepath.Join(stack.Root(), "model_repository", model)).Inputs[1]
	for i := range tiles {
		tiles[i] = tileRequest(model, i, i)
		tiles[i].Mode = "" // the call's
		if i >= 2 {        // one good tile has none
			tiles[i].BulkRNA = bulkRNA(rna, uint64(i))
		}
	}
	tiles[1].ImageData = tiles[1].ImageData[:len(tiles[1].ImageData)/2]
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewRGBA(image.Rect(0, 0, 64, 64))); err != nil {
		t.Fatal(err)
	}
	tiles[3].ImageData = small.Bytes()
	wants := []struct {
		status int
		code   string
	}{{200, ""}, {400, "invalid_image"}, {200, ""}, {400, "wrong_shape"}, {200, ""}}
	for _, mode := range []prep.Mode{prep.Prediction, prep.Embedding, prep.PredictionWithEmbedding} {
		all := inPlace(t, exchange(t, s, "/api/batch/"+model, many(string(mode), tiles...)))
		if len(all) != len(tiles) {
			t.Fatalf("%d responses", len(all))
		}
		for i, tile := range tiles {
			alone := post(t, s, routes[mode]+model, tile.Body())
			var failed struct {
				Error struct {
					Status       int
					Code, Detail string
				}
			}
			if err := json.Unmarshal(all[i], &failed); err != nil {
				t.Fatal(err)
			}
			f := failed.Error
			switch {
			case alone.Status != wants[i].status:
				t.Errorf("tile %d alone: %d", i, alone.Status)
			case wants[i].status == http.StatusOK && !bytes.Equal(all[i], alone.Raw):
				t.Errorf("%s, tile %d: unlike its answer alone: %.200s", mode, i, all[i])
			case wants[i].status != http.StatusOK && (f.Status != wants[i].status || f.Code != wants[i].code || f.Detail != alone.Detail):
				t.Errorf("%s, tile %d: %s, alone %s", mode, i, all[i], alone.Raw)
			}
		}
	}
}

// As many tiles as a call takes by default, in batches of Triton's.
func TestBatchCallOfManyTiles(t *testing.T) {
	const model, count128 = "h1", 128
	s := startAsIs(t, stack.Options{Env: []string{"MODELS=h1,tissue-seg"}})
	tiles, alone := make([]stack.Tile, count128), make([]*stack.Answer, count128)
	for i := range tiles {
		tiles[i] = tileRequest(model, i, i)
		alone[i] = post(t, s, "/api/embed/"+model, tiles[i].Body())
	}
	before := count(t, s, model)
	body := many("embedding", tiles...)
	began := time.Now()
	a := exchange(t, s, "/api/batch/"+model, body)
	took := time.Since(began)
	all := inPlace(t, a)
	did := count(t, s, model).minus(before)
	t.Logf("%d tiles, %d bytes, in one call: %s, %d executions; Server-Timing %s", len(all), len(body), took.Round(time.Millisecond), did.executions, a.header.Get("Server-Timing"))
	if len(all) != count128 || did.inferences != count128 || did.executions > count128/4 {
		t.Errorf("%d responses, %d inferences in %d executions", len(all), did.inferences, did.executions)
	}
	for i := range all {
		if !bytes.Equal(all[i], alone[i].Raw) {
			t.Fatalf("tile %d is unlike its answer alone", i)
		}
	}
	if a := exchange(t, s, "/api/batch/"+model, many("embedding", slices.Concat(tiles, tiles[:1])...)); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "129 tiles") {
		t.Errorf("129 tiles: %d %s", a.status, a.body)
	}
	// Fifty masks of 512 x 512 would be more than 25 MB of JSON: none of them is run.
	mask := tileRequest("tissue-seg", 0, 0)
	mask.Mode = ""
	mask.ImageData, mask.Width, mask.Height = stack.Mosaic(512, 512, 0), 512, 512
	masks := make([]stack.Tile, 50)
	for i := range masks {
		masks[i] = mask
		if i > 0 {
			masks[i].ImageData = []byte("small")
		}
	}
	before = count(t, s, "tissue-seg")
	if a := exchange(t, s, "/api/batch/tissue-seg", many("prediction", masks...)); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "no more than the first 49") {
		t.Errorf("50 masks: %d %.300s", a.status, a.body)
	}
	if did := count(t, s, "tissue-seg").minus(before); did.inferences != 0 {
		t.Errorf("%d masks were run", did.inferences)
	}
}

// When the model fails on a batch that holds one of a call's tiles, the call is told
// to come again, and the next is served.
func TestBatchCallFailsAsAWhole(t *testing.T) {
	o, _ := faultyModel(t)
	s := start(t, o)
	good, fatal := tileRequest("h1", 0, 0), tileRequest("h1", 0, 1)
	fatal.ImageData = blackTile(t)
	bad := good
	bad.ImageData = bad.ImageData[:100]
	a, err := s.Post("/api/batch/h1", many("embedding", good, bad, fatal, good))
	if err != nil {
		t.Fatal(err)
	}
	wantFailure(t, a, http.StatusServiceUnavailable, "forward_failed")
	alone := post(t, s, "/api/embed/h1", good.Body())
	if all := inPlace(t, exchange(t, s, "/api/batch/h1", many("embedding", good, bad, good))); !bytes.Equal(all[0], alone.Raw) || !bytes.Equal(all[2], alone.Raw) {
		t.Errorf("the next call: %.300s", all)
	}
}

// blackTile is the tile that the faulty model raises on.
func blackTile(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	tile := image.NewRGBA(image.Rect(0, 0, 224, 224))
	for i := 3; i < len(tile.Pix); i += 4 {
		tile.Pix[i] = 255
	}
	if err := png.Encode(&buf, tile); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
