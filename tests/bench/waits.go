package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"histogate/tests/stack"
	"histogate/tritonclient"
)

// What the wait of Triton's batcher for more rows costs a lone request, and what it
// brings to a device that many ask.

var (
	waitsMS       = []string{"0", "1", "2", "5", "10", "30"}
	waitsInFlight = []int{1, 4, 16, 64, 256}
)

// waits prints, for each wait and number of requests in flight, medians over the rounds.
func waits(ctx context.Context, batch, row float64, rounds int, each time.Duration) (err error) {
	pictures, err := tiles()
	if err != nil {
		return err
	}
	requests := embeddings(pictures)
	folder, err := os.MkdirTemp("", "histogate-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	o, err := stack.SlowDevice(folder, batch, row)
	if err != nil {
		return err
	}
	type point struct{ perSecond, p50, p99, batch float64 }
	points := map[string]map[int][]point{}
	for range rounds {
		for _, ms := range waitsMS {
			with := o
			with.Env = []string{"MODELS=h1", "BATCH_MAX_WAIT_MS=" + ms}
			err := withStack(ctx, with, func(s *stack.Stack) error {
				if points[ms] == nil {
					points[ms] = map[int][]point{}
				}
				for _, n := range waitsInFlight {
					seen, batch, err := batched(ctx, s, requests, n, each)
					if err != nil {
						return err
					}
					points[ms][n] = append(points[ms][n], point{seen.perSecond(), millis(seen.percentile(50)), millis(seen.percentile(99)), batch})
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	fmt.Printf("device: %g ms a batch and %g ms a tile; medians of %d rounds\n", batch, row, rounds)
	fmt.Printf("%8s %9s %9s %9s %9s %7s\n", "wait_ms", "in_flight", "tiles/s", "p50_ms", "p99_ms", "batch")
	for _, n := range waitsInFlight {
		for _, ms := range waitsMS {
			of := func(field func(point) float64) float64 {
				values := make([]float64, 0, rounds)
				for _, p := range points[ms][n] {
					values = append(values, field(p))
				}
				return median(values)
			}
			fmt.Printf("%8s %9d %9.1f %9.1f %9.1f %7.1f\n", ms, n,
				of(func(p point) float64 { return p.perSecond }), of(func(p point) float64 { return p.p50 }),
				of(func(p point) float64 { return p.p99 }), of(func(p point) float64 { return p.batch }))
		}
	}
	return nil
}

// withStack runs a measurement on a stack that it starts and stops.
func withStack(ctx context.Context, o stack.Options, measure func(*stack.Stack) error) error {
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := stack.Start(starting, o)
	if err != nil {
		return err
	}
	err = measure(s)
	if code := s.Stop(); code != 0 && err == nil {
		err = fmt.Errorf("the gateway ended with exit code %d:\n%s", code, s.Output())
	}
	return err
}

// batched is a load, and the mean number of rows in a batch during it.
func batched(ctx context.Context, s *stack.Stack, requests [][]byte, inFlight int, each time.Duration) (*outcome, float64, error) {
	client, err := tritonclient.New(s.TritonAddress(), tritonclient.Options{})
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	before, err := client.ModelStatistics(ctx, "h1")
	if err != nil {
		return nil, 0, err
	}
	seen := drive(strings.TrimPrefix(s.URL, "http://"), requests, inFlight, each)
	if err := seen.whole(); err != nil {
		return nil, 0, err
	}
	after, err := client.ModelStatistics(ctx, "h1")
	if err != nil {
		return nil, 0, err
	}
	return seen, float64(after.InferenceCount-before.InferenceCount) / float64(after.ExecutionCount-before.ExecutionCount), nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// median of an even number of values is the mean of the two in the middle.
func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
