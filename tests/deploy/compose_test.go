package deploy

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/go-units"
	"sigs.k8s.io/yaml"
)

const (
	composeFile = "docker-compose.yml"
	gpuFile     = "docker-compose.gpu.yml"
)

// compose loads what `docker compose -f ...` would, every profile on, with env as the
// only environment.
func compose(t *testing.T, env []string, files ...string) *types.Project {
	t.Helper()
	for i := range files {
		files[i] = absolute(t, files[i])
	}
	options, err := cli.NewProjectOptions(files, cli.WithEnv(env), cli.WithProfiles([]string{"*"}), cli.WithWorkingDirectory(absolute(t)), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// environment is a service's, as a process would have it.
func environment(s types.ServiceConfig) map[string]string {
	env := map[string]string{}
	for name, value := range s.Environment {
		if value != nil {
			env[name] = *value
		}
	}
	return env
}

func mounted(s types.ServiceConfig, target string) *types.ServiceVolumeConfig {
	for _, v := range s.Volumes {
		if v.Target == target {
			return &v
		}
	}
	return nil
}

// What an engine does with it is not checked: above all that a volume of tmpfs at
// /dev/shm is one file system in both containers.
func TestCompose(t *testing.T) {
	for name, files := range map[string][]string{"on the CPU": {composeFile}, "on a GPU": {composeFile, gpuFile}} {
		t.Run(name, func(t *testing.T) {
			project := compose(t, nil, files...)
			if names := project.ServiceNames(); !slices.Equal(names, []string{"gateway", "grafana", "prometheus", "repository", "triton"}) {
				t.Errorf("the services are %v", names)
			}
			for _, s := range project.Services {
				checkService(t, project, s)
			}
			checkShared(t, project)
			checkStop(t, project)
		})
	}
}

// checkService checks what holds for every service.
func checkService(t *testing.T, project *types.Project, s types.ServiceConfig) {
	t.Helper()
	bad := func(format string, args ...any) { t.Helper(); t.Errorf(s.Name+": "+format, args...) }
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || s.Privileged {
		bad("not confined: read_only %t, cap_drop %v, security_opt %v", s.ReadOnly, s.CapDrop, s.SecurityOpt)
	}
	oneShot := len(s.Profiles) > 0
	if (s.HealthCheck == nil) != oneShot {
		bad("its health check is %v", s.HealthCheck)
	}
	if oneShot == (s.Restart == "unless-stopped") {
		bad("restart is %q", s.Restart)
	}
	if s.Build != nil {
		images := dockerfile(t, s.Build.Dockerfile)
		if s.Build.Context != absolute(t) || s.Build.Target != "" && images.stage(s.Build.Target) == nil {
			bad("it is built of %s, stage %q", s.Build.Context, s.Build.Target)
		}
	} else if !regexp.MustCompile(`:v?\d+\.\d+\.\d+$`).MatchString(s.Image) {
		bad("its image %s has no full version", s.Image)
	}
	for _, v := range s.Volumes {
		switch v.Type {
		case types.VolumeTypeBind:
			// What .env.example says where to put is the operator's to make.
			if info, err := os.Stat(v.Source); (err != nil || !info.IsDir()) && v.Source != absolute(t, "checkpoints") {
				bad("%s is mounted and is no folder", v.Source)
			}
			if !v.ReadOnly && s.Name != "repository" {
				bad("%s is mounted for writing", v.Source)
			}
		case types.VolumeTypeVolume:
			if _, ok := project.Volumes[v.Source]; !ok {
				bad("there is no volume %s", v.Source)
			}
		default:
			bad("a mount of type %s", v.Type)
		}
	}
	for _, p := range s.Ports {
		if p.HostIP != "127.0.0.1" {
			bad("port %s is open on %q by default", p.Published, p.HostIP)
		}
	}
}

// checkShared checks that gateway and Triton see the same models and memory.
func checkShared(t *testing.T, project *types.Project) {
	t.Helper()
	gateway, triton := project.Services["gateway"], project.Services["triton"]
	for _, target := range []string{"/models", "/dev/shm"} {
		a, b := mounted(gateway, target), mounted(triton, target)
		if a == nil || b == nil || a.Source != b.Source || a.ReadOnly != b.ReadOnly {
			t.Errorf("%s is %v in the gateway and %v in Triton", target, a, b)
		}
	}
	shm := mounted(triton, "/dev/shm")
	if shm.Volume == nil || !shm.Volume.NoCopy {
		t.Error("the volume at /dev/shm takes over the mode of the image's folder, which may keep a user out")
	}
	options := project.Volumes[shm.Source].DriverOpts
	size, err := units.RAMInBytes(regexp.MustCompile(`size=(\w+)`).FindStringSubmatch(options["o"])[1])
	if err != nil || options["type"] != "tmpfs" || !strings.Contains(options["o"], "mode=1777") {
		t.Errorf("/dev/shm is made with %v: %v", options, err)
	}
	if need := batchBytes(t); size < need {
		t.Errorf("/dev/shm has %d bytes, one full batch of every model takes %d", size, need)
	}
	// The code of a .pt2 is run from where it is unpacked.
	if !slices.ContainsFunc(triton.Tmpfs, func(s string) bool {
		return strings.HasPrefix(s, "/tmp:") && strings.Contains(s, "exec") && !strings.Contains(s, "noexec")
	}) {
		t.Errorf("Triton's /tmp is %v: no code can be run from it", triton.Tmpfs)
	}
}

// batchBytes is the size of the tensors of one full batch of every model.
func batchBytes(t *testing.T) (total int64) {
	t.Helper()
	specs, err := filepath.Glob(filepath.Join(root, "model_repository", "*", "spec.yaml"))
	if err != nil || len(specs) == 0 {
		t.Fatalf("no specs: %v", err)
	}
	for _, path := range specs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		type tensor struct {
			DType string  `json:"dtype"`
			Shape []int64 `json:"shape"`
		}
		var spec struct {
			Inputs, Outputs []tensor
			Batching        struct {
				MaxBatchSize int64 `json:"max_batch_size"`
			}
		}
		if err := yaml.Unmarshal(text, &spec); err != nil || spec.Batching.MaxBatchSize == 0 {
			t.Fatalf("%s: %v", path, err)
		}
		for _, tensor := range slices.Concat(spec.Inputs, spec.Outputs) {
			bytes, ok := map[string]int64{"float16": 2, "float32": 4, "int64": 8}[tensor.DType]
			if !ok {
				t.Fatalf("%s: a tensor of %q", path, tensor.DType)
			}
			for _, n := range tensor.Shape {
				bytes *= n
			}
			total += bytes * spec.Batching.MaxBatchSize
		}
	}
	return total
}

// checkStop checks that the gateway is stopped before Triton and is given the time.
func checkStop(t *testing.T, project *types.Project) {
	t.Helper()
	gateway := project.Services["gateway"]
	if on, ok := gateway.DependsOn["triton"]; !ok || on.Condition != types.ServiceConditionHealthy {
		t.Error("the gateway does not depend on Triton: compose would not stop it first")
	}
	if on := project.Services["triton"].DependsOn; len(on) > 0 {
		t.Errorf("Triton depends on %v", on)
	}
	drain, err := time.ParseDuration(settings(t)["DRAIN_LIMIT"])
	if err != nil {
		t.Fatal(err)
	}
	if grace := time.Duration(*gateway.StopGracePeriod); grace < drain+10*time.Second {
		t.Errorf("the gateway is killed after %v, and drains for %v", grace, drain)
	}
	if grace := time.Duration(*project.Services["triton"].StopGracePeriod); grace < 10*time.Second {
		t.Errorf("Triton is killed after %v", grace)
	}
}

func TestComposeGPU(t *testing.T) {
	triton := compose(t, nil, composeFile, gpuFile).Services["triton"]
	devices := triton.Deploy.Resources.Reservations.Devices
	if len(devices) != 1 || devices[0].Driver != "nvidia" || devices[0].Count != 1 || !slices.Equal(devices[0].Capabilities, []string{"gpu"}) {
		t.Errorf("the devices are %+v", devices)
	}
	if triton.Build.Target != "pt2" {
		t.Errorf("its image is stage %q, without torch", triton.Build.Target)
	}
	if cpu := compose(t, nil, composeFile).Services["triton"]; cpu.Deploy != nil {
		t.Errorf("without the override it asks for %+v", cpu.Deploy)
	}
}

// The gateway has the settings, ports and routes that the compose file counts on.
func TestComposeGateway(t *testing.T) {
	project := compose(t, nil, composeFile)
	service, defaults := project.Services["gateway"], settings(t)
	checkSettings(t, "gateway", environment(service))
	for name := range project.Services["repository"].Environment {
		if _, ok := defaults[name]; !ok {
			t.Errorf("repository: %s is no setting", name)
		}
	}
	targets := map[string]bool{}
	for _, p := range service.Ports {
		targets[fmt.Sprint(p.Target)] = true
	}
	if len(targets) != 2 || !targets[defaults["PORT"]] || !targets[defaults["METRICS_PORT"]] {
		t.Errorf("ports %v are published, the gateway listens on %s and %s", targets, defaults["PORT"], defaults["METRICS_PORT"])
	}
	image := dockerfile(t, service.Build.Dockerfile).last()
	if folder := mounted(service, image.env["MODEL_REPOSITORY"]); folder == nil {
		t.Errorf("nothing is mounted at the image's MODEL_REPOSITORY=%s", image.env["MODEL_REPOSITORY"])
	}
	checkProbe(t, service.HealthCheck.Test[1:], "/readyz")
}

// checkProbe runs a health check's command, with the binary, against a gateway that is
// alive and not ready; path is what it must ask for.
func checkProbe(t *testing.T, command []string, path string) {
	t.Helper()
	if len(command) != 3 || command[0] != "gateway" || command[2] != path {
		t.Fatalf("the health check runs %q", command)
	}
	g := alone(t)
	address, err := url.Parse(g.url)
	if err != nil {
		t.Fatal(err)
	}
	probe := exec.Command(binary, command[1:]...)
	probe.Env = []string{"PORT=" + address.Port()}
	out, err := probe.CombinedOutput()
	switch {
	case path == "/livez" && err != nil:
		t.Errorf("%q of a gateway that is alive: %v %s", command, err, out)
	case path != "/livez" && (err == nil || !strings.Contains(string(out), "503")):
		t.Errorf("%q of a gateway that is not ready: %v %s", command, err, out)
	}
}

// `docker compose run --rm repository` runs a command that the binary takes; here on a
// folder without checkpoints, which it says.
func TestComposeRepository(t *testing.T) {
	service := compose(t, nil, composeFile).Services["repository"]
	args := slices.Clone([]string(service.Command))
	for i, arg := range args {
		for _, v := range service.Volumes {
			if strings.HasSuffix(arg, "="+v.Target) {
				args[i] = strings.TrimSuffix(arg, v.Target) + t.TempDir()
			}
		}
		args[i] = strings.Replace(args[i], "/opt/histogate/model_repository", absolute(t, "model_repository"), 1)
	}
	out, err := exec.Command(binary, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no spec names a checkpoint that is in the model folder") {
		t.Errorf("%q: %v\n%s", args, err, out)
	}
}

// .env.example names what can be set, each with the default that it has.
func TestEnvExample(t *testing.T) {
	var env []string
	example := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^#(\w+)=(.*)$`).FindAllStringSubmatch(read(t, ".env.example"), -1) {
		example[match[1]] = match[2]
		if match[2] != "" {
			env = append(env, match[1]+"="+match[2])
		}
	}
	used := map[string]bool{"COMPOSE_FILE": true} // docker compose's own
	for _, file := range []string{composeFile, gpuFile} {
		for _, match := range regexp.MustCompile(`\$\{(\w+)`).FindAllStringSubmatch(read(t, file), -1) {
			used[match[1]] = true
		}
	}
	plain := compose(t, nil, composeFile)
	var raw struct {
		Services map[string]struct {
			Environment map[string]*string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, composeFile)), &raw); err != nil {
		t.Fatal(err)
	}
	for _, s := range raw.Services {
		for name, value := range s.Environment {
			if value == nil {
				used[name] = true // taken from the environment
			}
		}
	}
	for name := range used {
		if _, ok := example[name]; !ok {
			t.Errorf("%s is used and not in .env.example", name)
		}
	}
	for name := range example {
		if !used[name] {
			t.Errorf("%s is in .env.example and nothing uses it", name)
		}
	}
	for name := range strings.SplitSeq(example["COMPOSE_FILE"], ":") {
		read(t, name)
	}
	set := compose(t, env, composeFile)
	defaults := settings(t)
	for name, value := range environment(set.Services["gateway"]) {
		if _, fixed := environment(plain.Services["gateway"])[name]; !fixed && value != defaults[name] {
			t.Errorf(".env.example has %s=%s, its default is %q", name, value, defaults[name])
		}
	}
	for _, project := range []*types.Project{plain, set} {
		for name, s := range project.Services {
			if name == "gateway" || name == "repository" {
				s.Environment = nil
			}
			project.Services[name] = s
		}
		project.Environment = nil
	}
	a, err1 := json.MarshalIndent(plain, "", " ")
	b, err2 := json.MarshalIndent(set, "", " ")
	if err1 != nil || err2 != nil || string(a) != string(b) {
		t.Errorf("with all of .env.example set the project is another (%v, %v):\n%s\n%s", err1, err2, a, b)
	}
}
