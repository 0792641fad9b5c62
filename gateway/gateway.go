package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"histogate/tritonclient"
)

const (
	headerBytes = 16 << 10         // of one request's headers
	idleTimeout = 75 * time.Second // above what clients keep a connection for
)

// Gateway serves models over HTTP. Make one with [New].
type Gateway struct {
	cfg         *Config
	built       string // the model repository, where it was made here; empty elsewhere
	log         *slog.Logger
	models      *models
	triton      *tritonclient.Client
	child       *child // nil where something else runs Triton
	metrics     *metrics
	requestLog  *requestLog
	tracing     *tracing // nil where traces go nowhere
	admission   *admission
	bodies      *bodies
	compressors compressors
	app         *fiber.App

	keys        *keys        // nil where no key is asked for
	certificate *certificate // nil where HTTP is plain

	// For an operator, in diagnostics.go.
	began            time.Time
	failures, events *journal
	recent           *recent

	connections connections
	draining    atomic.Bool
	// stopping ends when Shutdown is called.
	stopping context.Context
	stop     context.CancelFunc
	// pending is the parent of every request's context.
	pending       context.Context
	cancelPending context.CancelFunc
}

// New makes a gateway of a configuration. It reads the models' specs, whose
// mistakes it reports all at once, and connects to nothing yet. A model repository
// that it has to make is removed when [Gateway.Serve] ends. The context is for the
// making alone.
func New(ctx context.Context, cfg *Config, log *slog.Logger) (_ *Gateway, err error) {
	failures, events := new(journal), new(journal)
	failed, log := failures.beside(log), events.beside(log)
	p, err := readPlan(ctx, cfg, log)
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(p.built))
		}
	}()
	if err != nil {
		return nil, err
	}
	cfg, served := p.cfg, p.models
	g := &Gateway{
		cfg:         cfg,
		built:       p.built,
		log:         log,
		began:       time.Now(),
		failures:    failures,
		events:      events,
		models:      served,
		admission:   newAdmission(cfg.MaxInFlight, cfg.PreprocessWorkers, cfg.MaxInFlightBytes),
		keys:        p.keys,
		certificate: p.certificate,
		connections: connections{quiet: map[net.Conn]time.Time{}},
	}
	g.bodies = &bodies{limit: cfg.MaxBodyBytes, admission: g.admission}
	g.metrics = newMetrics(served.names, g.admission)
	g.requestLog = &requestLog{log: failed, perSecond: cfg.LogRequestsPerSecond, leftOut: g.metrics.leftOut}
	g.recent = newRecent(g.metrics.registry)
	g.pending, g.cancelPending = context.WithCancel(context.Background())
	g.stopping, g.stop = context.WithCancel(context.Background())
	if cfg.TracesEndpoint != "" {
		if g.tracing, err = newTracing(ctx, cfg.TracesEndpoint, log); err != nil {
			return nil, err
		}
	}
	options := tritonclient.Options{
		MaxReceiveBytes: warmUpBytes + megabyte, // with what is said of the tensors
		SharedMemory:    0o666,
		Log:             log,
	}
	if cfg.TritonServer != "" {
		g.child = &child{cfg: cfg, log: log, metrics: g.metrics}
		options.Dial, options.SharedMemory = g.child.dial, 0o600
	}
	if cfg.TensorTransport == transportRaw {
		options.SharedMemory = 0
	}
	if g.triton, err = tritonclient.New(cfg.TritonAddress, options); err != nil {
		return nil, fmt.Errorf("TRITON_ADDRESS: %w", err)
	}
	g.metrics.transports(g.triton)
	if g.child != nil {
		g.child.control = g.triton
	}
	loading := make(chan struct{}, 1)
	for _, m := range served.list {
		m.health = newHealth(m, g.triton, g.child, loading, cfg.ModelLoadTimeout, g.metrics, log)
		g.metrics.model(m)
	}
	g.app = fiber.New(fiber.Config{
		DisableStartupMessage: true,
		CaseSensitive:         true,
		UnescapePath:          true,
		ErrorHandler:          g.unreadable, // of what is refused before it is routed
		StreamRequestBody:     true,         // see bodies
		BodyLimit:             cfg.MaxBodyBytes,
		ReadBufferSize:        headerBytes,
		ReadTimeout:           cfg.RequestTimeout,
		IdleTimeout:           idleTimeout,
		// A multipart body is refused by its type, not taken apart first.
		DisablePreParseMultipartForm: true,
	})
	g.app.Server().ConnState = g.connections.changed
	g.app.Server().SecureErrorLogMessage = true // no request's text in its errors
	g.routes()
	g.app.Server().Handler = g.screen(g.app.Handler())
	g.app.Server().ExpectHandler = g.expect
	return g, nil
}

