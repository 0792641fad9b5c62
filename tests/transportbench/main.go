// Command transportbench measures what it costs to hand tensors to a real Triton and
// to take its answers, in messages and through shared memory.
//
//	go run ./tests/transportbench
//
// It is run at the root of the repository. The client is the product's alone, with
// bytes of a picture that become floats where they are sent from, or are sent as they
// are; the backend is the product's with a checkpoint that costs nothing. One model takes
// a tile of 602 KB, or 151 KB of bytes, and gives 1,536 numbers, one takes 3.1 MB or 786 KB
// and gives a mask of 1 MB.
//
// Every figure is processor time, of this process, of Triton or of the model's
// process, for one request, user and system; a machine that is busy disturbs it less
// than time on the wall. Each round measures everything once; printed is the median
// over the rounds, with the least and the greatest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"histogate/tests/process"
	"histogate/tests/stack"
	"histogate/tritonclient"
)

var inFlight = []int{1, 8, 64}

// transport is a way to hand tensors over.
type transport struct {
	name   string
	client *tritonclient.Client
}

func main() {
	rounds := flag.Int("rounds", 7, "how often everything is measured")
	requests := flag.Int("requests", 600, "requests of one measurement")
	only := flag.String("only", "", "regular expression; measured is what it fits of tile/shm/64 and the like")
	flag.Parse()
	log.SetFlags(0)
	wanted, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal("transportbench: -only: ", err)
	}
	if err := run(*rounds, *requests, wanted); err != nil {
		log.Fatal("transportbench: ", err)
	}
}

func run(rounds, requests int, wanted *regexp.Regexp) (err error) {
	folder, err := os.MkdirTemp("", "transportbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	models, err := makeModels(folder)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Repository: filepath.Join(folder, "models"), Backends: filepath.Join(folder, "backends")})
	if err != nil {
		return err
	}
	defer s.Stop()
	transports, err := connect(ctx, s.TritonAddress(), models)
	if err != nil {
		return err
	}
	var names []string
	figures := map[string][]float64{}
	for range rounds {
		for _, m := range models {
			for _, t := range transports {
				for _, n := range inFlight {
					what := fmt.Sprintf("%s/%s/%d", m.name, t.name, n)
					if !wanted.MatchString(what) {
						continue
					}
					f, err := measure(t.client, m, s.TritonPID(), n, requests/m.weight)
					if err != nil {
						return err
					}
					for part, value := range f {
						name := "transport/" + what + "/" + partNames[part]
						if figures[name] == nil {
							names = append(names, name)
						}
						figures[name] = append(figures[name], value)
					}
				}
			}
		}
	}
	for _, name := range names {
		values := slices.Sorted(slices.Values(figures[name]))
		fmt.Printf("bench %s %.1f  (%.1f to %.1f)\n", name, values[len(values)/2], values[0], values[len(values)-1])
	}
	for _, t := range transports {
		err = errors.Join(err, t.client.Close())
	}
	return err
}

func connect(ctx context.Context, address string, models []*model) (list []transport, err error) {
	for _, t := range []struct {
		name string
		mode os.FileMode
	}{{"raw", 0}, {"shm", 0o600}} {
		client, err := tritonclient.New(address, tritonclient.Options{SharedMemory: t.mode})
		if err != nil {
			return nil, err
		}
		for _, m := range models {
			client.ShareMemory(ctx, tritonclient.SharedInputs{Model: m.name, Inputs: m.inputs, Requests: slices.Max(inFlight), Settle: time.Minute})
		}
		list = append(list, transport{t.name, client})
	}
	return list, nil
}

// The figures of one measurement, each for one request.
var partNames = [...]string{"client_us", "triton_us", "model_us", "client_allocs", "client_alloc_bytes"}

// measure sends requests, so many at once.
func measure(client *tritonclient.Client, m *model, triton, atOnce, requests int) (f [len(partNames)]float64, err error) {
	if err := m.send(client, atOnce, 2*atOnce); err != nil { // connections and pools are warm then
		return f, err
	}
	processes, err := process.Children(triton)
	if err != nil {
		return f, err
	}
	now := func() (values [len(partNames)]float64) {
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		values[3], values[4] = float64(memory.Mallocs), float64(memory.TotalAlloc)
		values[0] = own()
		var failure error
		if values[1], failure = microseconds(triton); failure != nil {
			err = failure
		}
		for _, pid := range processes {
			used, failure := microseconds(pid)
			if failure != nil {
				err = failure
			}
			values[2] += used
		}
		return values
	}
	before := now()
	if err := m.send(client, atOnce, requests); err != nil {
		return f, err
	}
	after := now()
	for i := range f {
		f[i] = (after[i] - before[i]) / float64(requests)
	}
	return f, err
}

// microseconds of processor time that a process has used.
func microseconds(pid int) (float64, error) {
	used, err := process.CPU(pid)
	return float64(used) / 1e3, err
}

// send sends requests to the model, so many at once.
func (m *model) send(client *tritonclient.Client, atOnce, requests int) error {
	var left atomic.Int64
	left.Store(int64(requests))
	var wg sync.WaitGroup
	failures := make([]error, atOnce)
	for i := range atOnce {
		wg.Go(func() {
			for left.Add(-1) >= 0 && failures[i] == nil {
				answer, err := client.Infer(context.Background(), &m.request)
				if failures[i] = err; err == nil {
					answer.Release()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(failures...)
}
