package soak

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"image/png"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"histogate/tests/stack"
)

const (
	callers = 8
	pause   = 60 * time.Millisecond // of a caller between two calls
	slides  = 64                    // with bulk RNA of their own
	genes   = 19374
)

// call is one way of calling the API.
type call struct {
	name   string
	path   string
	header []string // name, value pairs
	bodies [][]byte // of which one is sent
	status int      // what must be answered
	// vanish has the caller send this share of the request and go.
	vanish float64
}

// calls are all the ways: every model in every mode, every form of body and answer,
// many tiles at once, requests that are malformed and callers that go away.
func calls() []call {
	paths := stack.TilePaths()
	tile := func(model, mode string, i int) stack.Tile {
		return stack.Tile{
			ImageData: stack.ReadTile(paths[i%len(paths)]), SlideName: fmt.Sprintf("slide-%d", i), X: 224 * i, Width: 224, Height: 224,
			Ratio: 0.5, PatchIdx: i, ModelName: model, Mode: mode,
		}
	}
	tiles := func(model, mode string) (bodies [][]byte) {
		for i := range paths {
			bodies = append(bodies, tile(model, mode, i).Body())
		}
		return bodies
	}
	withRNA := func(mode string) (bodies [][]byte) {
		for i := range slides {
			request := tile("m-optimus", mode, i)
			request.BulkRNA = bulkRNA(uint64(i))
			bodies = append(bodies, request.Body())
		}
		return bodies
	}
	mask := tile("tissue-seg", "prediction", 0)
	mask.ImageData, mask.Width, mask.Height = stack.Mosaic(512, 512, 0), 512, 512
	many := func(n int) [][]byte {
		batch := map[string]any{"mode": "embedding", "requests": []stack.Tile{}}
		for i := range n {
			request := tile("h1", "embedding", i)
			if i == 1 {
				request.ImageData = request.ImageData[:1000] // it fails alone
			}
			batch["requests"] = append(batch["requests"].([]stack.Tile), request)
		}
		return [][]byte{encode(batch)}
	}
	good := tiles("h1", "embedding")
	cut := tile("h0", "embedding", 0)
	cut.ImageData = cut.ImageData[:len(cut.ImageData)/2]
	octets := []string{"Accept", "application/octet-stream"}
	raw := []string{"Content-Type", "image/png", "X-Model-Name", "h0", "X-Mode", "embedding"}
	const here = "/invocations"
	return []call{
		{name: "h0-mini", path: here, bodies: tiles("h0-mini", "embedding"), status: 200},
		{name: "h0", path: "/api/embed/h0", bodies: tiles("h0", ""), status: 200},
		{name: "h1", path: here, bodies: good, status: 200},
		{name: "h1, octets", path: here, header: octets, bodies: good, status: 200},
		{name: "h0, PNG to octets", path: here, header: append(raw, octets...), bodies: [][]byte{stack.ReadTile(paths[1])}, status: 200},
		{name: "h0, JPEG", path: here, header: append([]string{"Content-Type", "image/jpeg"}, raw[2:]...), bodies: [][]byte{asJPEG(stack.ReadTile(paths[2]))}, status: 200},
		{name: "m-optimus", path: "/api/predict/m-optimus", bodies: tiles("m-optimus", "prediction"), status: 200},
		{name: "m-optimus with RNA", path: here, bodies: withRNA("prediction"), status: 200},
		{name: "m-optimus with RNA, both", path: here, bodies: withRNA("prediction_with_embedding"), status: 200},
		{name: "m-optimus with RNA, embedding, octets", path: here, header: octets, bodies: withRNA("embedding"), status: 200},
		{name: "tissue-seg", path: here, bodies: [][]byte{mask.Body()}, status: 200},
		{name: "tissue-seg, octets", path: here, header: octets, bodies: [][]byte{mask.Body()}, status: 200},
		{name: "batch", path: "/api/batch/h1", bodies: many(6), status: 200},
		{name: "half of a picture", path: here, bodies: [][]byte{cut.Body()}, status: 400},
		{name: "wrong shape", path: "/api/embed/h1", bodies: [][]byte{mask.Body()}, status: 400},
		{name: "half of a document", path: here, bodies: [][]byte{good[0][:len(good[0])/2]}, status: 400},
		{name: "not JSON", path: here, bodies: [][]byte{[]byte("tile")}, status: 400},
		{name: "unknown model", path: "/api/embed/h2", bodies: good, status: 404},
		{name: "content type", path: here, header: []string{"Content-Type", "text/csv"}, bodies: good, status: 415},
		{name: "headers too large", path: here, header: []string{"Cookie", strings.Repeat("x", 20<<10)}, bodies: [][]byte{{}}, status: 431},
		{name: "goes after its headers", path: here, bodies: good, vanish: 0.001},
		{name: "goes half-way", path: here, bodies: good, vanish: 0.5},
		{name: "goes when all is sent", path: here, bodies: good, vanish: 1},
	}
}

