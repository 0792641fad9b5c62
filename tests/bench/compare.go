package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"histogate/prep"
	"histogate/tests/process"
	"histogate/tests/stack"
)

var (
	loads   = []int{1, 8, 32, 64, 256, 1024} // requests in flight
	costsMS = []string{"0", "1", "5"}        // of the model, a tile
)

// where is a place in the comparison.
type where struct {
	side, cost string
	inFlight   int
}

// figures are all that was measured, a value for each round.
type figures struct {
	cells map[where][]cell
	// The rest is in milliseconds, but for batches and ratios.
	floor   map[string][]float64 // of processor time a tile, by part
	direct  map[string][]directCell
	rna     [2][]float64 // the gateway's processor time a tile, without a vector and with one
	mask    []float64
	batches []float64 // the mean batch on a device that is slow
}

// directCell is what the least of a client has seen of Triton, by one transport.
type directCell struct {
	cpu      float64 // a tile, 64 in flight
	p50, p99 float64 // one in flight
}

// compare measures everything in each round, stack after stack.
func compare(ctx context.Context, repositories string, rounds int, each time.Duration) (*figures, error) {
	pictures, err := tiles()
	if err != nil {
		return nil, err
	}
	requests := embeddings(pictures)
	f := &figures{cells: map[where][]cell{}, floor: map[string][]float64{}, direct: map[string][]directCell{}}
	for round := range rounds {
		for _, cost := range costsMS {
			all := sides()
			for i := range all {
				s := all[(i+round)%len(all)]
				log.Printf("round %d of %d: %s, a model of %s ms", round+1, rounds, s.name, cost)
				if err := f.side(ctx, s, cost, filepath.Join(repositories, cost+"-ms"), requests, each); err != nil {
					return nil, fmt.Errorf("%s, a model of %s ms: %w", s.name, cost, err)
				}
			}
		}
		log.Printf("round %d of %d: the rest", round+1, rounds)
		if err := f.rest(ctx, requests, each); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// side starts a stack, puts all loads on it and stops it.
func (f *figures) side(ctx context.Context, s side, cost, repository string, requests [][]byte, each time.Duration) (err error) {
	r, err := s.start(ctx, repository)
	if err != nil {
		return err
	}
	failed := 0.0 // requests
	defer func() {
		err = errors.Join(err, r.stop())
		if err != nil || failed > 0 {
			err = errors.Join(err, keepLog(s.name, cost, r.wrote()))
		}
	}()
	// Pools and caches are warm then. Its errors are in no figure, but are told of.
	if err := drive(r.address, requests, 64, each/2).whole(); err != nil {
		failed++
		log.Printf("%s, before what is measured: %v", s.name, err)
	}
	for _, n := range loads {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c, err := r.measure(ctx, requests, n, each)
		if err != nil {
			return fmt.Errorf("%d in flight: %w", n, err)
		}
		at := where{s.name, cost, n}
		f.cells[at] = append(f.cells[at], c)
		failed += c.errors
	}
	if cost != judged || s.name != "raw" && s.name != "shm" {
		return nil
	}
	return f.leastClient(ctx, s.name, r.triton, each)
}

// keepLog keeps what a stack wrote in which requests failed: it tells why.
func keepLog(side, cost, text string) error {
	path := filepath.Join(stack.Root(), "build", fmt.Sprintf("bench-%s-%s-ms.log", side, cost))
	log.Printf("what the stack wrote is in %s", path)
	return os.WriteFile(path, []byte(text), 0o644)
}

// leastClient measures what Triton costs the least of clients, by a side's transport, with
// the model that the gateway is judged with: it is held against the gateway.
func (f *figures) leastClient(ctx context.Context, transport, triton string, each time.Duration) (err error) {
	d, err := newDirect(ctx, triton, transport == "shm")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if _, _, err := d.run(ctx, 64, each/4); err != nil {
		return err
	}
	_, cpu, err := d.run(ctx, 64, each)
	if err != nil {
		return err
	}
	alone, _, err := d.run(ctx, 1, each)
	f.direct[transport] = append(f.direct[transport], directCell{cpu, millis(alone.percentile(50)), millis(alone.percentile(99))})
	return err
}

// rest measures what stands for itself.
func (f *figures) rest(ctx context.Context, requests [][]byte, each time.Duration) error {
	bodies := make([][]byte, len(requests))
	for i := range requests {
		bodies[i] = bodyOf(requests[i])
	}
	parts, err := floorParts(bodies)
	if err != nil {
		return err
	}
	for _, p := range parts {
		ms, err := p.measure()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		f.floor[p.name] = append(f.floor[p.name], ms)
	}
	return errors.Join(f.mOptimus(ctx, requests, each), f.oneMask(), f.slowDevice(ctx, requests, each))
}

// mOptimus measures what a vector that repeats costs, and HTTP alone: the server of the
// floor answers as long as this stack does.
func (f *figures) mOptimus(ctx context.Context, requests [][]byte, each time.Duration) error {
	spec, err := prep.ReadSpec(filepath.Join(stack.Root(), "model_repository/m-optimus/spec.yaml"))
	if err != nil {
		return err
	}
	// As transcripts per million are sent: 210 KB of JSON, near the most that clients send.
	vector := make([]float64, len(spec.InputGenes))
	for i := range vector {
		vector[i] = math.Trunc(float64(i*i%97700)/977*1e7) / 1e8
	}
	return withStack(ctx, stack.Options{Env: []string{"MODELS=h1,m-optimus"}}, func(s *stack.Stack) error {
		address := strings.TrimPrefix(s.URL, "http://")
		length, err := answerLength(s, bodyOf(requests[0]))
		if err != nil {
			return err
		}
		for i, rna := range [2][]float64{nil, vector} {
			mine, err := forMOptimus(rna)
			if err != nil {
				return err
			}
			if err := drive(address, mine, 64, each/4).whole(); err != nil {
				return fmt.Errorf("m-optimus: %w", err)
			}
			before, err := process.CPU(s.PID())
			if err != nil {
				return err
			}
			seen := drive(address, mine, 64, each)
			after, err := process.CPU(s.PID())
			if err != nil {
				return err
			}
			if err := seen.whole(); err != nil {
				return fmt.Errorf("m-optimus: %w", err)
			}
			f.rna[i] = append(f.rna[i], millis(after-before)/float64(seen.answers))
		}
		return f.echo(length, requests, each)
	})
}

// answerLength is the bytes of an answer's body.
func answerLength(s *stack.Stack, body []byte) (int, error) {
	answer, err := s.Post("/invocations", body)
	if err != nil {
		return 0, err
	}
	if answer.Status != http.StatusOK {
		return 0, fmt.Errorf("status %d: %s", answer.Status, answer.Raw)
	}
	return len(answer.Raw), nil
}

func (f *figures) echo(length int, requests [][]byte, each time.Duration) (err error) {
	e, err := startEcho(length)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	if _, err := e.measure(requests, 64, each/4); err != nil {
		return err
	}
	ms, err := e.measure(requests, 64, each)
	f.floor["http"] = append(f.floor["http"], ms)
	return err
}

// oneMask measures what becomes of a mask of 512 x 512 logits until it is JSON.
func (f *figures) oneMask() error {
	const side, times = 512, 32
	spec, err := prep.ReadSpec(filepath.Join(stack.Root(), "model_repository/tissue-seg/spec.yaml"))
	if err != nil {
		return err
	}
	output, ok := spec.Output(prep.PredictionRole)
	if !ok {
		return errors.New("tissue-seg has no prediction")
	}
	logits, work, text := make([]byte, 4*side*side), make([]byte, 4*side*side), []byte(nil)
	for i := range side * side {
		binary.LittleEndian.PutUint32(logits[4*i:], math.Float32bits(float32(math.Sin(float64(i)/50))))
	}
	runtime.LockOSThread() // whose time is taken
	defer runtime.UnlockOSThread()
	took := time.Duration(0)
	for i := range times + 1 {
		copy(work, logits)
		before := process.ThreadCPU()
		if err := output.Transform(work); err != nil {
			return err
		}
		if text, err = output.AppendJSON(text[:0], work); err != nil {
			return err
		}
		if i > 0 { // the first one has made room for the text
			took += process.ThreadCPU() - before
		}
	}
	f.mask = append(f.mask, millis(took)/times)
	return nil
}

// slowDevice measures how well batches are filled where one takes a quarter of a
// second.
func (f *figures) slowDevice(ctx context.Context, requests [][]byte, each time.Duration) (err error) {
	folder, err := os.MkdirTemp("", "histogate-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	o, err := stack.SlowDevice(folder, 250, 0)
	if err != nil {
		return err
	}
	return withStack(ctx, o, func(s *stack.Stack) error {
		// Long enough for the first and the last batches, which are smaller, to weigh little.
		_, batch, err := batched(ctx, s, requests, 256, max(2*each, 10*time.Second))
		f.batches = append(f.batches, batch)
		return err
	})
}
