package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"histogate/tests/process"
	"histogate/tritonclient/kserve"
)

// direct is the least that an inference costs a client in Go: one message, made
// beforehand, sent again and again, whose answer is looked at by nobody. Its tensor is
// in the message, or in a segment of shared memory that it shares with all others.
type direct struct {
	conn    *grpc.ClientConn
	message []byte
	segment string // the file; empty where the tensor is in the message
}

// newDirect makes the request for h1's embedding of a tile.
func newDirect(ctx context.Context, address string, shared bool) (_ *direct, err error) {
	const bytesOfTile = 4 * 3 * tileSide * tileSide
	tensor := bytes.Repeat([]byte{0, 0, 0, 63}, bytesOfTile/4) // 0.5
	d := &direct{}
	if d.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	input := &kserve.ModelInferRequest_InferInputTensor{Name: "tile", Datatype: "FP32", Shape: []int64{1, 3, tileSide, tileSide}}
	request := &kserve.ModelInferRequest{
		ModelName: "h1",
		Inputs:    []*kserve.ModelInferRequest_InferInputTensor{input},
		Outputs:   []*kserve.ModelInferRequest_InferRequestedOutputTensor{{Name: "embedding"}},
	}
	if shared {
		name := "histogate-bench-" + rand.Text()
		d.segment = filepath.Join("/dev/shm", name)
		if err := os.WriteFile(d.segment, tensor, 0o600); err != nil {
			return nil, err
		}
		rpc := kserve.NewGRPCInferenceServiceClient(d.conn)
		if _, err := rpc.SystemSharedMemoryRegister(ctx, &kserve.SystemSharedMemoryRegisterRequest{Name: name, Key: "/" + name, ByteSize: bytesOfTile}); err != nil {
			return nil, err
		}
		input.Parameters = map[string]*kserve.InferParameter{
			"shared_memory_region":    {ParameterChoice: &kserve.InferParameter_StringParam{StringParam: name}},
			"shared_memory_byte_size": {ParameterChoice: &kserve.InferParameter_Int64Param{Int64Param: bytesOfTile}},
		}
	} else {
		request.RawInputContents = [][]byte{tensor}
	}
	d.message, err = proto.Marshal(request)
	return d, err
}

func (d *direct) close() error {
	err := d.conn.Close()
	if d.segment != "" {
		err = errors.Join(err, os.Remove(d.segment))
	}
	return err
}

// bare sends a message as it is and drops the answer.
type bare struct{}

func (bare) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bare) Unmarshal(mem.BufferSlice, any) error { return nil }
func (bare) Name() string                         { return "proto" }
func (d *direct) infer(ctx context.Context) error {
	return d.conn.Invoke(ctx, kserve.GRPCInferenceService_ModelInfer_FullMethodName, d.message, nil, grpc.ForceCodecV2(bare{}))
}

// run keeps so many inferences in flight for a while, and tells what one costs this
// process.
func (d *direct) run(ctx context.Context, inFlight int, each time.Duration) (seen outcome, cpuMS float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, each+time.Minute)
	defer cancel()
	before, err := process.CPU(os.Getpid())
	if err != nil {
		return seen, 0, err
	}
	var (
		mu      sync.Mutex
		callers sync.WaitGroup
	)
	began := time.Now()
	for range inFlight {
		callers.Go(func() {
			var mine []time.Duration
			var failure error
			for start := time.Now(); failure == nil && start.Before(began.Add(each)); start = time.Now() {
				if failure = d.infer(ctx); failure == nil {
					mine = append(mine, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			seen.latency = append(seen.latency, mine...)
			err = errors.Join(err, failure)
		})
	}
	callers.Wait()
	if err != nil {
		return seen, 0, fmt.Errorf("a direct inference: %w", err)
	}
	after, err := process.CPU(os.Getpid())
	seen.took, seen.answers = time.Since(began), len(seen.latency)
	slices.Sort(seen.latency)
	return seen, millis(after-before) / math.Max(1, float64(seen.answers)), err
}
