package gateway

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
	"histogate/prep/raster"
)

// Config is everything that can be set from outside. Read it with
// [ReadConfig]: the zero value does not serve.
type Config struct {
	Host        string // address to listen on, all interfaces when empty
	Port        int    // the API; 0 takes a free port
	MetricsPort int    // /metrics, /diagnostics and profiles; 0 takes a free port of SafePorts
	PProf       bool   // profiles of this process, on MetricsPort

	APIKeysFile             string // file of the keys that callers must have; none needed when empty
	TLSCertFile, TLSKeyFile string // of the API, both or none; plain HTTP when empty

	ModelRepository string   // folder with one sub-folder a model
	Models          []string // names to serve, every model in the repository when empty
	DefaultModel    string   // model of an /invocations body without model_name
	PingMode        string   // whose readiness /ping tells: all, any, or names separated by commas

	ModelDir       string   // folder of .pt2 checkpoints; /opt/ml/model when empty and there
	AssetsDir      string   // folder of the lists of models from ModelDir; assets in that when empty and there
	TargetSM       string   // SM version that checkpoints must be made for; what nvidia-smi says when empty
	BatchMaxSize   int      // rows of a batch of the child's models; their specs' when 0
	BatchMaxWaitMS *float64 // how long such a batch may wait for more; their specs' when nil

	TritonServer       string        // tritonserver to run as a child; none when empty
	TritonBackends     string        // the child's backend directory
	TritonAddress      string        // host:port of the gRPC endpoint of a Triton that something else runs
	GatewayNice        int           // how far this process gives way to the child, as a nice value
	SafePorts          portRange     // where the child's ports are, and that of /metrics
	TritonStartTimeout time.Duration // from the start of a child until it must be live
	TritonRestartLimit int           // of a child, within ten minutes
	ModelLoadTimeout   time.Duration // of a model, and again of its first batches
	TensorTransport    string        // how inputs get to Triton: transportAuto or transportRaw

	RequestTimeout    time.Duration // from a request's headers to its answer
	MaxInFlight       int           // requests admitted at once
	MaxInFlightBytes  int           // of request bodies, of all together
	MaxBodyBytes      int           // of one request, and of the answer to many tiles
	MaxBatchRequests  int           // tiles in one call
	PreprocessWorkers int           // requests in stage 1 at once
	ImageFormats      []raster.Format
	RNACacheBytes     int           // of prepared bulk RNA vectors, per model; 0 for none
	DrainDelay        time.Duration // from SIGTERM until no new connection is taken
	DrainLimit        time.Duration // from SIGTERM until what is pending is cancelled

	RuntimeEmulation bool // answer as SageMaker's runtime does, on its own route

	LogLevel             slog.Level
	LogRequestsPerSecond int // lines of requests, but for failures of 500 and above

	TracesEndpoint string // URL of the collector that takes spans by OTLP over HTTP; none when empty

	warnings []string                // what is taken, but hardly meant
	given    map[string]givenSetting // every setting, by its variable
}

// mostWorkers is above the CPUs of any machine: each worker holds an image in memory.
const mostWorkers = 4096

// How inputs get to Triton.
const (
	transportAuto = "auto" // through shared memory where Triton can open it, else raw
	transportRaw  = "raw"  // in the message
)

// setting is one thing an operator can set, by an environment variable or by
// the flag of the same name in lower case with dashes.
type setting struct {
	env   string
	usage string
	value string // the default, as an operator would write it
	read  func(c *Config, value string) error
}

// givenSetting is what a setting was set to, for people. None holds a secret, but for
// the password of a URL, which is not shown.
type givenSetting struct {
	Value   string `json:"value"`
	Default string `json:"default"`
	From    string `json:"from"` // variable or flag
}

func (s setting) flag() string { return strings.ReplaceAll(strings.ToLower(s.env), "_", "-") }

