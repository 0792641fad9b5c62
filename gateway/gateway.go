package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"

	"histogate/tritonclient"
)

const (
	headerBytes = 16 << 10         // of one request's headers
	idleTimeout = 75 * time.Second // above what clients keep a connection for
)

// Gateway serves models over HTTP. Make one with [New].
type Gateway struct {
	cfg       *Config
	built     string // the model repository, where it was made here; empty elsewhere
	log       *slog.Logger
	models    *models
	triton    *tritonclient.Client
	child     *child // nil where something else runs Triton
	metrics   *metrics
	admission *admission
	bodies    *bodies
	app       *fiber.App

	connections connections
	draining    atomic.Bool
	// pending is the parent of every request's context.
	pending       context.Context
	cancelPending context.CancelFunc
}

// New makes a gateway of a configuration. It reads the models' specs, whose
// mistakes it reports all at once, and connects to nothing yet. A model repository
// that it has to make is removed when [Gateway.Serve] ends.
func New(cfg *Config, log *slog.Logger) (*Gateway, error) {
	cfg, broken, built, err := makeRepository(cfg, log)
	if err != nil {
		return nil, err
	}
	served, err := readModels(cfg, broken)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(built))
	}
	g := &Gateway{
		cfg:         cfg,
		built:       built,
		log:         log,
		models:      served,
		admission:   newAdmission(cfg.MaxInFlight, cfg.PreprocessWorkers, cfg.MaxInFlightBytes),
		connections: connections{quiet: map[net.Conn]time.Time{}},
	}
	g.bodies = &bodies{limit: cfg.MaxBodyBytes, admission: g.admission}
	g.metrics = newMetrics(func() float64 { return float64(len(g.admission.inFlight)) })
	g.pending, g.cancelPending = context.WithCancel(context.Background())
	options := tritonclient.Options{Log: log, SharedMemory: 0o666}
	if cfg.TritonServer != "" {
		g.child = &child{cfg: cfg, log: log, started: g.metrics.starts.Inc}
		options.Dial, options.SharedMemory = g.child.dial, 0o600
	}
	if cfg.TensorTransport == transportRaw {
		options.SharedMemory = 0
	}
	if g.triton, err = tritonclient.New(cfg.TritonAddress, options); err != nil {
		return nil, fmt.Errorf("TRITON_ADDRESS: %w", err)
	}
	if g.child != nil {
		g.child.control = g.triton
	}
	loading := make(chan struct{}, 1)
	for _, m := range served.list {
		m.health = newHealth(m, g.triton, g.child, loading, g.metrics, log)
		g.metrics.parked(m.spec.Name, m.window.parked)
		if m.preparer != nil && m.spec.TakesBulkRNA() {
			g.metrics.rnaCache(m.spec.Name, m.preparer.RNACacheStats)
		}
	}
	g.app = fiber.New(fiber.Config{
		DisableStartupMessage: true,
		CaseSensitive:         true,
		UnescapePath:          true,
		ErrorHandler:          g.fail, // of what is refused before it is routed
		StreamRequestBody:     true,   // see bodies
		BodyLimit:             cfg.MaxBodyBytes,
		ReadBufferSize:        headerBytes,
		ReadTimeout:           cfg.RequestTimeout,
		WriteTimeout:          cfg.RequestTimeout, // of a client that does not read
		IdleTimeout:           idleTimeout,
		// A multipart body is refused by its type, not taken apart first.
		DisablePreParseMultipartForm: true,
	})
	g.app.Server().ConnState = g.connections.changed
	g.routes()
	// The framework answers an unknown method itself, in its own way.
	g.app.Server().Handler = g.onlyKnownMethods(g.app.Handler())
	return g, nil
}

func (g *Gateway) onlyKnownMethods(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	known := map[string]bool{}
	for _, method := range fiber.DefaultMethods {
		known[method] = true
	}
	return func(ctx *fasthttp.RequestCtx) {
		if known[string(ctx.Method())] {
			next(ctx)
			return
		}
		c := g.app.AcquireCtx(ctx)
		defer g.app.ReleaseCtx(c)
		_ = g.fail(c, refuse(CodeMethodNotAllowed, "there is no such method; POST and GET are taken")) // it has been written
	}
}

// Serve serves until the context ends. Then it takes no new connection, answers
// what it has accepted, cancels what is left when DRAIN_LIMIT has passed, and
// stops Triton last. It returns nil after such an end, and an error when it
// could not start: a port is taken, Triton does not run, or a model's contract
// is not the one that Triton has.
func (g *Gateway) Serve(ctx context.Context) error {
	api, err := listen(g.cfg.Host, g.cfg.Port, "PORT")
	if err != nil {
		return err
	}
	defer api.Close()
	admin, err := listen(g.cfg.Host, g.cfg.MetricsPort, "METRICS_PORT")
	if err != nil {
		return err
	}
	defer admin.Close()
	return g.serve(ctx, api, admin)
}

// serve is Serve on listeners that are there.
func (g *Gateway) serve(ctx context.Context, api, admin *net.TCPListener) error {
	defer g.triton.Close()
	defer func() {
		if err := os.RemoveAll(g.built); err != nil {
			g.log.Warn("the model repository could not be removed", "error", err)
		}
	}()
	g.log.Info("listening", "port", portOf(api), "metrics_port", portOf(admin), "models", g.models.names)

	// Whatever of these fails first ends the others through the context.
	group, running := errgroup.WithContext(ctx)
	backend, stopBackend := context.WithCancel(context.Background())
	defer stopBackend()
	stopped := make(chan struct{}) // closed when there is no Triton child any more
	group.Go(func() error {
		defer close(stopped)
		if g.child == nil {
			return nil
		}
		return g.child.run(backend)
	})
	for _, m := range g.models.list {
		group.Go(func() error { return m.health.run(backend) }) // through the drain, as long as Triton
	}
	metricsServer := &http.Server{Handler: g.admin(), ReadHeaderTimeout: 5 * time.Second}
	group.Go(func() error { return ignoreClosed(metricsServer.Serve(admin)) })
	stoppable := newListener(api, g.log)
	group.Go(func() error { return g.app.Listener(stoppable) })
	group.Go(func() error {
		<-running.Done()
		g.drain(stoppable)
		stopBackend()
		<-stopped
		return metricsServer.Close()
	})
	return group.Wait()
}

func (g *Gateway) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

func listen(host string, port int, setting string) (*net.TCPListener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("HOST=%q %s=%d: %w", host, setting, port, err)
	}
	return l.(*net.TCPListener), nil
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
