package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"histogate/gateway/checkpoint/checkpointtest"
	"histogate/tritonclient"
	"histogate/tritonclient/tritontest"
)

// write writes a file, and the folders that it lies in.
func write(t *testing.T, mode os.FileMode, text string, path ...string) string {
	t.Helper()
	whole := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(whole), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(whole, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return whole
}

// soundSettings are those of a gateway with a child that could serve all it has to.
func soundSettings(t *testing.T) map[string]string {
	t.Helper()
	folder := t.TempDir()
	models := repository(t, testSpec, testConfig)
	write(t, 0o600, "\x3a\x00", models, "small", "1", "model.onnx") // a graph of nothing
	write(t, 0o600, "", folder, "backends", "histogate", "model.py")
	write(t, 0o600, "", folder, "backends", "python", "libtriton_python.so")
	write(t, 0o700, "", folder, "backends", "python", "triton_python_backend_stub")
	cert, key := certify(t, folder, 1)
	return map[string]string{
		"HOST": "127.0.0.1", "PORT": "0", "METRICS_PORT": "0", "MODEL_REPOSITORY": models,
		"TRITON_SERVER": write(t, 0o700, "", folder, "tritonserver"), "TRITON_BACKENDS": filepath.Join(folder, "backends"),
		"API_KEYS_FILE": write(t, 0o600, strings.Repeat("k", shortestKey), folder, "keys"), "TLS_CERT_FILE": cert, "TLS_KEY_FILE": key,
	}
}

// checked is what check finds.
func checked(t *testing.T, env map[string]string) Findings {
	t.Helper()
	cfg, err := read(nil, env)
	if cfg == nil {
		t.Fatal(err)
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	found := Check(t.Context(), cfg, err)
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("%v is left over, %v", left, err)
	}
	for _, line := range slices.Concat(found.Mistakes, found.Warnings, found.Looked) {
		if strings.Contains(line, "\n") {
			t.Errorf("not one line: %q", line)
		}
	}
	return found
}

// Each kind of mistake is found, alone and by what is to be changed.
func TestCheckFindsEachMistake(t *testing.T) {
	taken, err := listen("127.0.0.1", 0, "PORT")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(portOf(taken))
	folder := func(env map[string]string) string { return filepath.Join(env["MODEL_REPOSITORY"], "small") }
	for name, test := range map[string]struct {
		change   func(env map[string]string)
		mistakes []string // what each says; all of them
		warnings []string
	}{
		"nothing": {func(map[string]string) {}, nil, nil},
		"settings": {func(env map[string]string) {
			env["REQUEST_TIMEOUT"], env["MAX_IN_FLIGHT_BYTES"], env["DRAIN_LIMIT"], env["TARGET_SM"] = "25", "x", "0", "x"
		}, []string{`TARGET_SM="x"`, `REQUEST_TIMEOUT="25": must be a duration`, `MAX_IN_FLIGHT_BYTES="x"`, `DRAIN_LIMIT="0"`}, nil},
		"a setting that is hardly meant": {func(env map[string]string) { env["MAX_BODY_BYTES"] = "1000" }, nil, []string{"MAX_BODY_BYTES=1000 is less than"}},
		"keys":                           {func(env map[string]string) { env["API_KEYS_FILE"] += "s" }, []string{"name a file that this process may read"}, nil},
		"a key":                          {func(env map[string]string) { write(t, 0o600, "short", env["API_KEYS_FILE"]) }, []string{"line 1 of the file is no key"}, nil},
		"certificate":                    {func(env map[string]string) { env["TLS_KEY_FILE"] = env["TLS_CERT_FILE"] }, []string{"name the PEM files of a certificate and of its own key"}, nil},
		"no repository":                  {func(env map[string]string) { env["MODEL_REPOSITORY"] += "s" }, []string{"name the folder that holds a folder for each model"}, nil},
		"empty repository":               {func(env map[string]string) { env["MODEL_REPOSITORY"] = t.TempDir() }, []string{"holds no model: put a folder"}, nil},
		"names":                          {func(env map[string]string) { env["MODELS"] = "tiny,large" }, []string{`MODELS: "large" is no model of`}, nil},
		"default model":                  {func(env map[string]string) { env["DEFAULT_MODEL"] = "large" }, []string{`DEFAULT_MODEL="large" is not among the models: [small]`}, nil},
		"default and pinged model": {func(env map[string]string) { env["DEFAULT_MODEL"], env["PING_MODE"] = "large", "huge" },
			[]string{`DEFAULT_MODEL="large"`, `PING_MODE="huge"`}, nil},
		"pinged model": {func(env map[string]string) { env["PING_MODE"] = "large" }, []string{`PING_MODE="large": "large" is neither`}, nil},
		"spec": {func(env map[string]string) {
			write(t, 0o600, strings.NewReplacer("modes: [embedding]", "modes: [prediction]", "std: [1, 1, 1]", "std: [1, 0, 1]").Replace(testSpec), folder(env), "spec.yaml")
		}, []string{"spec.yaml: tile", "spec.yaml: modes[0]"}, nil},
		"configuration": {func(env map[string]string) {
			write(t, 0o600, strings.NewReplacer("dims: [ 3 ]", "dims: [ 5 ]", "max_batch_size: 4", "max_batch_size: 8").Replace(testConfig), folder(env), "config.pbtxt")
		}, []string{"max_batch_size is 8, spec.yaml says 4", "shape of output embedding is [5], spec.yaml says [3]"}, nil},
		"no configuration": {func(env map[string]string) { remove(t, folder(env), "config.pbtxt") }, []string{"must hold a spec.yaml and a config.pbtxt"}, nil},
		"checkpoint of another name": {func(env map[string]string) {
			remove(t, folder(env), "1", "model.onnx")
			write(t, 0o600, "weights", folder(env), "1", "weights.onnx")
		}, []string{"model small: its folder 1 holds neither model.pt2 nor model.onnx"}, nil},
		"no ONNX": {func(env map[string]string) { write(t, 0o600, "junk", folder(env), "1", "model.onnx") }, []string{"model small: model.onnx in its folder 1 cannot be used: it is no ONNX model"}, nil},
		"another backend": {func(env map[string]string) {
			write(t, 0o600, strings.Replace(testConfig, `"histogate"`, `"python"`, 1), folder(env), "config.pbtxt")
		}, []string{`model small: its folder 1 holds no model.py, which the backend "python" runs`}, nil},
		"another backend, and what it runs": {func(env map[string]string) {
			write(t, 0o600, strings.Replace(testConfig, `"histogate"`, `"python" default_model_filename: "run.py"`, 1), folder(env), "config.pbtxt")
			write(t, 0o600, "pass", folder(env), "1", "run.py")
		}, nil, nil},
		"no version":    {func(env map[string]string) { remove(t, folder(env), "1") }, []string{"model small: its folder holds no version: put its checkpoint into a folder 1"}, nil},
		"empty version": {func(env map[string]string) { remove(t, folder(env), "1", "model.onnx") }, []string{"model small: its version 1 is an empty folder"}, nil},
		"empty checkpoint": {func(env map[string]string) {
			write(t, 0o600, "", folder(env), "1", "model.onnx")
			write(t, 0o600, "", folder(env), "1", "__init__.py") // means something
		}, []string{"model small: model.onnx in its folder 1 is empty; put the checkpoint there"}, nil},
		"checkpoint that is a link to nothing": {func(env map[string]string) {
			remove(t, folder(env), "1", "model.onnx")
			if err := os.Symlink("/nowhere", filepath.Join(folder(env), "1", "model.onnx")); err != nil {
				t.Fatal(err)
			}
		}, []string{"model small: model.onnx in its folder 1 cannot be read: no such file or directory"}, nil},
		"checkpoint": {func(env map[string]string) { write(t, 0o600, "PK", folder(env), "1", "model.pt2") },
			[]string{"model small: its checkpoint cannot be used: model.pt2"}, nil},
		"checkpoint of another shape": {func(env map[string]string) {
			write(t, 0o600, string(checkpointtest.Package{Metadata: `{"inputs": {"tile": {"shape": ["B", 3, 9, 9], "dtype": "float32"}},
				"outputs": {"embedding": {"shape": ["B", 3], "dtype": "float32"}}}`}.Bytes(t)), folder(env), "1", "model.pt2")
		}, []string{"has the shape [B, 3, 9, 9] in the metadata; the spec has"}, nil},
		"checkpoint folder": {func(env map[string]string) { env["MODEL_DIR"] = t.TempDir() }, []string{"holds no checkpoint that a spec in MODEL_REPOSITORY="}, nil},
		"ports": {func(env map[string]string) { env["PORT"], env["METRICS_PORT"] = port, port },
			[]string{"PORT and METRICS_PORT are both"}, nil},
		"port taken":   {func(env map[string]string) { env["PORT"] = port }, []string{" PORT=" + port + ": listen tcp"}, nil},
		"host":         {func(env map[string]string) { env["HOST"] = "192.0.2.1" }, []string{"PORT=0", "set HOST to an address of this machine"}, nil},
		"port range":   {func(env map[string]string) { env["SAGEMAKER_SAFE_PORT_RANGE"] = "1-3" }, []string{"must be two port numbers"}, nil},
		"tritonserver": {func(env map[string]string) { env["TRITON_SERVER"] = env["API_KEYS_FILE"] }, []string{"name the file of a tritonserver that this process may run"}, nil},
		"shared memory": {func(env map[string]string) {
			env["TENSOR_TRANSPORT"] = "raw"
			write(t, 0o600, strings.NewReplacer("shape: [3]", "shape: [67108864]", "max_batch_size: 4", "max_batch_size: 1024").Replace(testSpec), folder(env), "spec.yaml")
			write(t, 0o600, strings.NewReplacer("dims: [ 3 ]", "dims: [ 67108864 ]", "max_batch_size: 4", "max_batch_size: 1024").Replace(testConfig), folder(env), "config.pbtxt")
		}, []string{"one full batch of every model, inputs and outputs, takes 262145 MB; make it at least as large"}, nil},
		"backend": {func(env map[string]string) { remove(t, env["TRITON_BACKENDS"], "histogate") },
			[]string{`the backend "histogate" of model small: there is neither`}, nil},
		"Python backend": {func(env map[string]string) { remove(t, env["TRITON_BACKENDS"], "python", "libtriton_python.so") }, []string{"put Triton's Python backend there"}, nil},
		"stub": {func(env map[string]string) {
			if err := os.Chmod(filepath.Join(env["TRITON_BACKENDS"], "python", "triton_python_backend_stub"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"put the stub for your Python there, executable"}, nil},
		"nobody to build for": {func(env map[string]string) {
			env["TRITON_SERVER"], env["BATCH_MAX_SIZE"], env["TENSOR_TRANSPORT"] = "", "2", "raw"
		},
			[]string{"need TRITON_SERVER"}, []string{"no Triton answers there now"}},
		"two Tritons": {func(env map[string]string) { env["TRITON_ADDRESS"] = "127.0.0.1:1" }, nil, []string{"TRITON_ADDRESS is passed over"}},
		"address":     {func(env map[string]string) { env["TRITON_SERVER"], env["TRITON_ADDRESS"] = "", "nowhere" }, []string{`TRITON_ADDRESS="nowhere": must be host:port`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			env := soundSettings(t)
			test.change(env)
			found := checked(t, env)
			for _, pair := range []struct{ got, want []string }{{found.Mistakes, test.mistakes}, {found.Warnings, test.warnings}} {
				ok := len(pair.got) == len(pair.want)
				for _, want := range pair.want {
					ok = ok && slices.ContainsFunc(pair.got, func(line string) bool { return strings.Contains(line, want) })
				}
				if !ok {
					t.Errorf("found:\n%s\nwant:\n%s", strings.Join(pair.got, "\n"), strings.Join(pair.want, "\n"))
				}
			}
		})
	}
}

func remove(t *testing.T, path ...string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(path...)); err != nil {
		t.Fatal(err)
	}
}

// OpenTelemetry's own variables are looked at where traces go somewhere.
func TestCheckOfTraces(t *testing.T) {
	for _, test := range []struct{ name, value, want string }{
		{"OTEL_TRACES_SAMPLER", "traceidratio", ""},
		{"OTEL_TRACES_SAMPLER", " Always_Off", ""},
		{"OTEL_TRACES_SAMPLER", "one in a hundred", `OTEL_TRACES_SAMPLER="one in a hundred": must be one of always_on, `},
		{"OTEL_TRACES_SAMPLER_ARG", "x", ""}, // which no sampler asks for
		{"OTEL_RESOURCE_ATTRIBUTES", "team=pathology,stage", `OTEL_RESOURCE_ATTRIBUTES="team=pathology,stage": must be name=value`},
	} {
		t.Run(test.name+"="+test.value, func(t *testing.T) { checkOfTraces(t, test.want, test.name, test.value) })
	}
	for _, ratio := range []string{"1%", "1.5", "-0.5", "NaN"} {
		t.Run(ratio, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
			checkOfTraces(t, `OTEL_TRACES_SAMPLER_ARG="`+ratio+`": must be a number from 0 to 1`, "OTEL_TRACES_SAMPLER_ARG", ratio)
		})
	}
}

func checkOfTraces(t *testing.T, want, name, value string) {
	t.Helper()
	t.Setenv(name, value)
	env := soundSettings(t)
	if found := checked(t, env); found.Mistakes != nil {
		t.Errorf("without a collector: %q", found.Mistakes)
	}
	env["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:4318"
	found := checked(t, env)
	if want == "" && found.Mistakes != nil || want != "" && (len(found.Mistakes) != 1 || !strings.HasPrefix(found.Mistakes[0], want)) {
		t.Errorf("found %q, want %q", found.Mistakes, want)
	}
}

// A checkpoint folder is looked at as it would be served.
func TestCheckOfCheckpoints(t *testing.T) {
	cfg := checkpointConfig(t)
	cfg.Host, cfg.Port, cfg.MetricsPort = "127.0.0.1", 0, 0
	checkpointtest.Package{}.Write(t, filepath.Join(cfg.ModelDir, "other.pt2"))
	found := Check(t.Context(), cfg, nil)
	if len(found.Mistakes) != 2 || !strings.HasPrefix(found.Mistakes[0], "model m-optimus: m_optimus_prediction.pt2 is built for") || !strings.Contains(found.Mistakes[1], "TRITON_BACKENDS") {
		t.Errorf("mistakes: %q", found.Mistakes)
	}
	if len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0], "checkpoints are not served") || !strings.Contains(found.Warnings[0], "other.pt2") {
		t.Errorf("warnings: %q", found.Warnings)
	}
}

