package tritonclient

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"histogate/tritonclient/kserve"
)

// sharedMemory is where POSIX shared memory has its names.
const sharedMemory = "/dev/shm"

const (
	closeTimeout    = time.Second     // of what a server is told at the end
	registerTimeout = 5 * time.Second // of a segment being told anew
)

// SharedInputs is what shared memory is set up for.
type SharedInputs struct {
	Model    string
	Inputs   []TensorSpec  // of each request
	Requests int           // whose inputs have room at once
	Settle   time.Duration // after which a request that was given up is no longer read
}

// slotBytes is what the inputs of one request take.
func (of *SharedInputs) slotBytes() (size int) {
	for i := range of.Inputs {
		size += aligned(of.Inputs[i].bytes())
	}
	return size
}

// CheckSharedMemory tells whether there is room in shared memory for all of this at once,
// and takes none. Where there is not, what finds no room goes in messages.
func CheckSharedMemory(all []SharedInputs) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(sharedMemory, &fs); err != nil {
		return fmt.Errorf("%s: %w", sharedMemory, err)
	}
	return fits(all, spare(&fs))
}

// CheckServerMemory tells whether a server on this machine can move these tensors, all at
// once, between itself and its backends: they go through shared memory, and there is no
// other way for them. It takes none.
func CheckServerMemory(tensors []TensorSpec) error { return holds(sharedMemory, tensors) }

func holds(folder string, tensors []TensorSpec) error {
	const mb = 1 << 20
	const writeAndSearch = 2 | 1 // W_OK and X_OK of access(2)
	if err := syscall.Access(folder, writeAndSearch); err != nil {
		return fmt.Errorf("%s must be a file system in memory that this process may write to: mount a tmpfs there, of mode 1777: %w", folder, err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	var need int64
	for i := range tensors {
		need += int64(tensors[i].bytes())
	}
	if size := int64(fs.Blocks) * fs.Bsize; fs.Blocks > 0 && size < need { // 0: it has no bound
		return fmt.Errorf("%s has %d MB, and one full batch of every model, inputs and outputs, takes %d MB; make it at least as large, with --shm-size for a container",
			folder, size/mb, (need+mb-1)/mb)
	}
	return nil
}

func fits(all []SharedInputs, spare int64) error {
	const mb = 1 << 20
	var need int64
	for i := range all {
		need += int64(all[i].slotBytes() * all[i].Requests)
	}
	if need <= spare {
		return nil
	}
	return fmt.Errorf("%s has %d MB to spare, half of it being left to others, and the models' inputs can take %d MB; "+
		"give it %d MB more, with --shm-size for a container", sharedMemory, max(0, spare)/mb, (need+mb-1)/mb, (2*(need-spare)+mb-1)/mb)
}

// ShareMemory has the inputs of a model's inferences handed over in shared memory from
// now on, if [Options] ask for it and the server can be on this machine. It is to be
// called whenever the model has been loaded: a server that was started again knows
// nothing of what was shared. Where it does not work the inputs go in the messages,
// as they do for a request that finds no room; the log says why.
//
// Outputs stay in the messages. So a server only ever reads shared memory, and what
// an answer that comes late says cannot end up in another's.
func (c *Client) ShareMemory(ctx context.Context, of SharedInputs) {
	if c.options.SharedMemory == 0 {
		return
	}
	s, err := c.segmentFor(of)
	if err == nil {
		c.forgetStale(ctx)
		err = c.register(ctx, s)
	}
	if err != nil {
		c.log.Info("tensors go in messages", "model", of.Model, "reason", err)
		return
	}
	c.log.Info("tensors go through shared memory", "model", of.Model)
}

// segmentFor is the model's segment, made when it is first asked for.
func (c *Client) segmentFor(of SharedInputs) (*segment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.segments[of.Model]; s != nil {
		return s, nil
	}
	s, err := newSegment(sharedMemory, c.options.SharedMemory, of.slotBytes(), of.Requests, of.Settle, c.log.With("model", of.Model))
	if err != nil {
		return nil, err
	}
	c.segments[of.Model] = s
	return s, nil
}

// register tells the server of a segment. Its name is never taken back before the end
// nor used for anything else, so that it need not be found out whether the server reads
// from it at the moment: Triton refuses to forget a region that is in use, or does so
// later.
func (c *Client) register(ctx context.Context, s *segment) error {
	const op = "SystemSharedMemoryRegister"
	_, err := c.rpc.SystemSharedMemoryRegister(ctx, &kserve.SystemSharedMemoryRegisterRequest{
		Name: s.name, Key: "/" + s.name, ByteSize: uint64(s.size * s.most),
	})
	failure := failureOf(ctx, op, "", err)
	switch failure.Code {
	case codes.OK: // it is new to the server
		s.forgotten()
	case codes.AlreadyExists:
	default:
		s.registered.Store(false)
		return failure
	}
	s.registered.Store(true)
	return nil
}

// usable is the segment for a model's inputs, nil where they go in the messages.
func (c *Client) usable(model string) *segment {
	c.mu.RLock()
	s := c.segments[model]
	c.mu.RUnlock()
	if s == nil || !s.registered.Load() {
		return nil
	}
	return s
}

// SharedSlots are how many of a model's requests have had room in shared memory at once,
// and how many can have; both are 0 where its inputs go in messages.
func (c *Client) SharedSlots(model string) (made, most int) {
	if s := c.usable(model); s != nil {
		return s.slots()
	}
	return 0, 0
}

// Sent are the inferences that were sent so far: with their inputs in shared memory, and
// in messages.
func (c *Client) Sent() (shared, messages uint64) { return c.sentShared.Load(), c.sentMessages.Load() }

// isForgotten tells that a server does not know a region: it was started anew, and has
// looked at nothing else of the request.
func isForgotten(err *Error) bool {
	return err.Code == codes.NotFound && strings.Contains(err.Detail, "Unable to find shared memory region")
}

// closeSegments has the server let go of all segments, and removes their files. One
// that the server still uses is left for the next process to remove.
func (c *Client) closeSegments() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.segments {
		err := c.forget(ctx, s.name)
		s.close(err != nil && err.Kind != Unavailable)
	}
	clear(c.segments)
}

// forgetStale has the server let go of segments whose maker was killed. It may run on
// and still have them mapped.
func (c *Client) forgetStale(ctx context.Context) {
	c.mu.Lock()
	stale := c.stale
	c.stale = nil
	c.mu.Unlock()
	for _, region := range stale {
		if err := c.forget(ctx, region); err != nil {
			c.log.Warn("shared memory of an earlier process is not freed before the server ends", "region", region, "error", err)
		}
	}
}

func (c *Client) forget(ctx context.Context, region string) *Error {
	_, err := c.rpc.SystemSharedMemoryUnregister(ctx, &kserve.SystemSharedMemoryUnregisterRequest{Name: region})
	if err == nil {
		return nil
	}
	return failureOf(ctx, "SystemSharedMemoryUnregister", "", err)
}
