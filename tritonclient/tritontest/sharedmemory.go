package tritontest

import (
	"context"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"histogate/tritonclient/kserve"
)

func (s *Server) SystemSharedMemoryRegister(_ context.Context, r *kserve.SystemSharedMemoryRegisterRequest) (*kserve.SystemSharedMemoryRegisterResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.regions[r.Name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "shared memory region '%s' already in manager", r.Name)
	}
	folder := "/dev/shm"
	if !s.SharedMemory {
		folder = "/nonexistent"
	}
	file, err := os.Open(filepath.Join(folder, r.Key))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "Unable to open shared memory region: '%s'", r.Key)
	}
	s.regions[r.Name] = file
	return &kserve.SystemSharedMemoryRegisterResponse{}, nil
}

func (s *Server) SystemSharedMemoryUnregister(_ context.Context, r *kserve.SystemSharedMemoryUnregisterRequest) (*kserve.SystemSharedMemoryUnregisterResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Name == "" {
		return nil, status.Error(codes.InvalidArgument, "that would be all regions, those of other clients too")
	}
	_ = s.regions[r.Name].Close() // of one that is not there, too
	delete(s.regions, r.Name)
	return &kserve.SystemSharedMemoryUnregisterResponse{}, nil
}

// Restart has the server forget all regions.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, region := range s.regions {
		_ = region.Close() // it was only read
	}
	clear(s.regions)
}

// Regions is the number of regions that are registered.
func (s *Server) Regions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.regions)
}

// fetch puts the inputs that are in shared memory where those of a message are.
func (s *Server) fetch(r *kserve.ModelInferRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw := r.RawInputContents
	r.RawInputContents = nil
	for _, in := range r.Inputs {
		name := in.Parameters["shared_memory_region"].GetStringParam()
		if name == "" {
			if len(raw) > 0 {
				r.RawInputContents, raw = append(r.RawInputContents, raw[0]), raw[1:]
			}
			continue
		}
		region := s.regions[name]
		if region == nil {
			return status.Errorf(codes.NotFound, "Unable to find shared memory region: '%s'", name)
		}
		data := make([]byte, in.Parameters["shared_memory_byte_size"].GetInt64Param())
		if _, err := region.ReadAt(data, in.Parameters["shared_memory_offset"].GetInt64Param()); err != nil {
			return status.Errorf(codes.InvalidArgument, "Invalid offset + byte size for shared memory region: '%s'", name)
		}
		r.RawInputContents = append(r.RawInputContents, data)
	}
	return nil
}
