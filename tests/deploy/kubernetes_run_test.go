package deploy

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Each probe asks for what the running binaries have, and what it is to tell: alive
// without Triton, ready only with it.
func TestKubernetesProbes(t *testing.T) {
	without, backend := alone(t), runTriton(t)
	triton := "http://127.0.0.1:" + backend.http
	await(t, triton+"/v2/health/live")
	with := serve(t, "MODELS=h1", "MODEL_REPOSITORY="+absolute(t, "model_repository"), "TRITON_ADDRESS=127.0.0.1:"+backend.grpc)
	await(t, with.url+"/ping")
	folders(t, func(t *testing.T, c *cluster) {
		gateway := c.gateway()
		for name, probe := range map[string]*core.Probe{"startup": gateway.StartupProbe, "liveness": gateway.LivenessProbe, "readiness": gateway.ReadinessProbe} {
			if fmt.Sprint(c.port(probe.HTTPGet.Port)) != settings(t)["PORT"] {
				t.Errorf("%s asks port %s", name, probe.HTTPGet.Port.String())
			}
			want := http.StatusOK
			if name == "readiness" {
				want = http.StatusServiceUnavailable
			}
			if got := status(t, without.url+probe.HTTPGet.Path); got != want {
				t.Errorf("%s: GET %s without Triton is answered %d, not %d", name, probe.HTTPGet.Path, got, want)
			}
			if got := status(t, with.url+probe.HTTPGet.Path); got != http.StatusOK {
				t.Errorf("%s: GET %s of a ready gateway is answered %d", name, probe.HTTPGet.Path, got)
			}
		}
		sidecar := c.triton(t)
		if sidecar.ReadinessProbe != nil {
			t.Error("Triton has a readiness probe: it is not ready while any model is not loaded")
		}
		for _, probe := range []*core.Probe{sidecar.StartupProbe, sidecar.LivenessProbe} {
			if c.port(probe.HTTPGet.Port) != 8000 {
				t.Errorf("Triton's probe asks port %s", probe.HTTPGet.Port.String())
			}
			if got := status(t, triton+probe.HTTPGet.Path); got != http.StatusOK {
				t.Errorf("GET %s of a live Triton is answered %d", probe.HTTPGet.Path, got)
			}
		}
		if image := dockerfile(t, "deploy/triton.Dockerfile").last(); sidecar.Args[0] != image.command[0] || sidecar.Command != nil {
			t.Errorf("Triton is started with %v %v, its image starts %v", sidecar.Command, sidecar.Args, image.command)
		}
	})
}

// A pod is given the time that its drain takes, and Triton outlives the gateway.
func TestKubernetesDrain(t *testing.T) {
	folders(t, func(t *testing.T, c *cluster) {
		env := map[string]string{}
		for _, e := range c.gateway().Env {
			if e.Name != "GOMEMLIMIT" { // the Go runtime's
				env[e.Name] = e.Value
			}
		}
		checkSettings(t, "gateway", env)
		limit, ok := env["DRAIN_LIMIT"]
		if !ok {
			limit = settings(t)["DRAIN_LIMIT"]
		}
		drain, err := time.ParseDuration(limit) // DRAIN_DELAY is part of it
		if err != nil {
			t.Fatal(err)
		}
		hook := c.gateway().Lifecycle.PreStop.Sleep
		exit := regexp.MustCompile(`--exit-timeout-secs=(\d+)`).FindStringSubmatch(read(t, "deploy/triton/serve"))
		seconds, err := strconv.Atoi(exit[1])
		if err != nil || hook == nil {
			t.Fatalf("preStop is %v, Triton's exit %v", hook, exit)
		}
		// The gateway cancels what is pending in the 2 s after the drain.
		need := time.Duration(hook.Seconds)*time.Second + drain + 2*time.Second + time.Duration(seconds)*time.Second
		if grace := time.Duration(*c.pod.TerminationGracePeriodSeconds) * time.Second; grace < need+5*time.Second {
			t.Errorf("the pod is killed after %v, its end takes up to %v", grace, need)
		}
		if policy := c.triton(t).RestartPolicy; policy == nil || *policy != core.ContainerRestartPolicyAlways {
			t.Error("Triton is no sidecar: it would be stopped together with the gateway")
		}
	})
}

// The autoscaler's metric is one that the gateway has, and what the adapter makes of it.
func TestKubernetesScaling(t *testing.T) {
	g := alone(t)
	exposed := fetch(t, g.metrics)
	var adapter struct {
		Rules []struct {
			SeriesQuery string `json:"seriesQuery"`
			Resources   struct {
				Overrides map[string]struct {
					Resource string `json:"resource"`
				} `json:"overrides"`
			} `json:"resources"`
			Name struct {
				As string `json:"as"`
			} `json:"name"`
			MetricsQuery string `json:"metricsQuery"`
		} `json:"rules"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "deploy/k8s/prometheus-adapter.yaml")), &adapter); err != nil {
		t.Fatal(err)
	}
	rule := adapter.Rules[0]
	series, _, _ := strings.Cut(rule.SeriesQuery, "{")
	if !strings.Contains(string(exposed), "\n# TYPE "+series+" gauge\n") {
		t.Errorf("the gateway has no gauge %s", series)
	}
	query := strings.NewReplacer("<<.Series>>", series, "<<.LabelMatchers>>", `pod="a"`, "<<.GroupBy>>", "pod").Replace(rule.MetricsQuery)
	rules := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(rules, []byte("groups: [{name: a, rules: [{record: b, expr: '"+query+"'}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(absolute(t, "build/prometheus/promtool"), "check", "rules", rules).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", query, err, out)
	}
	folders(t, func(t *testing.T, c *cluster) {
		metric := c.scaler.Spec.Metrics[0]
		if len(c.scaler.Spec.Metrics) != 1 || metric.Type != autoscaling.PodsMetricSourceType || metric.Pods.Metric.Name != rule.Name.As || series != rule.Name.As {
			t.Errorf("the autoscaler asks for %+v, the adapter makes %s of %s", metric, rule.Name.As, series)
		}
		// Twice what one model has inside Triton.
		if got := metric.Pods.Target.AverageValue.Value(); got != 4*48 || !strings.Contains(read(t, "model_repository/h1/config.pbtxt"), "max_batch_size: 48") {
			t.Errorf("it scales at %d in flight", got)
		}
		for label, resource := range map[string]string{"namespace": "namespace", "pod": "pod"} {
			if rule.Resources.Overrides[label].Resource != resource {
				t.Errorf("the adapter takes %v", rule.Resources.Overrides)
			}
		}
	})
}

// The command of the init container is one that the binary takes, a second time too.
func TestKubernetesRepository(t *testing.T) {
	folders(t, func(t *testing.T, c *cluster) {
		init, models, bin := c.repository(t), t.TempDir(), t.TempDir()
		if err := os.Symlink(binary, filepath.Join(bin, "gateway")); err != nil {
			t.Fatal(err)
		}
		args := slices.Concat(init.Command, init.Args)
		for i := range args {
			args[i] = strings.NewReplacer("/opt/histogate/model_repository", absolute(t, "model_repository"),
				"/opt/ml/model", t.TempDir(), "/models", models).Replace(args[i])
		}
		if err := os.WriteFile(filepath.Join(models, "left"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(args[0], args[1:]...)
		command.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		out, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "no spec names a checkpoint that is in the model folder") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
		env := map[string]string{}
		for _, e := range init.Env {
			env[e.Name] = e.Value
		}
		checkSettings(t, "repository", env)
	})
}
