package deploy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// inferenceService is KServe's, as far as its fields are used here: its module is not to
// be had. That it has these fields is what its documentation says.
type inferenceService struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Predictor struct {
			Labels      map[string]string `json:"labels"`
			MinReplicas int32             `json:"minReplicas"`
			MaxReplicas int32             `json:"maxReplicas"`
			core.PodSpec
		} `json:"predictor"`
	} `json:"spec"`
}

// cluster is what one of the folders of deploy/k8s makes.
type cluster struct {
	namespace  core.Namespace
	deployment apps.Deployment
	inference  inferenceService
	services   map[string]core.Service
	scaler     autoscaling.HorizontalPodAutoscaler
	budget     policy.PodDisruptionBudget
	network    networking.NetworkPolicy
	monitor    monitoring.ServiceMonitor

	pod       core.PodSpec // of the Deployment or the InferenceService
	podLabels map[string]string
}

// kustomize builds a folder and decodes what comes out strictly: a field that the API
// does not have fails the test. What a cluster's admission refuses beyond that, such as
// a value out of range, is not checked, but for its pod security standard.
func kustomize(t *testing.T, folder string) *cluster {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), absolute(t, "deploy/k8s", folder))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{services: map[string]core.Service{}}
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		var service core.Service
		into, ok := map[string]any{
			"v1 Namespace": &c.namespace, "v1 Service": &service, "apps/v1 Deployment": &c.deployment,
			"serving.kserve.io/v1beta1 InferenceService": &c.inference, "autoscaling/v2 HorizontalPodAutoscaler": &c.scaler,
			"policy/v1 PodDisruptionBudget": &c.budget, "networking.k8s.io/v1 NetworkPolicy": &c.network,
			"monitoring.coreos.com/v1 ServiceMonitor": &c.monitor,
		}[r.GetApiVersion()+" "+r.GetKind()]
		if !ok {
			t.Fatalf("%s: no type for a %s of %s", folder, r.GetKind(), r.GetApiVersion())
		}
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Errorf("%s: %s %s: %v", folder, r.GetKind(), r.GetName(), err)
		}
		if r.GetKind() != "Namespace" && r.GetNamespace() != "histogate" {
			t.Errorf("%s: %s %s is in namespace %q", folder, r.GetKind(), r.GetName(), r.GetNamespace())
		}
		if service.Name != "" {
			c.services[service.Name] = service
		}
	}
	c.pod, c.podLabels = c.deployment.Spec.Template.Spec, c.deployment.Spec.Template.Labels
	if c.inference.Name != "" {
		c.pod, c.podLabels = c.inference.Spec.Predictor.PodSpec, c.inference.Spec.Predictor.Labels
	}
	return c
}

