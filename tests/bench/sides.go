package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"histogate/tests/process"
	"histogate/tests/stack"
	"histogate/tritonclient"
)

// side is one of the stacks that are compared.
type side struct {
	name string
	// start starts it with a repository that holds h1 alone.
	start func(ctx context.Context, repository string) (*running, error)
}

func sides() []side {
	gateway := func(transport string) func(context.Context, string) (*running, error) {
		return func(ctx context.Context, repository string) (*running, error) {
			return startGateway(ctx, stack.Options{Repository: repository, Env: []string{"MODELS=h1", "TENSOR_TRANSPORT=" + transport}})
		}
	}
	return []side{{"raw", gateway("raw")}, {"shm", gateway("auto")}, {"uint8", startBytes}, {"peer", startPython}}
}

// startBytes starts a stack whose tiles go to Triton as bytes, through shared memory.
func startBytes(ctx context.Context, repository string) (r *running, err error) {
	folder, err := os.MkdirTemp("", "histogate-bench-")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.RemoveAll(folder) }
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	binary, err := stack.Build(false)
	if err != nil {
		return nil, err
	}
	converted := filepath.Join(folder, "models")
	convert := exec.CommandContext(ctx, binary, "repository", "convert", "-model-repository", repository, "-out", converted, "-tile-transport", "uint8")
	if out, err := convert.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gateway repository convert: %w\n%s", err, out)
	}
	if r, err = startGateway(ctx, stack.Options{Repository: converted, Env: []string{"MODELS=h1"}}); err != nil {
		return nil, err
	}
	stop := r.stop
	r.stop = func() error { return errors.Join(stop(), remove()) }
	return r, nil
}

// running is a side at work.
type running struct {
	address   string           // of its API
	triton    string           // of Triton's gRPC endpoint; empty without one
	processes map[string][]int // by part of the stack
	counted   func(context.Context) (counts, error)
	stop      func() error
	wrote     func() string // its log, once it has ended
}

// counts are what a side has done since its start.
type counts struct {
	tiles, batches float64
	session        time.Duration // processor time inside the model; only the peer knows it
}

const (
	gatewayPart = "gateway"
	tritonPart  = "triton"
	modelPart   = "model"
	peerPart    = "peer"
)

// startGateway starts a stack that serves h1.
func startGateway(ctx context.Context, o stack.Options) (*running, error) {
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := stack.Start(starting, o)
	if err != nil {
		return nil, err
	}
	client, err := tritonclient.New(s.TritonAddress(), tritonclient.Options{})
	if err != nil {
		s.Stop()
		return nil, err
	}
	return &running{
		address: strings.TrimPrefix(s.URL, "http://"),
		triton:  s.TritonAddress(),
		processes: map[string][]int{
			gatewayPart: {s.PID()}, tritonPart: {s.TritonPID()}, modelPart: s.BackendPIDs("h1"),
		},
		counted: func(ctx context.Context) (counts, error) {
			stats, err := client.ModelStatistics(ctx, "h1")
			return counts{tiles: float64(stats.GetInferenceCount()), batches: float64(stats.GetExecutionCount())}, err
		},
		stop: func() error {
			err := client.Close()
			if code := s.Stop(); code != 0 {
				err = errors.Join(err, fmt.Errorf("the gateway ended with exit code %d", code))
			}
			return err
		},
		wrote: s.Output,
	}, nil
}

// startPython starts the Python server with the same checkpoint.
func startPython(ctx context.Context, repository string) (*running, error) {
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := startPeer(starting, filepath.Join(repository, "h1", "1", "model.onnx"))
	if err != nil {
		return nil, err
	}
	return &running{
		address:   strings.TrimPrefix(p.URL, "http://"),
		processes: map[string][]int{peerPart: {p.cmd.Process.Pid}},
		counted: func(context.Context) (counts, error) {
			stats, err := p.stats()
			return counts{float64(stats.Tiles), float64(stats.Batches), time.Duration(stats.SessionCPU * float64(time.Second))}, err
		},
		stop:  p.stop,
		wrote: p.stderr.String,
	}, nil
}

// cell is what one load on one side has shown.
type cell struct {
	perSecond, p50, p90, p99 float64 // tiles; milliseconds
	errors                   float64
	cpu                      map[string]float64 // by part, milliseconds a tile
	session                  float64            // of that, inside the peer's model
	load                     float64            // the load generator's own
	rss                      map[string]float64 // by part, the most that was seen, MB
	pss                      float64            // of all parts when the load had ended, MB
	batch                    float64            // tiles, the mean
}

// measure drives a side.
func (r *running) measure(ctx context.Context, requests [][]byte, inFlight int, each time.Duration) (c cell, err error) {
	before, err := r.snapshot(ctx)
	if err != nil {
		return c, err
	}
	resident := r.watchMemory()
	seen := drive(r.address, requests, inFlight, each)
	c.rss = resident()
	if seen.errors > 0 {
		log.Printf("%d in flight: %d errors, one of them: %v", inFlight, seen.errors, seen.failure)
	}
	after, err := r.snapshot(ctx)
	if err != nil {
		return c, err
	}
	tiles := float64(max(seen.answers, 1))
	c.perSecond, c.errors = seen.perSecond(), float64(seen.errors)
	c.p50, c.p90, c.p99 = millis(seen.percentile(50)), millis(seen.percentile(90)), millis(seen.percentile(99))
	c.cpu = map[string]float64{}
	for part := range r.processes {
		c.cpu[part] = millis(after.cpu[part]-before.cpu[part]) / tiles
	}
	c.load = millis(after.own-before.own) / tiles
	c.session = millis(after.session-before.session) / tiles
	c.batch = (after.tiles - before.tiles) / max(after.batches-before.batches, 1)
	c.pss, err = r.proportional()
	return c, err
}

// proportional is the memory of all processes in MB; what they share, as the segments that
// tensors are handed over in, counts once. It is asked for when a load has ended, where
// nothing has been given back yet: under load it would cost as much as some of the tiles.
func (r *running) proportional() (mb float64, err error) {
	for _, pids := range r.processes {
		for _, pid := range pids {
			bytes, err := process.PSS(pid)
			if err != nil {
				return 0, err
			}
			mb += float64(bytes) / 1e6
		}
	}
	return mb, nil
}

// snapshot is what all processes have used and done so far.
type snapshot struct {
	counts
	cpu map[string]time.Duration
	own time.Duration
}

func (r *running) snapshot(ctx context.Context) (s snapshot, err error) {
	if s.counts, err = r.counted(ctx); err != nil {
		return s, err
	}
	s.cpu = map[string]time.Duration{}
	for part, pids := range r.processes {
		for _, pid := range pids {
			used, err := process.CPU(pid)
			if err != nil {
				return s, err
			}
			s.cpu[part] += used
		}
	}
	s.own, err = process.CPU(os.Getpid())
	return s, err
}

// watchMemory looks at the processes' memory until it is asked for the most.
func (r *running) watchMemory() (most func() map[string]float64) {
	seen := map[string]float64{}
	look := func() {
		for part, pids := range r.processes {
			total := 0.0
			for _, pid := range pids {
				bytes, _ := process.RSS(pid) // its processor time is asked for, too
				total += float64(bytes) / 1e6
			}
			seen[part] = max(seen[part], total)
		}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			look()
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	}()
	return func() map[string]float64 {
		close(end)
		<-ended
		return seen
	}
}

// total is the sum over the parts of a stack.
func total(parts map[string]float64) (sum float64) {
	for _, part := range slices.Sorted(maps.Keys(parts)) { // in one order: the sum is of floats
		sum += parts[part]
	}
	return sum
}
