package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// sagemakerImage is what the container of the SageMaker image would be, in a folder of
// this machine: what the Dockerfile copies and sets, with this machine's Triton.
type sagemakerImage struct {
	folder string
	image  *image
}

// lay lays out the image with a Triton of build and specs of the checkout.
func lay(t *testing.T, triton, specs string) *sagemakerImage {
	t.Helper()
	s := &sagemakerImage{t.TempDir(), dockerfile(t, "deploy/sagemaker/Dockerfile").last()}
	link := func(target, path string) {
		path = filepath.Join(s.folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	link(absolute(t, triton, "tritonserver"), "/opt/tritonserver/bin/tritonserver") // where Triton's image has them
	link(absolute(t, triton, "backends"), "/opt/tritonserver/backends")
	for _, c := range s.image.copies {
		switch {
		case c.From != "":
			link(binary, c.DestPath)
		case slices.Equal(c.SourcePaths, []string{"model_repository"}):
			found, err := filepath.Glob(absolute(t, specs, "*", "spec.yaml")) // what .dockerignore leaves
			if err != nil || len(found) == 0 {
				t.Fatalf("no specs: %v", err)
			}
			for _, spec := range found {
				link(spec, filepath.Join(c.DestPath, filepath.Base(filepath.Dir(spec)), "spec.yaml"))
			}
		case slices.Equal(c.SourcePaths, []string{"LICENSE", "NOTICE"}):
			for _, text := range c.SourcePaths {
				link(absolute(t, text), filepath.Join(c.DestPath, text))
			}
		default:
			t.Fatalf("%v is not laid out by this test", c)
		}
	}
	if err := os.MkdirAll(s.models(), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

// models is /opt/ml/model.
func (s *sagemakerImage) models() string { return filepath.Join(s.folder, "opt/ml/model") }

// command is what SageMaker runs, with the argument serve and with more variables, in
// all of which what begins with /opt is in the folder.
func (s *sagemakerImage) command(t *testing.T, more ...string) (*exec.Cmd, []string) {
	t.Helper()
	env := []string{"PORT=", "SAGEMAKER_BIND_TO_PORT=" + freePort(t), "SAGEMAKER_SAFE_PORT_RANGE=21200-21299"}
	for name, value := range s.image.env {
		env = append(env, name+"="+value)
	}
	env = append(env, more...)
	for i := range env {
		env[i] = strings.Replace(env[i], "=/opt/", "="+s.folder+"/opt/", 1)
	}
	path := filepath.Join(s.folder, "usr/local/bin")
	args := slices.Concat(s.image.entrypoint[1:], []string{"serve"})
	return exec.Command(filepath.Join(path, s.image.entrypoint[0]), args...), append(env, "PATH="+path+":"+os.Getenv("PATH"))
}

// run runs the command.
func (s *sagemakerImage) run(t *testing.T, more ...string) *gateway {
	t.Helper()
	command, env := s.command(t, more...)
	return listening(t, command, env...)
}

// serves checks what SageMaker asks of a container, and its end.
func (s *sagemakerImage) serves(t *testing.T, g *gateway, model string) {
	t.Helper()
	await(t, g.url+"/ping")
	began := time.Now()
	if got := status(t, g.url+"/ping"); got != 200 || time.Since(began) > 2*time.Second {
		t.Errorf("/ping answers %d after %v", got, time.Since(began))
	}
	embed(t, g.url, model)
	began = time.Now()
	if code := g.stop(t, 30*time.Second); code != 0 {
		t.Errorf("it ended with exit code %d", code)
	}
	t.Logf("SIGTERM to exit: %v", time.Since(began).Round(10*time.Millisecond))
}

// The start of SageMaker's container, with a model repository in /opt/ml/model. The
// libraries, the user and the network of the container are this machine's.
func TestSageMakerStart(t *testing.T) {
	s := lay(t, "build/triton", "model_repository")
	for _, model := range []string{"h1", "m-optimus"} {
		if err := os.CopyFS(filepath.Join(s.models(), model), os.DirFS(absolute(t, "model_repository", model))); err != nil {
			t.Fatal(err)
		}
	}
	s.serves(t, s.run(t, "MODEL_REPOSITORY=/opt/ml/model", "MODEL_DIR=", "DEFAULT_MODEL=h1"), "")
}

// With an empty /opt/ml/model the container ends, and says what is missing.
func TestSageMakerWithoutModels(t *testing.T) {
	command, env := lay(t, "build/triton", "model_repository").command(t)
	command.Env = env
	out, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/opt/ml/model") || !strings.Contains(string(out), "holds no checkpoint that a spec") {
		t.Errorf("%v %s", err, out)
	}
}

// python runs a script with boto3, without an account.
func python(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := exec.Command(absolute(t, "build/tools/bin/python"), args...)
	command.Env = []string{
		"PYTHONDONTWRITEBYTECODE=1", "AWS_EC2_METADATA_DISABLED=true", "HOME=" + t.TempDir(),
		"AWS_ENDPOINT_URL=http://127.0.0.1:1", // nothing can be sent anywhere
	}
	out, err := command.CombinedOutput()
	return string(out), err
}

// The calls are what botocore describes; that SageMaker does with them what is said is
// not checked.
func TestSageMakerCalls(t *testing.T) {
	out, err := python(t, "sagemaker_calls.py")
	if err != nil || !strings.Contains(out, "OK") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The commands in the README are taken, and what they set are settings.
func TestSageMakerReadme(t *testing.T) {
	text := strings.ReplaceAll(read(t, "deploy/sagemaker/README.md"), "\\\n", " ")
	commands := regexp.MustCompile(`(?m)^python3 (deploy/sagemaker/deploy\.py .*)$`).FindAllStringSubmatch(text, -1)
	var operations []string
	for _, match := range commands {
		args := strings.Fields(match[1])
		args[0] = absolute(t, args[0])
		out, err := python(t, append(args, "--dry-run")...)
		if err != nil {
			t.Errorf("%s: %v\n%s", match[1], err, out)
		}
		for line := range strings.Lines(out) {
			var call struct {
				Operation  string
				Parameters struct {
					PrimaryContainer struct{ Environment map[string]string }
				}
			}
			if err := json.Unmarshal([]byte(line), &call); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if call.Operation != "" {
				operations = append(operations, call.Operation)
			}
			if env := call.Parameters.PrimaryContainer.Environment; env != nil {
				checkSettings(t, match[1], env)
			}
		}
	}
	want := []string{
		"create_model", "create_endpoint_config", "create_endpoint", "register_scalable_target", "put_scaling_policy",
		"create_transform_job", "deregister_scalable_target", "delete_endpoint", "delete_endpoint_config", "delete_model",
	}
	if !slices.Equal(operations, want) {
		t.Errorf("the commands call %v", operations)
	}
}