// settings lists every setting, in the order in which the usage shows them.
func settings() []setting {
	return []setting{
		{"HOST", "address to listen on; empty means every interface", "", text(func(c *Config) *string { return &c.Host })},
		{"PORT", "port of the API; 0 takes a free one", "8080", port(func(c *Config) *int { return &c.Port })},
		{"METRICS_PORT", "port of /metrics; 0 takes a free one, and so does SAGEMAKER_SAFE_PORT_RANGE, of that range, where this is not set", "9090", port(func(c *Config) *int { return &c.MetricsPort })},
		{"PPROF", "true serves profiles of this process, under /debug/pprof/ on METRICS_PORT", "false", boolean(func(c *Config) *bool { return &c.PProf })},
		{"API_KEYS_FILE", "file of the API keys that callers must have one of, one a line; empty means that none is asked for", "", text(func(c *Config) *string { return &c.APIKeysFile })},
		{"TLS_CERT_FILE", "PEM file of the API's certificate and those between it and its root; empty means plain HTTP", "", text(func(c *Config) *string { return &c.TLSCertFile })},
		{"TLS_KEY_FILE", "PEM file of the certificate's private key", "", text(func(c *Config) *string { return &c.TLSKeyFile })},
		{"MODEL_REPOSITORY", "folder that holds a folder for each model", "model_repository", text(func(c *Config) *string { return &c.ModelRepository })},
		{"MODELS", "models to serve, separated by commas; empty means all in the repository or, with MODEL_DIR, all whose checkpoint is there", "", func(c *Config, value string) error {
			c.Models = nil
			for name := range strings.SplitSeq(value, ",") {
				if name = strings.TrimSpace(name); name != "" && !slices.Contains(c.Models, name) {
					c.Models = append(c.Models, name)
				}
			}
			return nil
		}},
		{"DEFAULT_MODEL", "model of a request to /invocations that names none", "", text(func(c *Config) *string { return &c.DefaultModel })},
		{"PING_MODE", "models that /ping waits for: all, any, or names separated by commas", pingAll, text(func(c *Config) *string { return &c.PingMode })},
		{"MODEL_DIR", "folder of .pt2 checkpoints to serve by the specs in MODEL_REPOSITORY; empty means " + defaultModelDir + " where that holds one", "",
			text(func(c *Config) *string { return &c.ModelDir })},
		{"ASSETS_DIR", "folder that holds, in a folder a model, the gene lists of models in MODEL_DIR; empty means assets in MODEL_DIR where that is there, else /opt/ml/assets", "",
			text(func(c *Config) *string { return &c.AssetsDir })},
		{"TARGET_SM", "SM version that checkpoints must be compiled for, such as 90; empty means what nvidia-smi says", "", func(c *Config, value string) error {
			if value != "" {
				if _, err := modelrepo.ParseSM(value); err != nil {
					return err
				}
			}
			c.TargetSM = value
			return nil
		}},
		{"BATCH_MAX_SIZE", "rows of a batch of the child's models; empty means what the spec says", "", func(c *Config, value string) error {
			if value == "" {
				return nil
			}
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > prep.MaxBatchSize {
				return fmt.Errorf("must be a whole number from 1 to %d", prep.MaxBatchSize)
			}
			c.BatchMaxSize = n
			return nil
		}},
		{"BATCH_MAX_WAIT_MS", "milliseconds that such a batch may wait for more; empty means what the spec says", "", func(c *Config, value string) error {
			if value == "" {
				return nil
			}
			ms, err := strconv.ParseFloat(value, 64)
			if err != nil || !(ms >= 0 && ms <= prep.MaxQueueDelayMS) {
				return fmt.Errorf("must be a number from 0 to %d", prep.MaxQueueDelayMS)
			}
			c.BatchMaxWaitMS = &ms
			return nil
		}},
		{"TRITON_SERVER", "tritonserver to run as a child process; empty means that something else runs one", "", text(func(c *Config) *string { return &c.TritonServer })},
		{"TRITON_BACKENDS", "backend directory of the child", "/opt/tritonserver/backends", text(func(c *Config) *string { return &c.TritonBackends })},
		{"TRITON_ADDRESS", "host:port of the gRPC endpoint of a Triton that something else runs", "127.0.0.1:8001", func(c *Config, value string) error {
			if _, _, err := net.SplitHostPort(value); err != nil {
				return errors.New("must be host:port")
			}
			c.TritonAddress = value
			return nil
		}},
		{"GATEWAY_NICE", "by how much the gateway's nice value is above the child's, so that what feeds the device waits less for tiles to be decoded; 0 leaves it as it is", "10", fromTo(0, leastPriority, "nobody gives way further", func(c *Config) *int { return &c.GatewayNice })},
		{"TRITON_START_TIMEOUT", "how long the child may take until it is live", "60s", duration(func(c *Config) *time.Duration { return &c.TritonStartTimeout })},
		{"TRITON_RESTART_LIMIT", "how often within ten minutes a child that ended is started again before the gateway ends too, with exit status 1", "10", atLeast(0, func(c *Config) *int { return &c.TritonRestartLimit })},
		{"MODEL_LOAD_TIMEOUT", "how long a model may take to load, and again to answer its first batches", "5m", duration(func(c *Config) *time.Duration { return &c.ModelLoadTimeout })},
		{"TENSOR_TRANSPORT", "how inputs get to Triton: auto is through shared memory where Triton can open it, else in messages; raw is in messages", transportAuto, func(c *Config, value string) error {
			if value != transportAuto && value != transportRaw {
				return errors.New("must be auto or raw")
			}
			c.TensorTransport = value
			return nil
		}},
		{"REQUEST_TIMEOUT", "how long a request may take from its headers to its answer", "25s", duration(func(c *Config) *time.Duration { return &c.RequestTimeout })},
		{"MAX_IN_FLIGHT", "requests admitted at once", "1024", atLeast(1, func(c *Config) *int { return &c.MaxInFlight })},
		{"MAX_IN_FLIGHT_BYTES", "size of the request bodies that are held at once", "536870912", atLeast(1, func(c *Config) *int { return &c.MaxInFlightBytes })},
		{"MAX_BODY_BYTES", "size of the largest request body, and of the largest answer to many tiles", "26214400", atLeast(1, func(c *Config) *int { return &c.MaxBodyBytes })},
		{"MAX_BATCH_REQUESTS", "tiles in one call, never more than MAX_IN_FLIGHT", "128", atLeast(1, func(c *Config) *int { return &c.MaxBatchRequests })},
		{"PREPROCESS_WORKERS", "requests decoded at once; the default is the number of CPUs", strconv.Itoa(runtime.GOMAXPROCS(0)), fromTo(1, mostWorkers, "more than the CPUs make nothing faster", func(c *Config) *int { return &c.PreprocessWorkers })},
		{"IMAGE_FORMATS", "formats of tiles that are taken, separated by commas", formatNames(), func(c *Config, value string) error {
			c.ImageFormats = nil
			for name := range strings.SplitSeq(value, ",") {
				name = strings.TrimSpace(name)
				if strings.EqualFold(name, "jpg") {
					name = string(raster.JPEG)
				}
				i := slices.IndexFunc(raster.Formats(), func(f raster.Format) bool { return strings.EqualFold(string(f), name) })
				if i < 0 {
					return fmt.Errorf("%q is not one of %s", name, formatNames())
				}
				c.ImageFormats = append(c.ImageFormats, raster.Formats()[i])
			}
			return nil
		}},
		{"RNA_CACHE_BYTES", "memory for bulk RNA vectors that come again, per model; 0 switches it off", strconv.Itoa(prep.DefaultRNACacheBytes), atLeast(0, func(c *Config) *int { return &c.RNACacheBytes })},
		{"DRAIN_DELAY", "how long new connections are still taken after SIGTERM, when /ping and /readyz say no already", "0s", func(c *Config, value string) (err error) {
			if c.DrainDelay, err = time.ParseDuration(value); err != nil || c.DrainDelay < 0 {
				return errors.New(`must be a duration, such as "5s", or 0`)
			}
			return nil
		}},
		{"DRAIN_LIMIT", "how long pending requests are still served after SIGTERM", "20s", duration(func(c *Config) *time.Duration { return &c.DrainLimit })},
		{"SAGEMAKER_SAFE_PORT_RANGE", "first-last: the ports that may be taken beside PORT; empty means any", "", readPortRange},
		{"SAGEMAKER_RUNTIME_EMULATION", "true serves POST /endpoints/{name}/invocations as SageMaker's runtime does", "false", boolean(func(c *Config) *bool { return &c.RuntimeEmulation })},
		{"LOG_LEVEL", "debug, info, warn or error", "info", func(c *Config, value string) error {
			if c.LogLevel.UnmarshalText([]byte(value)) != nil {
				return errors.New("must be debug, info, warn or error")
			}
			return nil
		}},
		{"LOG_REQUESTS_PER_SECOND", "requests that have a line in the log, of those without a failure of 500 or above, which always have one; the next line says how many had none", "20",
			atLeast(0, func(c *Config) *int { return &c.LogRequestsPerSecond })},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "URL of a collector to send traces to by OTLP over HTTP, such as http://127.0.0.1:4318; the SDK's other variables, such as OTEL_TRACES_SAMPLER, hold too; empty means no traces", "", readEndpoint},
	}
}