// Serve serves until the context ends or [Gateway.Shutdown] is called. Then it takes
// no new connection, answers what it has accepted and the calls of [Gateway.Forward],
// cancels what is left when DRAIN_LIMIT has passed, and stops Triton last. Where it starts
// a Triton the process gives way to that from then on, by GATEWAY_NICE. It returns
// nil after such an end, and an error when it could not start: a port is taken, Triton
// does not run or takes no orders, or a model's contract is not the one that Triton has.
func (g *Gateway) Serve(ctx context.Context) error {
	defer g.release()
	api, admin, err := g.cfg.listen()
	if err != nil {
		return err
	}
	defer api.Close()
	defer admin.Close()
	return g.serve(ctx, api, admin)
}

// Shutdown has [Gateway.Serve] end, as the end of its context does, and returns at
// once; whoever wants to know when all is done waits for Serve. It may be called from
// any goroutine and any number of times: all but the first do nothing.
func (g *Gateway) Shutdown() { g.stop() }

// release gives back what New took.
func (g *Gateway) release() {
	g.requestLog.end()
	g.tracing.end()
	_ = g.triton.Close() // nothing is in flight
	if err := os.RemoveAll(g.built); err != nil {
		g.log.Warn("the model repository could not be removed", "error", err)
	}
}

// serve is Serve on listeners that are there.
func (g *Gateway) serve(ctx context.Context, api, admin *net.TCPListener) error {
	g.log.Info("listening", "port", portOf(api), "metrics_port", portOf(admin), "models", g.models.names)

	// Whatever of these fails first ends the others through the context.
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(g.stopping, end)()
	group, running := errgroup.WithContext(ctx)
	backend, stopBackend := context.WithCancel(context.Background())
	defer stopBackend()
	stopped := make(chan struct{}) // closed when there is no Triton child any more, and nobody watches another
	group.Go(func() error {
		defer close(stopped)
		if g.child == nil {
			g.doubtFrozen(backend)
			return nil
		}
		err := g.child.run(backend)
		if err != nil {
			g.cancelPending() // what waits will not be served
		}
		return err
	})
	for _, m := range g.models.list {
		group.Go(func() error { return m.health.run(backend) }) // through the drain, as long as Triton
	}
	group.Go(func() error {
		g.recent.run(running)
		return nil
	})
	metricsServer := &http.Server{Handler: g.admin(), ReadHeaderTimeout: 5 * time.Second}
	group.Go(func() error { return ignoreClosed(metricsServer.Serve(admin)) })
	stoppable := newListener(api, g.log)
	if g.certificate != nil {
		stoppable.tls = g.certificate.config()
	}
	group.Go(func() error { return g.app.Listener(stoppable) })
	group.Go(func() error {
		<-running.Done()
		g.drain(stoppable)
		group.Go(func() error { g.tracing.end(); return nil }) // while Triton stops
		stopBackend()
		<-stopped
		return metricsServer.Close()
	})
	return group.Wait()
}

// admin is what METRICS_PORT serves, for the operator alone.
func (g *Gateway) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /diagnostics", g.diagnose)
	if g.cfg.PProf {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// listen listens on both ports, or on none and reports each that cannot be had.
func (c *Config) listen() (api, admin *net.TCPListener, err error) {
	api, apiErr := listen(c.Host, c.Port, "PORT")
	admin, adminErr := c.SafePorts.listenMetrics(c.Host, c.MetricsPort)
	if err = errors.Join(apiErr, adminErr); err == nil {
		return api, admin, nil
	}
	for _, l := range []*net.TCPListener{api, admin} {
		if l != nil {
			l.Close()
		}
	}
	return nil, nil, err
}

func listen(host string, port int, setting string) (*net.TCPListener, error) {
	var how net.ListenConfig
	how.SetMultipathTCP(false) // a listener of it takes no filter (dropNewcomers)
	l, err := how.Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		hint := "set HOST to an address of this machine, or to nothing for all"
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			hint = "end what listens there, or set another port"
		case errors.Is(err, syscall.EACCES):
			hint = "set a port above 1023, which every user may take"
		}
		return nil, fmt.Errorf("HOST=%q %s=%d: %w; %s", host, setting, port, err, hint)
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
