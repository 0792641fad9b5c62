package storm

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"histogate/tests/stack"
)

var (
	requests = flag.Int("requests", 2000, "requests of the storm")
	race     = flag.Bool("gateway-race", true, "build the gateway with the race detector")
)

const inFlight = 128

// No valid request fails while a third of all is malformed: each gets the answer
// that it gets alone, and its own fields; each malformed one a 4xx of its own.
func TestStorm(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Race: *race, Env: []string{"MODELS=h1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if code := s.Stop(); code != 0 || t.Failed() {
			t.Errorf("exit code %d; what the stack wrote:\n%s", code, s.Output())
		}
	}()
	all := ways()
	if len(all) < 60 {
		t.Fatalf("only %d ways", len(all))
	}
	var tiles []sound
	var alone [][]float32
	for _, path := range stack.TilePaths() {
		tile := sound{image: stack.ReadTile(path), fields: map[string]any{
			"image_data": stack.ReadTile(path), "slide_name": "alone", "x": 0, "y": 0, "width": 224, "height": 224,
			"patch_idx": 0, "model_name": "h1", "mode": "embedding",
		}}
		a, err := s.Post("/invocations", tile.json())
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("alone: %v, %+v", err, a)
		}
		tiles, alone = append(tiles, tile), append(alone, a.Output)
	}

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: inFlight}, Timeout: time.Minute}
	var next, good, bad atomic.Int64
	met := make([]atomic.Int64, len(all))
	var workers sync.WaitGroup
	for range inFlight {
		workers.Go(func() {
			for i := int(next.Add(1)); i <= *requests; i = int(next.Add(1)) {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				which := r.IntN(len(tiles))
				tile := sound{tiles[which].image, maps.Clone(tiles[which].fields)}
				tile.fields["slide_name"], tile.fields["patch_idx"] = "slide-"+strconv.Itoa(i%17), i
				if i%3 == 0 {
					way := (i / 3) % len(all)
					met[way].Add(1)
					sendBad(t, client, s.URL, &all[way], tile)
					bad.Add(1)
				} else {
					sendGood(t, client, s.URL, tile, alone[which])
					good.Add(1)
				}
			}
		})
	}
	began := time.Now()
	workers.Wait()
	t.Logf("%d good and %d malformed requests in %d ways, %d at once, in %s", good.Load(), bad.Load(), len(all), inFlight, time.Since(began).Round(time.Millisecond))
	for i := range met {
		if met[i].Load() == 0 && *requests >= 3*len(all) {
			t.Errorf("%s was never sent", all[i].name)
		}
	}
}

func send(client *http.Client, url string, body []byte, header [2]string) (status int, raw []byte, err error) {
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if header[0] != "" {
		request.Header.Set(header[0], header[1])
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	raw, err = io.ReadAll(response.Body)
	return response.StatusCode, raw, err
}

func sendGood(t *testing.T, client *http.Client, url string, tile sound, want []float32) {
	t.Helper()
	status, raw, err := send(client, url+"/invocations", tile.json(), [2]string{})
	if err != nil || status != http.StatusOK {
		t.Errorf("a valid request: %v, %d %.300s", err, status, raw)
		return
	}
	var answer struct {
		Output    []float32
		SlideName string `json:"slide_name"`
		PatchIdx  int    `json:"patch_idx"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Error(err)
	}
	if !slices.Equal(answer.Output, want) || answer.SlideName != tile.fields["slide_name"] || answer.PatchIdx != tile.fields["patch_idx"] {
		t.Errorf("the answer to %v, %v is of %s, %d and has %d values unlike those alone",
			tile.fields["slide_name"], tile.fields["patch_idx"], answer.SlideName, answer.PatchIdx, len(answer.Output))
	}
}

func sendBad(t *testing.T, client *http.Client, url string, way *malformed, tile sound) {
	t.Helper()
	path, want := way.path, way.status
	if path == "" {
		path = "/invocations"
	}
	if want == 0 {
		want = http.StatusBadRequest
	}
	status, raw, err := send(client, url+path, way.body(tile), way.header)
	var failure struct{ Detail, Code string }
	if err == nil {
		err = json.Unmarshal(raw, &failure)
	}
	if err != nil || status != want || failure.Code != way.code || failure.Detail == "" {
		t.Errorf("%s: %v, status %d %.300s; want %d %s", way.name, err, status, raw, want, way.code)
	}
}
