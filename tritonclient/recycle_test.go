package tritonclient_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// slowConn is a connection that takes what is written in small bites and rests
// between them, so that messages pile up in gRPC's write queue.
type slowConn struct {
	net.Conn
	rest time.Duration
}

func (c slowConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		var bite int
		bite, err = c.Conn.Write(p[:min(len(p), 32<<10)])
		n, p = n+bite, p[bite:]
		time.Sleep(c.rest)
	}
	return n, err
}

// Calls end at any moment, before, while and after their tensor is written, on
// connections that are slow or break; their buffers and slots go to others. Every
// tensor that the server gets must be all of one call's.
func TestMemoryIsNotUsedForAnotherCallTooEarly(t *testing.T) {
	const size, callers, enough = 300_000, 8, 200
	for name, mode := range map[string]func(*tritontest.Server, *tritonclient.Options){
		"messages":      func(*tritontest.Server, *tritonclient.Options) {},
		"shared memory": func(s *tritontest.Server, o *tritonclient.Options) { s.SharedMemory, o.SharedMemory = true, 0o600 },
	} {
		t.Run(name, func(t *testing.T) {
			var got, mixed atomic.Int64
			server := &tritontest.Server{ID: "s", Models: map[string]*tritontest.Model{"m": {Config: config, Infer: func(_ context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
				got.Add(1)
				id, _ := strconv.Atoi(r.Id)
				if data := r.RawInputContents[0]; !bytes.Equal(data, bytes.Repeat([]byte{byte(id)}, size)) {
					mixed.Add(1)
					return nil, status.Error(codes.Internal, "a tensor of several calls")
				}
				return tritontest.Zeros(config, r), nil
			}}}}
			var mu sync.Mutex
			var conns []net.Conn
			options := tritonclient.Options{Dial: func(ctx context.Context, target string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
				if err != nil {
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, conn)
				return slowConn{conn, 100 * time.Microsecond}, nil
			}}
			mode(server, &options)
			client, err := tritonclient.New(server.Start(t), options)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if err := client.LoadModel(t.Context(), "m"); err != nil {
				t.Fatal(err)
			}
			inputs := []tritonclient.TensorSpec{{Name: "x", Datatype: tritonclient.Uint8, Shape: []int64{1, size}}}
			client.ShareMemory(t.Context(), tritonclient.SharedInputs{Model: "m", Inputs: inputs, Requests: 64, Settle: 2 * time.Second})
			var wg sync.WaitGroup
			var ids, answered, ended atomic.Int64
			stop := time.Now().Add(20 * time.Second) // of a machine that is busy
			for caller := range callers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(caller), 1))
					for (answered.Load() < enough || ended.Load() < enough) && time.Now().Before(stop) {
						id := int(ids.Add(1))
						request := request()
						request.ID, request.Inputs = strconv.Itoa(id), inputs
						request.Write = func(_ int, dst []byte) { copy(dst, bytes.Repeat([]byte{byte(id)}, size)) }
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(100))*time.Millisecond)
						if answer, err := client.Infer(ctx, request); err == nil {
							answered.Add(1)
							answer.Release()
						} else {
							ended.Add(1)
						}
						cancel()
						if r.IntN(200) == 0 { // the connection breaks
							mu.Lock()
							_ = conns[len(conns)-1].Close()
							mu.Unlock()
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d calls were answered, %d ended early; the server got %d", answered.Load(), ended.Load(), got.Load())
			if mixed.Load() > 0 || answered.Load() == 0 || ended.Load() == 0 {
				t.Errorf("%d tensors of several calls", mixed.Load())
			}
		})
	}
}