func container(t *testing.T, list []core.Container, name string) core.Container {
	t.Helper()
	i := slices.IndexFunc(list, func(c core.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no container %s", name)
	}
	return list[i]
}

// The three containers of a replica.
func (c *cluster) repository(t *testing.T) core.Container {
	return container(t, c.pod.InitContainers, "repository")
}

func (c *cluster) triton(t *testing.T) core.Container {
	return container(t, c.pod.InitContainers, "triton")
}

func (c *cluster) gateway() core.Container { return c.pod.Containers[0] }

func (c *cluster) all() []core.Container {
	return slices.Concat(c.pod.InitContainers, c.pod.Containers)
}

// port is the number of a container's port, by its name in the pod.
func (c *cluster) port(name intstr.IntOrString) int32 {
	for _, container := range c.all() {
		for _, p := range container.Ports {
			if p.Name == name.StrVal || p.ContainerPort == name.IntVal {
				return p.ContainerPort
			}
		}
	}
	return 0
}

func folders(t *testing.T, check func(t *testing.T, c *cluster)) {
	t.Helper()
	for _, folder := range []string{"base", "gpu", "kserve"} {
		t.Run(folder, func(t *testing.T) { check(t, kustomize(t, folder)) })
	}
}

// All that refers to something in the same folder refers to something that is there.
func TestKubernetesReferences(t *testing.T) {
	folders(t, func(t *testing.T, c *cluster) {
		target := c.scaler.Spec.ScaleTargetRef
		deployment := c.deployment.Name
		if c.inference.Name != "" {
			deployment = c.inference.Name + "-predictor" // as KServe names it
			p := c.inference.Spec.Predictor
			if p.MinReplicas != *c.scaler.Spec.MinReplicas || p.MaxReplicas != c.scaler.Spec.MaxReplicas {
				t.Errorf("%d to %d replicas for KServe, %d to %d for the autoscaler", p.MinReplicas, p.MaxReplicas, *c.scaler.Spec.MinReplicas, c.scaler.Spec.MaxReplicas)
			}
		} else if selector := c.deployment.Spec.Selector; !matches(t, selector, c.podLabels) {
			t.Errorf("the Deployment does not select its pods: %v", selector)
		} else if api := c.services["histogate"]; api.Spec.Ports[0].Port != 80 || fmt.Sprint(c.port(api.Spec.Ports[0].TargetPort)) != settings(t)["PORT"] {
			t.Errorf("the Service's ports are %+v", api.Spec.Ports)
		}
		if target.Kind != "Deployment" || target.APIVersion != "apps/v1" || target.Name != deployment {
			t.Errorf("the autoscaler scales %+v, not %s", target, deployment)
		}
		for name, selector := range map[string]*meta.LabelSelector{"the budget": c.budget.Spec.Selector, "the network policy": &c.network.Spec.PodSelector} {
			if !matches(t, selector, c.podLabels) {
				t.Errorf("%s does not select the pods: %v", name, selector)
			}
		}
		for _, s := range c.services {
			if !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(c.podLabels)) {
				t.Errorf("Service %s does not select the pods", s.Name)
			}
			for _, p := range s.Spec.Ports {
				if c.port(p.TargetPort) == 0 {
					t.Errorf("Service %s: no container has the port %s", s.Name, p.TargetPort.String())
				}
			}
		}
		var monitored []string
		metrics := c.services["histogate-metrics"]
		if !matches(t, &c.monitor.Spec.Selector, metrics.Labels) {
			t.Error("the ServiceMonitor does not select the Service of metrics")
		}
		var jobs []string
		for _, e := range c.monitor.Spec.Endpoints {
			for _, r := range e.RelabelConfigs {
				if r.TargetLabel == "job" && r.Replacement != nil {
					jobs = append(jobs, *r.Replacement)
				}
			}
			i := slices.IndexFunc(metrics.Spec.Ports, func(p core.ServicePort) bool { return p.Name == e.Port })
			if i < 0 {
				t.Fatalf("the ServiceMonitor's port %s is not the Service's", e.Port)
			}
			monitored = append(monitored, fmt.Sprint(c.port(metrics.Spec.Ports[i].TargetPort), e.Path))
		}
		if want := []string{settings(t)["METRICS_PORT"] + "/metrics", "8002/metrics"}; !slices.Equal(monitored, want) {
			t.Errorf("monitored is %v, not %v", monitored, want)
		}
		if want := scrapeJobs(t); !slices.Equal(jobs, want) {
			t.Errorf("Prometheus calls the jobs %v here, %v in compose", jobs, want)
		}
		var open []int32
		for _, rule := range c.network.Spec.Ingress {
			for _, p := range rule.Ports {
				open = append(open, c.port(*p.Port))
			}
		}
		if !slices.Equal(open, []int32{8080, 9090, 8002}) || len(c.network.Spec.Egress) > 0 || len(c.network.Spec.PolicyTypes) != 2 {
			t.Errorf("the network policy opens %v and %v, of %v", open, c.network.Spec.Egress, c.network.Spec.PolicyTypes)
		}
		checkMounts(t, c)
	})
}

func matches(t *testing.T, selector *meta.LabelSelector, set map[string]string) bool {
	t.Helper()
	s, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return !s.Empty() && s.Matches(labels.Set(set))
}