// Of a Triton that something else runs, the models that it has loaded are held against
// their specs.
func TestCheckOfARunningTriton(t *testing.T) {
	env := soundSettings(t)
	fake := fakeTriton(t, env["MODEL_REPOSITORY"])
	env["TRITON_SERVER"], env["TRITON_ADDRESS"] = "", fake.Start(t)
	looked := func(found Findings) string { return found.Looked[len(found.Looked)-1] }
	if found := checked(t, env); found.Mistakes != nil || found.Warnings != nil || looked(found) != "Triton fake, which has 0 of the models loaded" {
		t.Errorf("nothing is loaded: %q", found)
	}
	client, err := tritonclient.New(env["TRITON_ADDRESS"], tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.LoadModel(t.Context(), "small"); err != nil {
		t.Fatal(err)
	}
	if found := checked(t, env); found.Mistakes != nil || looked(found) != "Triton fake, which has 1 of the models loaded" {
		t.Errorf("all is well: %q", found)
	}
	fake.Update(func(s *tritontest.Server) { s.Models["small"].Config.Output[0].Dims = []int64{5} })
	found := checked(t, env)
	if len(found.Mistakes) != 2 || !strings.HasPrefix(found.Mistakes[0], "model small: ") || !strings.Contains(found.Mistakes[0], "Triton's metadata: shape of output embedding is [5]") ||
		!strings.Contains(found.Mistakes[1], "Triton's configuration of the model: shape of output embedding is [5]") {
		t.Errorf("another output: %q", found.Mistakes)
	}
	if n := fake.Unloads("small"); n != 0 {
		t.Errorf("%d unloads", n)
	}
	remove(t, env["MODEL_REPOSITORY"], "small", "1")
	if found := checked(t, env); len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0], "a repository of its own?") {
		t.Errorf("Triton's checkpoint may be elsewhere: %q", found.Warnings)
	}
}

