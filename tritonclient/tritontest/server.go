// Package tritontest is a Triton for unit tests: it speaks real gRPC on the
// loopback interface and answers what a test tells it to. What a real Triton
// does is for the end-to-end tests.
package tritontest

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
)

// Model is one model of the fake server.
type Model struct {
	// Config is what ModelConfig and, translated, ModelMetadata answer.
	Config *kserve.ModelConfig
	// Infer answers an inference; nil answers zeros of the configured shapes.
	Infer func(ctx context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error)
	// Load is asked how a load ends; nil lets it succeed.
	Load func(ctx context.Context) error
	// UnloadError is what an unload fails with.
	UnloadError error
}

var errFixed = status.Error(codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled")

// Server is a fake Triton, in explicit model control mode unless it is Fixed. Its
// fields may be set before Start; afterwards only through Update.
type Server struct {
	kserve.UnimplementedGRPCInferenceServiceServer

	ID     string
	Models map[string]*Model
	// SharedMemory tells that the server runs beside its clients and can open their
	// shared memory.
	SharedMemory bool
	// Fixed tells that the server has loaded its models at its start and takes no orders
	// about them: its mode is not the explicit one.
	Fixed bool

	mu       sync.Mutex
	loaded   map[string]bool
	unloaded map[string]int
	regions  map[string]*os.File
}

// Unloads is how often the model was to be unloaded.
func (s *Server) Unloads(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unloaded[model]
}

// Start serves until the test ends and returns the address.
func (s *Server) Start(t testing.TB) string {
	t.Helper()
	s.loaded, s.unloaded, s.regions = map[string]bool{}, map[string]int{}, map[string]*os.File{}
	for name := range s.Models {
		s.loaded[name] = s.Fixed
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kserve.RegisterGRPCInferenceServiceServer(server, s)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(s.Restart)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// Update changes the server while it runs.
func (s *Server) Update(change func(s *Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *Server) model(name string, mustBeLoaded bool) (*Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.Models[name]
	switch {
	case !ok:
		return nil, status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", name)
	case mustBeLoaded && !s.loaded[name]:
		return nil, status.Errorf(codes.NotFound, "Request for unknown model: '%s' has no available versions", name)
	}
	return m, nil
}

func (s *Server) ServerLive(context.Context, *kserve.ServerLiveRequest) (*kserve.ServerLiveResponse, error) {
	return &kserve.ServerLiveResponse{Live: true}, nil
}

func (s *Server) ServerMetadata(context.Context, *kserve.ServerMetadataRequest) (*kserve.ServerMetadataResponse, error) {
	return &kserve.ServerMetadataResponse{Name: s.ID, Version: "fake"}, nil
}

func (s *Server) ModelReady(_ context.Context, r *kserve.ModelReadyRequest) (*kserve.ModelReadyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &kserve.ModelReadyResponse{Ready: s.loaded[r.Name]}, nil
}

func (s *Server) ModelConfig(_ context.Context, r *kserve.ModelConfigRequest) (*kserve.ModelConfigResponse, error) {
	m, err := s.model(r.Name, true)
	if err != nil {
		return nil, err
	}
	return &kserve.ModelConfigResponse{Config: m.Config}, nil
}

func (s *Server) ModelMetadata(_ context.Context, r *kserve.ModelMetadataRequest) (*kserve.ModelMetadataResponse, error) {
	m, err := s.model(r.Name, true)
	if err != nil {
		return nil, err
	}
	answer := &kserve.ModelMetadataResponse{Name: r.Name, Versions: []string{"1"}, Platform: "fake"}
	tensor := func(name string, t kserve.DataType, dims []int64) *kserve.ModelMetadataResponse_TensorMetadata {
		return &kserve.ModelMetadataResponse_TensorMetadata{
			Name: name, Datatype: t.String()[len("TYPE_"):], Shape: append([]int64{-1}, dims...),
		}
	}
	for _, in := range m.Config.Input {
		answer.Inputs = append(answer.Inputs, tensor(in.Name, in.DataType, in.Dims))
	}
	for _, out := range m.Config.Output {
		answer.Outputs = append(answer.Outputs, tensor(out.Name, out.DataType, out.Dims))
	}
	return answer, nil
}

func (s *Server) RepositoryModelLoad(ctx context.Context, r *kserve.RepositoryModelLoadRequest) (*kserve.RepositoryModelLoadResponse, error) {
	m, err := s.model(r.ModelName, false)
	if err != nil {
		return nil, status.Error(codes.Internal, "failed to load '"+r.ModelName+"', failed to poll from model repository")
	}
	if m.Load != nil {
		if err := m.Load(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Fixed {
		return nil, errFixed
	}
	s.loaded[r.ModelName] = true
	return &kserve.RepositoryModelLoadResponse{}, nil
}

func (s *Server) RepositoryModelUnload(_ context.Context, r *kserve.RepositoryModelUnloadRequest) (*kserve.RepositoryModelUnloadResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unloaded[r.ModelName]++
	if s.Fixed {
		return nil, errFixed
	}
	if m, ok := s.Models[r.ModelName]; ok && m.UnloadError != nil {
		return nil, m.UnloadError
	}
	delete(s.loaded, r.ModelName)
	return &kserve.RepositoryModelUnloadResponse{}, nil
}

func (s *Server) ModelInfer(ctx context.Context, r *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
	m, err := s.model(r.ModelName, true)
	if err != nil {
		return nil, err
	}
	if err := s.fetch(r); err != nil {
		return nil, err
	}
	if m.Infer != nil {
		return m.Infer(ctx, r)
	}
	return Zeros(m.Config, r), nil
}

// Zeros is a well-formed answer to a request, of those of the FP32 outputs that it
// asks for.
func Zeros(config *kserve.ModelConfig, r *kserve.ModelInferRequest) *kserve.ModelInferResponse {
	answer := &kserve.ModelInferResponse{ModelName: r.ModelName, ModelVersion: "1", Id: r.Id}
	rows := r.Inputs[0].Shape[0]
	for _, out := range config.Output {
		asked := func(o *kserve.ModelInferRequest_InferRequestedOutputTensor) bool { return o.Name == out.Name }
		if len(r.Outputs) > 0 && !slices.ContainsFunc(r.Outputs, asked) {
			continue
		}
		size := 4 * int(rows)
		for _, d := range out.Dims {
			size *= int(d)
		}
		answer.Outputs = append(answer.Outputs, &kserve.ModelInferResponse_InferOutputTensor{
			Name: out.Name, Datatype: "FP32", Shape: append([]int64{rows}, out.Dims...),
		})
		answer.RawOutputContents = append(answer.RawOutputContents, make([]byte, size))
	}
	return answer
}