// aliases are variables that platforms set, each taken where the setting it
// stands for is not set itself.
var aliases = [...]struct{ alias, env string }{
	{"SAGEMAKER_BIND_TO_PORT", "PORT"},
}

// ReadConfig reads the configuration from the environment and from command
// line arguments, which win. Every wrong value is reported, not only the first.
// What is wrong is left at zero in the configuration that is returned beside the
// error; there is none where the arguments are not flags and values. It returns
// [flag.ErrHelp] after writing the usage when -h is among args.
func ReadConfig(args []string, lookupEnv func(string) (string, bool), usage io.Writer) (*Config, error) {
	flags := flag.NewFlagSet("gateway serve", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.Usage = func() {
		fmt.Fprintln(usage, "usage: gateway serve [flags]\n       gateway check [flags]\n\nEach flag can also be set by the environment variable named beside it; the flag wins.")
		writeSettings(usage, settings())
	}
	c, isSet, mistakes, err := readSettings(settings(), flags, args, lookupEnv)
	if err != nil {
		return nil, err
	}
	if c.SafePorts != (portRange{}) && !isSet["METRICS_PORT"] {
		c.MetricsPort = 0 // where containers share a network, another may have the usual one
	}
	if c.Port != 0 && c.Port == c.MetricsPort {
		mistakes = append(mistakes, fmt.Errorf("PORT and METRICS_PORT are both %d: give one of them another port", c.Port))
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		mistakes = append(mistakes, errors.New("one of TLS_CERT_FILE and TLS_KEY_FILE is set alone: set both, or none for plain HTTP"))
	}
	if c.TritonServer != "" && isSet["TRITON_ADDRESS"] {
		c.warnings = append(c.warnings, "TRITON_ADDRESS is passed over, as TRITON_SERVER has a Triton of its own started; set one of them")
	}
	// What is zero here, though it must not be, is reported already.
	if c.MaxInFlightBytes > 0 && c.MaxInFlightBytes < c.MaxBodyBytes {
		mistakes = append(mistakes, fmt.Errorf("MAX_IN_FLIGHT_BYTES=%d is less than the %d of MAX_BODY_BYTES: no such body could ever be taken", c.MaxInFlightBytes, c.MaxBodyBytes))
	}
	if c.MaxBodyBytes > 0 && c.MaxBodyBytes < megabyte {
		c.warnings = append(c.warnings, fmt.Sprintf("MAX_BODY_BYTES=%d is less than the %d that SageMaker's batch transform may send at the least: larger ones get a 413", c.MaxBodyBytes, megabyte))
	}
	if c.DrainLimit > 0 && c.DrainDelay >= c.DrainLimit {
		mistakes = append(mistakes, fmt.Errorf("DRAIN_DELAY=%s is not less than the %s of DRAIN_LIMIT, both from SIGTERM on: nothing could be answered in between", c.DrainDelay, c.DrainLimit))
	}
	if flags.NArg() > 0 {
		return nil, errors.Join(mistakes...)
	}
	return c, errors.Join(mistakes...)
}

// readSettings reads settings from the environment and, by flags that it adds to
// those that are there, from arguments. It returns which are not left at their
// defaults, and every wrong value. Its error is that of the flags.
func readSettings(list []setting, flags *flag.FlagSet, args []string, lookupEnv func(string) (string, bool)) (c *Config, isSet map[string]bool, mistakes []error, err error) {
	type given struct{ value, from string }
	values := map[string]given{}
	for _, s := range list {
		for _, a := range aliases {
			if v, ok := lookupEnv(a.alias); ok && v != "" && a.env == s.env {
				values[s.env] = given{v, a.alias}
			}
		}
		if v, ok := lookupEnv(s.env); ok && v != "" {
			values[s.env] = given{v, s.env}
		}
		flags.Func(s.flag(), s.usage, func(v string) error {
			values[s.env] = given{v, "-" + s.flag()}
			return nil
		})
	}
	if err := flags.Parse(args); err != nil {
		return nil, nil, nil, err
	}
	c, isSet = &Config{given: map[string]givenSetting{}}, map[string]bool{}
	if flags.NArg() > 0 {
		mistakes = append(mistakes, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	for _, s := range list {
		v, ok := values[s.env]
		if isSet[s.env] = ok; !ok {
			v = given{s.value, s.env}
		}
		c.given[s.env] = givenSetting{v.value, s.value, v.from}
		for _, a := range aliases {
			passedOver, _ := lookupEnv(a.alias)
			if a.env != s.env || passedOver == "" || passedOver == v.value {
				continue
			}
			if err := s.read(c, passedOver); err != nil {
				mistakes = append(mistakes, fmt.Errorf("%s=%q: %w", a.alias, passedOver, err))
			}
			c.warnings = append(c.warnings, fmt.Sprintf("%s=%q is passed over for %s=%q; set one of them", a.alias, passedOver, v.from, v.value))
		}
		if err := s.read(c, v.value); err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s=%q: %w", v.from, withoutPassword(v.value), err))
		}
	}
	return c, isSet, mistakes, nil
}

func writeSettings(w io.Writer, list []setting) {
	for _, s := range list {
		fmt.Fprintf(w, "\n  -%s (%s)\n    %s", s.flag(), s.env, s.usage)
		if s.value != "" {
			fmt.Fprintf(w, " (default %s)", s.value)
		}
	}
	fmt.Fprintln(w)
}

func text(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, value string) error {
		*field(c) = value
		return nil
	}
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, value string) (err error) {
		if *field(c), err = strconv.ParseBool(value); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}

func port(field func(*Config) *int) func(*Config, string) error {
	return whole(0, 65535, "must be a port number from 0 to 65535", field)
}

func atLeast(least int, field func(*Config) *int) func(*Config, string) error {
	return whole(least, math.MaxInt, fmt.Sprintf("must be a whole number of at least %d", least), field)
}

// fromTo is for whole numbers of which more than most would be of no use.
func fromTo(least, most int, why string, field func(*Config) *int) func(*Config, string) error {
	return whole(least, most, fmt.Sprintf("must be a whole number from %d to %d; %s", least, most, why), field)
}

func whole(least, most int, must string, field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > most {
			return errors.New(must)
		}
		*field(c) = n
		return nil
	}
}

func formatNames() string {
	names := make([]string, len(raster.Formats()))
	for i, f := range raster.Formats() {
		names[i] = string(f)
	}
	return strings.Join(names, ",")
}

func duration(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return errors.New(`must be a duration above zero, such as "30s" or "500ms"`)
		}
		*field(c) = d
		return nil
	}
}
