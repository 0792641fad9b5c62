package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"histogate/tests/stack"
)

// What both servers answer, tile by tile, must be the same before their times mean
// anything. What the gateway answers is held against the reference by tests/e2e.
func TestPeerAnswersAsTheGatewayDoes(t *testing.T) {
	if _, err := os.Stat(peerPython()); err != nil {
		t.Skip("the Python server is not set up; run deploy/setup bench")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	gateway, err := stack.Start(ctx, stack.Options{Env: []string{"MODELS=h1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer gateway.Stop()
	// A wait so long that tiles sent together meet in batches.
	p, err := startPeer(ctx, filepath.Join(stack.Root(), "model_repository/h1/1/model.onnx"), "BATCH_MAX_WAIT_MS=100")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.stop(); err != nil {
			t.Errorf("%v:\n%s", err, &p.stderr)
		}
	}()
	python := &stack.Stack{URL: p.URL}

	var requests []stack.Tile
	for i, path := range stack.TilePaths() {
		tile := stack.Tile{ImageData: stack.ReadTile(path), SlideName: fmt.Sprint("slide ", i), X: 224 * i, Y: -7, Width: 224, Height: 224, Ratio: 0.25, PatchIdx: i}
		requests = append(requests, tile)
		tile.ModelName, tile.Mode = "h1", "embedding"
		requests = append(requests, tile)
	}
	damaged := requests[0]
	damaged.ImageData = damaged.ImageData[:len(damaged.ImageData)/2]
	requests = append(requests, damaged)
	path := func(r stack.Tile) string {
		if r.ModelName == "" {
			return "/api/embed/h1"
		}
		return "/invocations"
	}

	answers := make([]*stack.Answer, len(requests))
	failures := make(chan error, len(requests))
	for i, r := range requests {
		go func() {
			var err error
			answers[i], err = python.Post(path(r), r.Body())
			failures <- err
		}()
	}
	for range requests {
		if err := <-failures; err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range requests {
		want, err := gateway.Post(path(r), r.Body())
		if err != nil {
			t.Fatal(err)
		}
		got := answers[i]
		if got.Status != want.Status {
			t.Errorf("request %d: status %d, the gateway's is %d: %s", i, got.Status, want.Status, got.Detail)
			continue
		}
		if want.Status != http.StatusOK {
			continue
		}
		same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
		if len(want.Output) != 1536 || !slices.EqualFunc(got.Output, want.Output, same) {
			t.Errorf("request %d: not the gateway's embedding", i)
		}
		echo := func(a *stack.Answer) string { return string(a.Raw[bytes.IndexByte(a.Raw, ']'):]) }
		if echo(got) != echo(want) {
			t.Errorf("request %d: %s, the gateway has %s", i, echo(got), echo(want))
		}
	}
	stats, err := p.stats()
	if err != nil {
		t.Fatal(err)
	}
	if good := len(requests) - 1; stats.Tiles != good || stats.Batches >= good || stats.SessionCPU <= 0 || stats.ProcessCPU <= stats.SessionCPU {
		t.Errorf("%d tiles, sent together: %+v", good, stats)
	}
}