func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // it holds nothing that cannot be written
	}
	return body
}

func asJPEG(data []byte) []byte {
	tile, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		panic(err) // it is committed
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, tile, nil); err != nil {
		panic(err) // it has a size, and memory takes it
	}
	return buf.Bytes()
}

// bulkRNA is a slide's: counts, and a gene in 16 that was not measured.
func bulkRNA(seed uint64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	values := make([]float64, genes)
	for i := range values {
		values[i] = float64(int(rng.ExpFloat64() * 40))
		if rng.IntN(16) == 0 {
			values[i] = -1
		}
	}
	return values
}

// traffic is callers that make calls of every kind, until stopped.
type traffic struct {
	url    string
	calls  []call
	client *http.Client
	made   atomic.Int64

	mu    sync.Mutex
	wrong map[string]int // what was not as it must be, and how often
}

func newTraffic(url string) *traffic {
	return &traffic{
		url: url, calls: calls(), wrong: map[string]int{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}, Timeout: time.Minute},
	}
}

// start starts the callers. stop returns when none of them has a call or a
// connection any more.
func (f *traffic) start() (stop func()) {
	over := make(chan struct{})
	var all sync.WaitGroup
	for caller := range callers {
		// By chance: in a fixed order they would end up side by side, all at the slowest
		// call at once, and the load would grow.
		rng := rand.New(rand.NewPCG(uint64(caller), uint64(f.made.Load())))
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(pause):
				}
				f.make(rng)
			}
		})
	}
	return func() {
		close(over)
		all.Wait()
		f.client.CloseIdleConnections()
	}
}

// make makes a call.
func (f *traffic) make(rng *rand.Rand) {
	c := &f.calls[rng.IntN(len(f.calls))]
	request, err := http.NewRequest(http.MethodPost, f.url+c.path, bytes.NewReader(c.bodies[rng.IntN(len(c.bodies))]))
	if err != nil {
		panic(err) // a mistake of the test
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(c.header); i += 2 {
		request.Header.Set(c.header[i], c.header[i+1])
	}
	if c.vanish > 0 {
		err = vanish(request, c.vanish, rng.IntN(2) == 0)
	} else {
		err = f.answered(request, c.status)
	}
	f.made.Add(1)
	if err != nil {
		f.mu.Lock()
		f.wrong[c.name+": "+err.Error()]++
		f.mu.Unlock()
	}
}

func (f *traffic) answered(request *http.Request, status int) error {
	response, err := f.client.Do(request)
	if err != nil {
		return errors.Unwrap(err) // without the address
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != status {
		err = fmt.Errorf("status %d, not %d: %.200s", response.StatusCode, status, body)
	}
	return err
}

// vanish sends a share of a request over a connection of its own, and closes or
// resets it.
func vanish(request *http.Request, share float64, reset bool) error {
	conn, err := net.Dial("tcp", request.URL.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	var text bytes.Buffer
	if err := request.Write(&text); err != nil {
		return err
	}
	if _, err := conn.Write(text.Bytes()[:int(share*float64(text.Len()))]); err != nil {
		return err
	}
	if reset {
		return conn.(*net.TCPConn).SetLinger(0)
	}
	return nil
}
