// Package slide sends a slide's worth of tiles to a real stack, as real clients send
// it, while the processes behind the gateway are killed.
package slide

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"histogate/tests/stack"
)

const (
	tiles    = 542 // of the slide
	inFlight = 100
	kills    = 3 // of the model's backend process and of Triton, each
	apart    = 5 * time.Second
	recovery = 60 * time.Second // a limit for the test, not a promise
)

// A slide is read to its end, over and over, while the processes behind the gateway
// die: no tile is lost, each gets its own answer, and a mask that is asked for while
// its model is down, once, is answered.
func TestSlideSurvivesKills(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Env: []string{"MODELS=h1,tissue-seg"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if code := s.Stop(); code != 0 || t.Failed() {
			t.Errorf("exit code %d; what the stack wrote:\n%s", code, s.Output())
		}
	}()
	c := newClient(s.URL)
	defer c.CloseIdleConnections()
	alone := outputs(t, c)
	masks := make([]exchange, kills)
	for i := range masks {
		request := mask(i)
		masks[i] = exchange{request.Body(), answer(request, output(t, c, request))}
	}

	var over atomic.Bool // all kills are done
	var waited []time.Duration
	var killer sync.WaitGroup
	killer.Go(func() {
		defer over.Store(true)
		waited = killAll(t, s, c, masks)
	})
	passes, lost := 0, 0
	var slowest time.Duration
	for !over.Load() {
		passes++
		missing, took := readSlide(t, c, alone, passes)
		lost += missing
		slowest = max(slowest, took)
	}
	killer.Wait()
	t.Logf("%d passes of %d tiles, %d in flight; %d kills of the backend and of Triton each; %d retries; slowest tile %s; %d lost",
		passes, tiles, inFlight, kills, c.retries.Load(), slowest.Round(time.Millisecond), lost)
	t.Logf("%d masks asked for while Triton was gone waited for it for %v and were answered", len(waited), waited)
	if len(waited) != kills || slices.Max(waited) == 0 {
		t.Errorf("of %d masks that were asked for while Triton was gone these were answered after a wait: %v", kills, waited)
	}
}

// tile is one of the slide's, with fields of its own.
func tile(pass, i int) stack.Tile {
	paths := stack.TilePaths()
	return stack.Tile{
		ImageData: stack.ReadTile(paths[i%len(paths)]), SlideName: "slide-" + strconv.Itoa(pass), X: 224 * i, Y: 224 * pass,
		Width: 224, Height: 224, Ratio: 0.5, PatchIdx: i, ModelName: "h1", Mode: "embedding",
	}
}

// exchange is a request and its answer.
type exchange struct{ body, answer []byte }

// mask is a tile of a slide's overview.
func mask(i int) stack.Tile {
	return stack.Tile{
		ImageData: stack.Mosaic(512, 512, 8*i), SlideName: "slide-" + strconv.Itoa(i), X: i, Width: 512, Height: 512, Ratio: 0.5,
		PatchIdx: i, ModelName: "tissue-seg", Mode: "prediction",
	}
}

// answer is the body that answers a tile, given the numbers as they are written.
func answer(t stack.Tile, output []byte) []byte {
	return fmt.Appendf(nil, `{"output":[%s],"slide_name":%q,"x":%d,"y":%d,"width":%d,"height":%d,"tissue_ratio":0.5,"patch_idx":%d,"resolution":null,"embedding":null}`,
		output, t.SlideName, t.X, t.Y, t.Width, t.Height, t.PatchIdx)
}

// output is what a tile gets when it is sent alone.
func output(t *testing.T, c *client, request stack.Tile) []byte {
	t.Helper()
	r, err := c.once(request.Body())
	if err != nil || r.status != http.StatusOK {
		t.Fatalf("alone: %v, %v", err, r)
	}
	_, rest, _ := bytes.Cut(r.body, []byte(`[`))
	numbers, _, _ := bytes.Cut(rest, []byte(`]`))
	if !bytes.Equal(r.body, answer(request, numbers)) || len(numbers) < 1536 {
		t.Fatalf("alone: %v", r)
	}
	return numbers
}

// outputs are those of each picture.
func outputs(t *testing.T, c *client) (alone [][]byte) {
	t.Helper()
	for i := range stack.TilePaths() {
		alone = append(alone, output(t, c, tile(0, i)))
	}
	return alone
}

// readSlide sends every tile and returns how many were lost and how long the slowest
// took, its pauses included.
func readSlide(t *testing.T, c *client, alone [][]byte, pass int) (lost int, slowest time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var next atomic.Int64
	var workers sync.WaitGroup
	for range inFlight {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < tiles; i = int(next.Add(1)) - 1 {
				request, began := tile(pass, i), time.Now()
				r, err := c.send(request.Body())
				if err == nil && !bytes.Equal(r.body, answer(request, alone[i%len(alone)])) {
					err = fmt.Errorf("the answer is not the tile's own: %v", r)
				}
				mu.Lock()
				slowest = max(slowest, time.Since(began))
				if err != nil {
					lost++
					t.Errorf("pass %d, tile %d is lost: %v", pass, i, err)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return lost, slowest
}

// killAll kills the backend process of the tiles' model and Triton in turns, asks for
// a mask each time that Triton is gone, and returns how long each of them waited.
func killAll(t *testing.T, s *stack.Stack, c *client, masks []exchange) (waited []time.Duration) {
	t.Helper()
	for i := range 2 * kills {
		time.Sleep(apart)
		if err := await(s, http.StatusOK, recovery); err != nil {
			t.Errorf("before kill %d: %v", i+1, err)
			return waited
		}
		victims := s.BackendPIDs("h1")
		if i%2 == 1 {
			victims = []int{s.TritonPID()}
		}
		if len(victims) != 1 {
			t.Errorf("there are backend processes %v", victims)
			return waited
		}
		if err := syscall.Kill(victims[0], syscall.SIGKILL); err != nil {
			t.Errorf("kill %d: %v", i+1, err)
			return waited
		}
		if i%2 == 0 {
			continue
		}
		if err := await(s, http.StatusServiceUnavailable, recovery); err != nil {
			t.Errorf("after kill %d: %v", i+1, err)
			return waited
		}
		r, err := c.once(masks[i/2].body)
		if err != nil || r.status != http.StatusOK || !bytes.Equal(r.body, masks[i/2].answer) {
			t.Errorf("a mask asked for while Triton was gone: %v, %v", err, r)
			return waited
		}
		waited = append(waited, window(r))
	}
	return waited
}

// window is how long a request waited for a place inside Triton.
func window(r *reply) time.Duration {
	_, rest, _ := strings.Cut(r.header.Get("Server-Timing"), "window;dur=")
	text, _, _ := strings.Cut(rest, ",")
	ms, _ := strconv.ParseFloat(text, 64)
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Millisecond)
}

// await waits for a status of /ping.
func await(s *stack.Stack, status int, limit time.Duration) error {
	for began := time.Now(); time.Since(began) < limit; time.Sleep(5 * time.Millisecond) {
		if a, err := s.Get("/ping"); err == nil && a.Status == status {
			return nil
		}
	}
	return fmt.Errorf("/ping does not say %d", status)
}
