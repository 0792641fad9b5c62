package tritonclient

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"histogate/tritonclient/kserve"
)

// Options tune a client. The zero value is usable.
type Options struct {
	// MaxReceiveBytes bounds one answer; 0 means 64 MiB. gRPC's own default of
	// 4 MiB is less than a batch of masks.
	MaxReceiveBytes int
	// Dial connects to the server; nil means TCP to the target. It is asked anew
	// for each connection, so the server may move.
	Dial func(ctx context.Context, target string) (net.Conn, error)
	// SharedMemory is the mode of the files in shared memory that inputs are handed over
	// in, by [Client.ShareMemory]: 0600 where the server has this process's user,
	// 0666 where it may have another. 0 means none. What a process that was killed
	// has left there is removed.
	SharedMemory os.FileMode
	// Log is told where tensors go; nil means nobody.
	Log *slog.Logger
}

// A window takes a whole answer, a mask of 1 MB for one, and saves it round trips. For
// buffers gRPC's 32 KiB stay: what has gone through them is still in the cache.
const (
	window       = 4 << 20
	maxReceive   = 64 << 20
	minReconnect = 50 * time.Millisecond
	maxReconnect = 500 * time.Millisecond
)

// Client talks to one Triton. It is safe for concurrent use.
type Client struct {
	conn        *grpc.ClientConn
	rpc         kserve.GRPCInferenceServiceClient
	inferOption grpc.CallOption
	buffers     Buffers
	options     Options
	log         *slog.Logger

	sentShared, sentMessages atomic.Uint64

	mu       sync.RWMutex
	segments map[string]*segment // by model
	stale    []string            // regions that a server may still know, of segments without a maker
}

// New makes a client for the server at target, a host:port. It does no I/O:
// the first call connects, and a lost connection is made again by itself.
func New(target string, o Options) (*Client, error) {
	if o.MaxReceiveBytes == 0 {
		o.MaxReceiveBytes = maxReceive
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // co-located
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxReceiveBytes)),
		// A Triton that was started again next door should be found at once.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minReconnect, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect},
			MinConnectTimeout: time.Second,
		}),
	}
	if o.Dial != nil {
		options = append(options, grpc.WithContextDialer(o.Dial))
	}
	conn, err := grpc.NewClient("passthrough:///"+target, options...)
	if err != nil {
		return nil, err
	}
	c := &Client{
		conn:        conn,
		rpc:         kserve.NewGRPCInferenceServiceClient(conn),
		inferOption: grpc.ForceCodecV2(codec{}),
		options:     o,
		log:         o.Log,
		segments:    map[string]*segment{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if o.SharedMemory != 0 {
		c.stale = removeSegments(sharedMemory)
	}
	return c, nil
}

// Reconnect has a lost connection made again now. It is for a caller that knows
// the server to be back; else the next attempt is a fraction of a second away.
func (c *Client) Reconnect() { c.conn.ResetConnectBackoff() }

// Close ends the connections; calls in flight fail. Segments of shared memory are
// removed.
func (c *Client) Close() error {
	c.closeSegments()
	return c.conn.Close()
}

// ServerMetadata is the server's id, version and extensions.
func (c *Client) ServerMetadata(ctx context.Context) (*kserve.ServerMetadataResponse, error) {
	r, err := c.rpc.ServerMetadata(ctx, &kserve.ServerMetadataRequest{})
	return r, wrap(ctx, "ServerMetadata", "", err)
}

// ServerLive reports whether the server answers at all.
func (c *Client) ServerLive(ctx context.Context) (bool, error) {
	r, err := c.rpc.ServerLive(ctx, &kserve.ServerLiveRequest{})
	return r.GetLive(), wrap(ctx, "ServerLive", "", err)
}

// ModelReady reports whether the model is loaded. It says nothing of whether
// inference works: a model whose process died stays ready for Triton.
func (c *Client) ModelReady(ctx context.Context, model string) (bool, error) {
	r, err := c.rpc.ModelReady(ctx, &kserve.ModelReadyRequest{Name: model})
	return r.GetReady(), wrap(ctx, "ModelReady", model, err)
}

// ModelMetadata is the model's inputs and outputs as Triton knows them, the
// batch dimension (-1) included.
func (c *Client) ModelMetadata(ctx context.Context, model string) (*kserve.ModelMetadataResponse, error) {
	r, err := c.rpc.ModelMetadata(ctx, &kserve.ModelMetadataRequest{Name: model})
	return r, wrap(ctx, "ModelMetadata", model, err)
}

// ModelConfig is the configuration that the model runs with.
func (c *Client) ModelConfig(ctx context.Context, model string) (*kserve.ModelConfig, error) {
	r, err := c.rpc.ModelConfig(ctx, &kserve.ModelConfigRequest{Name: model})
	return r.GetConfig(), wrap(ctx, "ModelConfig", model, err)
}

// ModelStatistics counts the model's inferences and executions since it was
// loaded: their ratio is the mean batch.
func (c *Client) ModelStatistics(ctx context.Context, model string) (*kserve.ModelStatistics, error) {
	const op = "ModelStatistics"
	r, err := c.rpc.ModelStatistics(ctx, &kserve.ModelStatisticsRequest{Name: model})
	if err != nil {
		return nil, wrap(ctx, op, model, err)
	}
	if len(r.ModelStats) != 1 {
		return nil, &Error{Op: op, Model: model, Kind: BadOutput, Detail: "not the statistics of one model"}
	}
	return r.ModelStats[0], nil
}

// LoadModel loads the model or, if its files changed, loads it again. A loaded
// model whose process died stays as it is: unload it first.
func (c *Client) LoadModel(ctx context.Context, model string) error {
	_, err := c.rpc.RepositoryModelLoad(ctx, &kserve.RepositoryModelLoadRequest{ModelName: model})
	return wrap(ctx, "RepositoryModelLoad", model, err)
}

// UnloadModel takes the model out of service.
func (c *Client) UnloadModel(ctx context.Context, model string) error {
	_, err := c.rpc.RepositoryModelUnload(ctx, &kserve.RepositoryModelUnloadRequest{ModelName: model})
	return wrap(ctx, "RepositoryModelUnload", model, err)
}