// A certificate whose time is over is served, and warned of.
func TestCheckOfAnOldCertificate(t *testing.T) {
	env := soundSettings(t)
	env["TLS_CERT_FILE"], env["TLS_KEY_FILE"] = certifyUntil(t, t.TempDir(), 1, time.Now().Add(-time.Minute))
	if found := checked(t, env); found.Mistakes != nil || len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0], "the certificate's time is over") {
		t.Errorf("%q", found)
	}
}

func TestLines(t *testing.T) {
	two := errors.Join(errors.New("a"), errors.New("b"))
	for want, err := range map[string]error{
		"[]":                    nil,
		"[a b]":                 two,
		"[x: a; y x: b; y]":     fmt.Errorf("x: %w; y", two),
		"[c x: z: a x: z: b]":   errors.Join(errors.New("c"), fmt.Errorf("x: %w", fmt.Errorf("z: %w", two))),
		"[a; b: c]":             fmt.Errorf("%w: %w", errors.New("a\nb"), errors.New("c")),
		"[listen tcp: refused]": &net.OpError{Op: "listen", Net: "tcp", Err: errors.New("refused")},
	} {
		if got := fmt.Sprint(lines(err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A variable that nothing reads is told of where its name is nearly that of a setting.
func TestCheckOfNames(t *testing.T) {
	for name, meant := range map[string]string{
		"MAX_INFLIGHT": "MAX_IN_FLIGHT", "MAX_BODY_BYTE": "MAX_BODY_BYTES", "MODEL": "MODELS", "MODELDIR": "MODEL_DIR", "MODEL_REPOSITOY": "MODEL_REPOSITORY",
		"request_timeout": "REQUEST_TIMEOUT", "HISTOGATE_PORT": "PORT", "HISTOGATE_MAX_INFLIGHT": "MAX_IN_FLIGHT",
		"MAX_IN_FLIGHT": "", "MAX_IN_FLIGHT_BYTES": "", "HOME": "", "PATH": "", "POST": "", "HOSTNAME": "", "SSL_CERT_FILE": "", "HISTOGATE_CACHE": "",
		"SAGEMAKER_BIND_TO_PORT": "", "GOMEMLIMIT": "", "OTEL_EXPORTER_OTLP_HEADERS": "", "OTEL_TRACES_SAMPLER": "", "TRITON_PORT": "",
	} {
		var f Findings
		f.checkNames([]string{name + "=MODEL_DIRS=1"})
		if meant == "" && f.Warnings != nil || meant != "" && (len(f.Warnings) != 1 || !strings.HasPrefix(f.Warnings[0], name+" is set") || !strings.HasSuffix(f.Warnings[0], "mean "+meant+"?")) {
			t.Errorf("%s: %q", name, f.Warnings)
		}
	}
	t.Setenv("DRAIN_LIMITS", "5s")
	if found := checked(t, soundSettings(t)); len(found.Warnings) != 1 || !strings.HasPrefix(found.Warnings[0], "DRAIN_LIMITS is set") {
		t.Errorf("warns of %q", found.Warnings)
	}
}
