package tritonclient_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// log is a log that can be read while it is written.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// beside is a server that can open shared memory, with a client that shares some for
// so many requests at once.
type beside struct {
	*tritonclient.Client
	server *tritontest.Server
	log    log
	// infer answers an inference; its inputs are fetched from where they are.
	infer atomic.Pointer[inferFunc]
	// shared counts the inferences whose inputs were in shared memory.
	shared atomic.Int64
}

func startBeside(t *testing.T, requests int) *beside {
	t.Helper()
	b := &beside{server: &tritontest.Server{ID: "s", SharedMemory: true}}
	b.answer(func(_ context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return tritontest.Zeros(config, r), nil
	})
	b.server.Models = map[string]*tritontest.Model{"m": {Config: config, Infer: func(ctx context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		if offset(r) >= 0 {
			b.shared.Add(1)
		}
		return (*b.infer.Load())(ctx, r)
	}}}
	var err error
	b.Client, err = tritonclient.New(b.server.Start(t), tritonclient.Options{SharedMemory: 0o600, Log: slog.New(slog.NewTextHandler(&b.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := b.LoadModel(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	b.share(t, requests)
	return b
}

func (b *beside) share(t *testing.T, requests int) {
	t.Helper()
	b.ShareMemory(t.Context(), tritonclient.SharedInputs{Model: "m", Inputs: request().Inputs, Requests: requests, Settle: time.Minute})
}

func (b *beside) answer(f inferFunc) { b.infer.Store(&f) }

// run sends a request and tells the place of its input in shared memory, -1 for none.
func (b *beside) run(t *testing.T) int {
	t.Helper()
	at := -2
	b.answer(func(_ context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		at = offset(r)
		if string(r.RawInputContents[0]) != "0123456789abcdef" {
			return nil, status.Errorf(codes.Internal, "the input is %q", r.RawInputContents)
		}
		return tritontest.Zeros(config, r), nil
	})
	if _, err := b.Infer(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	return at
}

// offset is where the first input of a request is in shared memory, -1 for none.
func offset(r *kserve.ModelInferRequest) int {
	p, ok := r.Inputs[0].Parameters["shared_memory_offset"]
	if !ok {
		return -1
	}
	return int(p.GetInt64Param())
}

// hold sends a request that is not answered before it is let go; end ends its call
// early.
func (b *beside) hold(t *testing.T) (at int, end func()) {
	t.Helper()
	entered := make(chan int)
	b.answer(func(ctx context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		entered <- offset(r)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Infer(ctx, request())
		done <- err
	}()
	select {
	case at = <-entered:
	case err := <-done:
		t.Fatal(err)
	}
	return at, func() {
		t.Helper()
		cancel()
		if err := <-done; kindOf(t, err) != tritonclient.Canceled {
			t.Errorf("got %v, want the cancellation", err)
		}
	}
}

// segmentsOf are the files of the segments that a process holds.
func segmentsOf(t *testing.T, process string) (paths []string) {
	t.Helper()
	open, err := filepath.Glob("/proc/" + process + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, descriptor := range open {
		if path, err := os.Readlink(descriptor); err == nil && strings.HasPrefix(path, "/dev/shm/histogate-tensors-") {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths) // the server of these tests is the same process
}

func TestInputsGoThroughSharedMemory(t *testing.T) {
	b := startBeside(t, 4)
	for range 3 {
		if at := b.run(t); at != 0 {
			t.Errorf("the input of a lone request is at %d, want 0", at)
		}
	}
	at, end := b.hold(t)
	if other := b.run(t); at != 0 || other == at || other < 0 {
		t.Errorf("two requests at once are at %d and %d", at, other)
	}
	end()
	if !strings.Contains(b.log.String(), "tensors go through shared memory") {
		t.Errorf("the log is %s", &b.log)
	}
	if b.shared.Load() != 5 {
		t.Errorf("%d of 5 requests were in shared memory", b.shared.Load())
	}
}

// A slot whose call ended early is not written to before the server is another one.
func TestSlotOfACallThatEndedEarly(t *testing.T) {
	b := startBeside(t, 2)
	at, end := b.hold(t)
	end()
	second := b.run(t)
	if at != 0 || second == at || second < 0 {
		t.Fatalf("after a call at %d ended early the next is at %d", at, second)
	}
	held, end := b.hold(t)
	if third := b.run(t); held != second || third != -1 {
		t.Errorf("both slots are taken, at %d, and a request is at %d, want it in the message", held, third)
	}
	end()
	// An error of the server is an answer.
	b.server.Restart()
	b.share(t, 2)
	if first := b.run(t); first < 0 {
		t.Errorf("with a new server a request is at %d", first)
	}
	b.answer(func(context.Context, *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return nil, status.Error(codes.Internal, "out of memory")
	})
	for range 3 {
		if _, err := b.Infer(t.Context(), request()); kindOf(t, err) != tritonclient.ExecuteFailed {
			t.Fatal(err)
		}
	}
	if last := b.run(t); last < 0 {
		t.Errorf("after answers that are errors a request is at %d", last)
	}
}

// A server that was started again knows no region. That shows at a request, which is
// sent once more: the server has done nothing with it.
func TestServerThatForgot(t *testing.T) {
	b := startBeside(t, 2)
	b.run(t)
	b.server.Restart()
	if at := b.run(t); at != -1 {
		t.Errorf("the request is at %d, want it in the message", at)
	}
	if at := b.run(t); at != 0 || b.server.Regions() != 1 {
		t.Errorf("the next request is at %d, with %d regions", at, b.server.Regions())
	}
	b.server.Restart()
	b.share(t, 2)
	b.share(t, 2)
	if at := b.run(t); at != 0 || b.server.Regions() != 1 {
		t.Errorf("after it was shared again a request is at %d, with %d regions", at, b.server.Regions())
	}
	b.server.Update(func(s *tritontest.Server) { s.SharedMemory = false })
	b.server.Restart()
	for range 2 {
		if at := b.run(t); at != -1 {
			t.Errorf("the server cannot open it any more, and a request is at %d", at)
		}
	}
	if lines := strings.Count(b.log.String(), "forgotten"); lines != 1 {
		t.Errorf("%d lines tell of it:\n%s", lines, &b.log)
	}
}

// Where the server cannot open a segment, as on another machine, all goes in messages.
func TestServerElsewhere(t *testing.T) {
	b := startBeside(t, 2)
	b.server.Update(func(s *tritontest.Server) { s.SharedMemory = false })
	b.server.Restart()
	b.share(t, 2)
	for range 2 {
		if at := b.run(t); at != -1 {
			t.Errorf("a request is at %d, want it in the message", at)
		}
	}
	if !strings.Contains(b.log.String(), "tensors go in messages") || !strings.Contains(b.log.String(), "Unable to open shared memory region") {
		t.Errorf("the log does not say why: %s", &b.log)
	}
}

// Without the option nothing is shared, and no file is made.
func TestSharedMemoryIsAnOption(t *testing.T) {
	client, ctx := connect(t, func(_ context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		if offset(r) >= 0 || len(r.RawInputContents) != 1 {
			return nil, status.Error(codes.Internal, "the input is not in the message")
		}
		return tritontest.Zeros(config, r), nil
	})
	client.ShareMemory(ctx, tritonclient.SharedInputs{Model: "m", Inputs: request().Inputs, Requests: 2})
	if _, err := client.Infer(ctx, request()); err != nil {
		t.Error(err)
	}
	if made := segmentsOf(t, "self"); made != nil {
		t.Errorf("%v were made", made)
	}
}

func TestCloseRemovesSegments(t *testing.T) {
	b := startBeside(t, 2)
	b.run(t)
	made := segmentsOf(t, "self")
	if b.server.Regions() != 1 || len(made) != 1 {
		t.Fatalf("%d regions, files %v", b.server.Regions(), made)
	}
	b.Close()
	if b.server.Regions() != 0 {
		t.Errorf("%d regions are left", b.server.Regions())
	}
	for _, path := range made {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// maker is set in the process that TestSegmentsOfAKilledProcess kills: the address of
// its server.
const maker = "TRITONCLIENT_TEST_MAKER"

func TestSegmentsOfAKilledProcess(t *testing.T) {
	if address := os.Getenv(maker); address != "" {
		client, err := tritonclient.New(address, tritonclient.Options{SharedMemory: 0o600})
		if err != nil {
			t.Fatal(err)
		}
		client.ShareMemory(t.Context(), tritonclient.SharedInputs{Model: "m", Inputs: request().Inputs, Requests: 2})
		fmt.Println("shared")
		select {}
	}
	server := &tritontest.Server{ID: "s", SharedMemory: true, Models: map[string]*tritontest.Model{"m": {Config: config}}}
	address := server.Start(t)
	process := exec.Command(os.Args[0], "-test.run=^TestSegmentsOfAKilledProcess$")
	process.Env = append(os.Environ(), maker+"="+address)
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	open := func() *tritonclient.Client {
		client, err := tritonclient.New(address, tritonclient.Options{SharedMemory: 0o600})
		if err != nil {
			t.Fatal(err)
		}
		client.ShareMemory(t.Context(), tritonclient.SharedInputs{Model: "m", Inputs: request().Inputs, Requests: 2})
		return client
	}
	open().Close()
	made := segmentsOf(t, strconv.Itoa(process.Process.Pid))
	if len(made) != 1 || server.Regions() != 1 {
		t.Fatalf("the process has made %v, and %d regions are registered", made, server.Regions())
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // it was killed
	for _, path := range made {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("the killed process has removed its segment: %v", err)
		}
	}
	client := open()
	defer client.Close()
	for _, path := range made {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if server.Regions() != 1 {
		t.Errorf("%d regions, want that of the new client alone", server.Regions())
	}
}