// checkMounts checks that what is mounted exists, and that the two see the same models,
// checkpoints and memory, each at the path that the images say.
func checkMounts(t *testing.T, c *cluster) {
	t.Helper()
	volumes := map[string]core.Volume{}
	for _, v := range c.pod.Volumes {
		volumes[v.Name] = v
	}
	at := map[string]map[string]string{} // volume by container and path
	for _, container := range c.all() {
		at[container.Name] = map[string]string{}
		for _, m := range container.VolumeMounts {
			at[container.Name][m.MountPath] = m.Name
			if _, ok := volumes[m.Name]; !ok {
				t.Errorf("%s mounts %s, which is no volume", container.Name, m.Name)
			}
			if shared := m.Name == "models" || m.Name == "checkpoints"; shared && !m.ReadOnly && container.Name != "repository" {
				t.Errorf("%s can write to %s", container.Name, m.Name)
			}
		}
	}
	gateway, triton := at[c.gateway().Name], at["triton"]
	models := dockerfile(t, "deploy/gateway.Dockerfile").last().env["MODEL_REPOSITORY"]
	for _, path := range []string{models, "/opt/ml/model", "/dev/shm"} {
		if gateway[path] == "" || gateway[path] != triton[path] {
			t.Errorf("%s is volume %q in the gateway, %q in Triton", path, gateway[path], triton[path])
		}
	}
	if gateway["/tmp"] == "" || triton["/tmp"] == "" || gateway["/tmp"] == triton["/tmp"] {
		t.Errorf("/tmp is %q and %q", gateway["/tmp"], triton["/tmp"])
	}
	shm := volumes[triton["/dev/shm"]].EmptyDir
	if shm == nil || shm.Medium != core.StorageMediumMemory || shm.SizeLimit == nil || shm.SizeLimit.Value() < batchBytes(t) {
		t.Errorf("/dev/shm is %+v; one full batch of every model takes %d bytes", shm, batchBytes(t))
	}
	if at["repository"][models] != gateway[models] || at["repository"]["/opt/ml/model"] != gateway["/opt/ml/model"] {
		t.Errorf("the init container has %v", at["repository"])
	}
}

// The pods pass the standard that their namespace enforces, run as the images' users and
// with the images' names replaced.
func TestKubernetesSecurity(t *testing.T) {
	evaluator, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	folders(t, func(t *testing.T, c *cluster) {
		level := api.LevelVersion{Level: api.Level(c.namespace.Labels[api.EnforceLevelLabel]), Version: api.LatestVersion()}
		if level.Level != api.LevelRestricted {
			t.Errorf("the namespace enforces %q", level.Level)
		}
		for _, result := range evaluator.EvaluatePod(level, &meta.ObjectMeta{}, &c.pod) {
			if !result.Allowed {
				t.Errorf("%s: %s", result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
		for name, path := range map[string]string{c.gateway().Name: "deploy/gateway.Dockerfile", "repository": "deploy/gateway.Dockerfile", "triton": "deploy/triton.Dockerfile"} {
			s := container(t, c.all(), name)
			if user := fmt.Sprintf("%d:%d", *s.SecurityContext.RunAsUser, *s.SecurityContext.RunAsGroup); user != dockerfile(t, path).last().user {
				t.Errorf("%s runs as %s, its image as %s", name, user, dockerfile(t, path).last().user)
			}
			if !*s.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%s can write to its image", name)
			}
			if !strings.HasPrefix(s.Image, "registry.example.com/histogate-") || !strings.Contains(s.Image, ":1") {
				t.Errorf("the image of %s is %s", name, s.Image)
			}
		}
	})
}

func TestKubernetesGPU(t *testing.T) {
	gpu := core.ResourceName("nvidia.com/gpu")
	c := kustomize(t, "gpu")
	if limits := c.triton(t).Resources.Limits; limits.Name(gpu, "").Value() != 1 {
		t.Errorf("Triton's limits are %v", limits)
	}
	if limits := kustomize(t, "base").triton(t).Resources.Limits; !limits.Name(gpu, "").IsZero() {
		t.Errorf("without a GPU Triton's limits are %v", limits)
	}
	if len(c.pod.Tolerations) != 1 || c.pod.Tolerations[0].Key != string(gpu) {
		t.Errorf("the tolerations are %v", c.pod.Tolerations)
	}
}

// KServe is given the Deployment's pod, and nothing else.
func TestKubernetesKServe(t *testing.T) {
	base, kserve := kustomize(t, "base"), kustomize(t, "kserve")
	if name := kserve.pod.Containers[0].Name; name != "kserve-container" {
		t.Errorf("KServe would not know the container %s", name)
	}
	kserve.pod.Containers[0].Name = base.pod.Containers[0].Name
	if !reflect.DeepEqual(base.pod, kserve.pod) || !maps.Equal(base.podLabels, kserve.podLabels) {
		t.Errorf("the Deployment's pod is\n%+v %v\nKServe's\n%+v %v", base.pod, base.podLabels, kserve.pod, kserve.podLabels)
	}
	if a := kserve.inference.Annotations; a["serving.kserve.io/deploymentMode"] != "Standard" || a["serving.kserve.io/autoscalerClass"] != "external" {
		t.Errorf("the annotations are %v", a)
	}
}
