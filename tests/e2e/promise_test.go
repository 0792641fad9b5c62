package e2e

import (
	"bytes"
	"image"
	"image/draw"
	"image/png"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"histogate/tests/stack"
)

// The promise: bad requests get their own 400, and good ones that were in flight
// with them the very answers that they get alone.
func TestBadRequestsHurtNobodyElse(t *testing.T) {
	const model, good, bad = "h1", 64, 32
	s := start(t, stack.Options{})
	alone := make([][]float32, good)
	type item struct {
		body   []byte
		good   int // index into alone, -1 for a bad one
		code   string
		naming []string
	}
	var items []item
	for i := range good {
		request := tileRequest(model, i, 1000+i)
		a := post(t, s, "/invocations", request.Body())
		if a.Status != http.StatusOK {
			t.Fatalf("request %d alone: %d %s", i, a.Status, a.Detail)
		}
		alone[i] = a.Output
		items = append(items, item{body: request.Body(), good: i})
	}
	for i := range bad {
		body, code, naming := damaged(model, i)
		items = append(items, item{body, -1, code, naming})
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })

	before := count(t, s, model)
	bodies := make([][]byte, len(items))
	for i, item := range items {
		bodies[i] = item.body
	}
	for i, a := range together(t, s, bodies) {
		item := items[i]
		if item.good < 0 {
			wantFailure(t, a, http.StatusBadRequest, item.code, item.naming...)
			continue
		}
		if a.Status != http.StatusOK || !sameBits(a.Output, alone[item.good]) || a.PatchIdx != 1000+item.good {
			t.Errorf("good request %d among bad ones: status %d, patch %d, %d values, unlike its answer alone (%s)",
				item.good, a.Status, a.PatchIdx, len(a.Output), a.Detail)
		}
	}
	did := count(t, s, model).minus(before)
	t.Logf("%d good and %d bad requests: Triton ran %d inferences in %d executions", good, bad, did.inferences, did.executions)
	if did.inferences != good || did.failed != 0 {
		t.Errorf("Triton ran %d inferences and failed %d; want exactly the %d good ones", did.inferences, did.failed, good)
	}
}

// damaged is the i-th bad request, its code and what its answer must name.
func damaged(model string, i int) (body []byte, code string, naming []string) {
	request := tileRequest(model, i, 2000+i)
	slide, patch := request.SlideName, strconv.Itoa(request.PatchIdx)
	text := string(request.Body())
	switch i % 5 {
	case 0: // a truncated image
		request.ImageData = request.ImageData[:len(request.ImageData)/2]
		return request.Body(), "invalid_image", []string{"image_data", slide, patch, "PNG"}
	case 1: // a sound image of another size
		var buf bytes.Buffer
		if err := png.Encode(&buf, image.NewRGBA(image.Rect(0, 0, 223, 224))); err != nil {
			panic(err)
		}
		request.ImageData = buf.Bytes()
		return request.Body(), "wrong_shape", []string{"image_data", slide, patch, "223x224", "224x224"}
	case 2: // base64 that is none
		return []byte(strings.Replace(text, `"image_data":"iVBO`, `"image_data":"iV*O`, 1)), "invalid_image", []string{"image_data", slide, patch, "base64"}
	case 3: // JSON that breaks off
		return []byte(text[:len(text)-1]), "invalid_request", []string{slide, patch, "JSON", strconv.Itoa(len(text) - 1)}
	default: // a field that is not there
		return []byte(strings.Replace(text, `"width":224,`, "", 1)), "invalid_request", []string{"width", slide, patch, "missing"}
	}
}

// When the model fails on a batch, be it that it raises or that it answers with too
// few rows, each request of that batch gets a 503, others do not, and the next batch
// is served.
func TestBackendFails(t *testing.T) {
	const model, sent = "h1", 24
	o, _ := faultyModel(t)
	s := start(t, o)
	want := post(t, s, "/invocations", tileRequest(model, 0, 0).Body()).Output
	for name, pixels := range map[string]image.Image{"raises": image.Black, "gives too few rows": image.White} {
		t.Run(name, func(t *testing.T) {
			fatal := tileRequest(model, 0, 1)
			var buf bytes.Buffer
			tile := image.NewRGBA(image.Rect(0, 0, 224, 224))
			draw.Draw(tile, tile.Bounds(), pixels, image.Point{}, draw.Src)
			if err := png.Encode(&buf, tile); err != nil {
				t.Fatal(err)
			}
			fatal.ImageData = buf.Bytes()

			bodies := [][]byte{fatal.Body()}
			for i := 1; i < sent; i++ {
				bodies = append(bodies, tileRequest(model, 0, i).Body())
			}
			before := count(t, s, model)
			// A model that was idle for a second is probed; a probe would fail with the batch.
			post(t, s, "/invocations", bodies[1])
			failed := 0
			for i, a := range together(t, s, bodies) {
				switch {
				case a.Status == http.StatusServiceUnavailable:
					wantFailure(t, a, http.StatusServiceUnavailable, "forward_failed")
					if strings.Contains(a.Detail, "simulated") || strings.Contains(a.Detail, ".py") || strings.Contains(a.Detail, "rows") {
						t.Errorf("the answer tells a caller of the backend's inside: %s", a.Detail)
					}
					failed++
				case a.Status != http.StatusOK || !sameBits(a.Output, want):
					t.Errorf("request %d: status %d, %s", i, a.Status, a.Detail)
				case i == 0:
					t.Error("the request that the model fails on was answered")
				}
			}
			did := count(t, s, model).minus(before)
			t.Logf("%d requests, %d in the failed batch: %d got 503", sent, did.failed, failed)
			if failed != did.failed || failed < sent/2 {
				t.Errorf("%d requests got 503, Triton's failed batch held %d (of %d sent together)", failed, did.failed, sent)
			}

			for i, a := range together(t, s, bodies[1:]) {
				if a.Status != http.StatusOK || !sameBits(a.Output, want) {
					t.Errorf("next batch, request %d: status %d, %s", i, a.Status, a.Detail)
				}
			}
			if a, err := s.Get("/ping"); err != nil || a.Status != http.StatusOK {
				t.Errorf("/ping after a batch that failed: %v, %v", a, err)
			}
		})
	}
}

// Triton really batches what comes at once.
func TestConcurrentRequestsShareBatches(t *testing.T) {
	const model, requests, most = "h1", 48, 12
	s := startAsIs(t, stack.Options{}) // as it is deployed: the race detector slows stage 1 tenfold
	var bodies [][]byte
	for i := range requests {
		bodies = append(bodies, tileRequest(model, i, i).Body())
	}
	together(t, s, bodies) // connections are made, pools filled
	// How many it takes depends on how soon they come, and so on what else the
	// machine does: the best of a few rounds counts.
	best := requests
	for round := 0; round < 3 && best > most; round++ {
		before := count(t, s, model)
		for i, a := range together(t, s, bodies) {
			if a.Status != http.StatusOK {
				t.Errorf("request %d: %d %s", i, a.Status, a.Detail)
			}
		}
		did := count(t, s, model).minus(before)
		t.Logf("%d requests took %d executions", did.inferences, did.executions)
		if did.inferences != requests {
			t.Errorf("%d inferences for %d requests", did.inferences, requests)
		}
		best = min(best, did.executions)
	}
	if best > most {
		t.Errorf("%d requests took at least %d executions; want at most %d", requests, best, most)
	}
}
