package deploy

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// image is what a stage of a Dockerfile says, that of the stages it is built on
// included.
type image struct {
	name, base          string
	env                 map[string]string
	user                string
	ports               []string
	entrypoint, command []string
	probe               []string
	runs                []string
	copies              []*instructions.CopyCommand
}

type stages []*image

func (s stages) stage(name string) *image {
	for _, i := range s {
		if i.name == name {
			return i
		}
	}
	return nil
}

func (s stages) last() *image { return s[len(s)-1] }

// dockerfile parses one as a build would.
func dockerfile(t *testing.T, path string) stages {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = absolute(t, path)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(parsed.Warnings) > 0 {
		t.Errorf("%s: %+v", path, parsed.Warnings)
	}
	all, args, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	given := map[string]string{}
	for _, arg := range args {
		for _, a := range arg.Args {
			given[a.Key] = a.ValueString()
		}
	}
	var found stages
	for _, s := range all {
		base, err := shell.NewLex('\\').ProcessWordWithMatches(s.BaseName, shellEnv(given))
		if err != nil {
			t.Fatal(err)
		}
		i := &image{name: s.Name, base: base.Result, env: map[string]string{}}
		if from := found.stage(i.base); from != nil {
			copied := *from
			i = &copied
			i.name, i.base, i.runs, i.copies = s.Name, base.Result, nil, nil
			i.env, i.ports = maps.Clone(from.env), slices.Clip(from.ports)
		}
		for _, c := range s.Commands {
			i.add(c)
		}
		found = append(found, i)
	}
	return found
}

type shellEnv map[string]string

func (e shellEnv) Get(name string) (string, bool) { v, ok := e[name]; return v, ok }

func (e shellEnv) Keys() (keys []string) {
	for k := range e {
		keys = append(keys, k)
	}
	return keys
}

func (i *image) add(command instructions.Command) {
	switch c := command.(type) {
	case *instructions.EnvCommand:
		for _, pair := range c.Env {
			i.env[pair.Key] = pair.Value
		}
	case *instructions.UserCommand:
		i.user = c.User
	case *instructions.ExposeCommand:
		i.ports = append(i.ports, c.Ports...)
	case *instructions.EntrypointCommand:
		i.entrypoint = c.CmdLine
	case *instructions.CmdCommand:
		i.command = c.CmdLine
	case *instructions.HealthCheckCommand:
		i.probe = c.Health.Test
	case *instructions.RunCommand:
		i.runs = append(i.runs, strings.Join(c.CmdLine, " "))
	case *instructions.CopyCommand:
		i.copies = append(i.copies, c)
	}
}

// packages are what `apt-get install` is told in a stage.
func (i *image) packages(t *testing.T) (names []string) {
	t.Helper()
	for _, run := range i.runs {
		if strings.Contains(run, "deploy/apt-packages") {
			for _, match := range regexp.MustCompile(`(?m)^(\S+) +# (cgo|prep/raster)`).FindAllStringSubmatch(read(t, "deploy/apt-packages"), -1) {
				names = append(names, match[1])
			}
		}
		for _, match := range regexp.MustCompile(`apt-get install ([^&|]*)`).FindAllStringSubmatch(run, -1) {
			for word := range strings.FieldsSeq(match[1]) {
				if !strings.HasPrefix(word, "-") {
					names = append(names, word)
				}
			}
		}
	}
	return names
}

var dockerfiles = []string{"deploy/gateway.Dockerfile", "deploy/triton.Dockerfile", "deploy/sagemaker/Dockerfile"}

// Each source of a COPY is in the checkout and in the context that .dockerignore
// leaves, or in the stage that it names.
func TestDockerfileCopies(t *testing.T) {
	ignore, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	if err != nil {
		t.Fatal(err)
	}
	matcher, err := patternmatcher.New(ignore)
	if err != nil {
		t.Fatal(err)
	}
	// sent lists what of a path is sent to the builder.
	sent := func(source string) (files []string) {
		_ = filepath.WalkDir(filepath.Join(root, source), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			path = strings.TrimPrefix(path, root+"/")
			if left, err := matcher.MatchesOrParentMatches(path); err == nil && !left {
				files = append(files, path)
			}
			return nil
		}) // a source that is not there sends nothing
		return files
	}
	for _, path := range dockerfiles {
		all := dockerfile(t, path)
		for _, stage := range all {
			for _, c := range stage.copies {
				if c.From != "" {
					if all.stage(c.From) == nil {
						t.Errorf("%s: %v copies from %q, which is no stage", path, c, c.From)
					}
					continue
				}
				for _, source := range c.SourcePaths {
					if len(sent(source)) == 0 {
						t.Errorf("%s: %v: no such file in the context", path, c)
					}
				}
			}
		}
	}
	for _, file := range sent("model_repository") {
		if filepath.Base(file) != "spec.yaml" {
			t.Errorf("%s would be part of an image: only specs are to be", file)
		}
	}
	for _, file := range sent(".") {
		if slices.Contains([]string{".git", "build", ".env", "tests"}, strings.Split(file, "/")[0]) {
			t.Errorf("%s is sent to the builder", file)
		}
	}
	if info, err := os.Stat(filepath.Join(root, "deploy/triton/serve")); err != nil || info.Mode()&0o111 != 0o111 {
		t.Errorf("deploy/triton/serve cannot be run as it is copied: %v %v", info, err)
	}
}

// The Debian packages exist in Debian 12, which this machine must be to tell, and the
// final stage has the libraries that the binary is linked to and no others. Those of
// Ubuntu cannot be asked for here: they are held against Debian's, by their names there.
func TestDockerfilePackages(t *testing.T) {
	gateway := dockerfile(t, "deploy/gateway.Dockerfile")
	for _, stage := range gateway {
		names := stage.packages(t)
		if len(names) == 0 {
			t.Errorf("stage %q installs nothing", stage.name)
		}
		if missing := notInDebian(t, names); missing != nil {
			t.Errorf("stage %q: Debian 12 has no packages %v", stage.name, missing)
		}
		if want := regexp.MustCompile(`bookworm`); !want.MatchString(stage.base) {
			t.Errorf("stage %q is built on %s, which is not Debian 12", stage.name, stage.base)
		}
	}
	runtime := gateway.last().packages(t)
	slices.Sort(runtime)
	if linked := linkedPackages(t); !slices.Equal(runtime, linked) {
		t.Errorf("the image has %v, the binary is linked to %v", runtime, linked)
	}

	sagemaker := dockerfile(t, "deploy/sagemaker/Dockerfile")
	ubuntu := func(debian []string) (names []string) {
		differing := map[string]string{ // Ubuntu 24.04's names of the same libraries
			"libjpeg62-turbo": "libjpeg-turbo8", "libjpeg62-turbo-dev": "libjpeg-turbo8-dev",
		}
		for _, name := range debian {
			if other, ok := differing[name]; ok {
				name = other
			}
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	got := sagemaker.last().packages(t)
	slices.Sort(got)
	if want := ubuntu(runtime); !slices.Equal(got, want) {
		t.Errorf("SageMaker's image has %v, of Debian's list that is %v", got, want)
	}
	build := sagemaker.stage("build").packages(t)
	for _, name := range ubuntu(gateway.stage("build").packages(t)) {
		// gcc compiles the C there is.
		if !slices.Contains(build, name) && !slices.Contains([]string{"g++", "make"}, name) {
			t.Errorf("SageMaker's build does not install %s", name)
		}
	}
}

// notInDebian are those packages that Debian 12 does not have.
func notInDebian(t *testing.T, names []string) (missing []string) {
	t.Helper()
	if release := read(t, "/etc/os-release"); !strings.Contains(release, "VERSION_CODENAME=bookworm") {
		t.Skip("this machine is not Debian 12 and cannot tell which packages that has")
	}
	out, err := exec.Command("apt-cache", append([]string{"policy"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `:\n.*\n  Candidate: \d`).Match(out) {
			missing = append(missing, name)
		}
	}
	return missing
}

// linkedPackages are those of this machine whose libraries the binary names, the C
// library apart, which every image has.
func linkedPackages(t *testing.T) (names []string) {
	t.Helper()
	paths, err := exec.Command("ldd", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	direct, err := exec.Command("readelf", "-d", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`NEEDED.*\[(.+)\]`).FindAllStringSubmatch(string(direct), -1) {
		path := regexp.MustCompile(regexp.QuoteMeta(match[1]) + ` => (\S+)`).FindStringSubmatch(string(paths))
		if path == nil {
			t.Fatalf("%s is not found:\n%s", match[1], paths)
		}
		whole, err := filepath.EvalSymlinks(path[1])
		if err != nil {
			t.Fatal(err)
		}
		var owner []byte
		for _, candidate := range []string{path[1], whole, strings.TrimPrefix(path[1], "/usr"), "/usr" + path[1]} {
			if owner, err = exec.Command("dpkg", "-S", candidate).Output(); err == nil {
				break
			}
		}
		name, _, ok := strings.Cut(string(owner), ":")
		if !ok {
			t.Fatalf("%s belongs to no package: %v", path[1], err)
		}
		if name != "libc6" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Each variable that an image sets is a setting, each port one that is listened on,
// and each starts what it is for, as the user that it must.
func TestDockerfileSettings(t *testing.T) {
	defaults := settings(t)
	gateway := dockerfile(t, "deploy/gateway.Dockerfile").last()
	checkSettings(t, "the gateway's image", gateway.env)
	if want := []string{defaults["PORT"], defaults["METRICS_PORT"]}; !slices.Equal(gateway.ports, want) {
		t.Errorf("the gateway's image has ports %v, not %v", gateway.ports, want)
	}
	if !slices.Equal(gateway.entrypoint, []string{"gateway"}) || !slices.Equal(gateway.command, []string{"serve"}) {
		t.Errorf("the gateway's image starts %v %v", gateway.entrypoint, gateway.command)
	}
	checkProbe(t, gateway.probe[1:], "/livez")

	sagemaker := dockerfile(t, "deploy/sagemaker/Dockerfile").last()
	checkSettings(t, "SageMaker's image", sagemaker.env)
	if !slices.Equal(sagemaker.ports, []string{defaults["PORT"]}) || sagemaker.user != "root" {
		t.Errorf("SageMaker's image has ports %v, user %s", sagemaker.ports, sagemaker.user)
	}
	checkProbe(t, sagemaker.probe[1:], "/livez")

	triton := dockerfile(t, "deploy/triton.Dockerfile")
	for _, stage := range triton {
		if !slices.Equal(stage.command, []string{"triton-serve"}) || stage.entrypoint != nil {
			t.Errorf("stage %s of Triton's image starts %v after %v", stage.name, stage.command, stage.entrypoint)
		}
		for name := range stage.env {
			if name != "HOME" {
				t.Errorf("stage %s of Triton's image sets %s, which nothing reads", stage.name, name)
			}
		}
	}
	for name, user := range map[string]string{"the gateway": gateway.user, "Triton": triton.last().user} {
		if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
			t.Errorf("%s runs as %q, which Kubernetes cannot tell from root", name, user)
		}
	}
	if tag := "histogate-triton:pt2"; sagemaker.base != tag {
		t.Errorf("SageMaker's image is built on %s", sagemaker.base)
	}
}

// What is pinned by a version in a Dockerfile is the one that the tests run.
func TestDockerfileVersions(t *testing.T) {
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	for _, path := range dockerfiles {
		for _, stage := range dockerfile(t, path) {
			if strings.HasPrefix(stage.base, "golang:") && stage.base != fmt.Sprintf("golang:%s-bookworm", version) {
				t.Errorf("%s: stage %q is built on %s, go.mod says %s", path, stage.name, stage.base, version)
			}
			if strings.HasSuffix(stage.base, ":latest") || !strings.Contains(stage.base, ":") && dockerfile(t, path).stage(stage.base) == nil {
				t.Errorf("%s: stage %q is built on %s, which is pinned to nothing", path, stage.name, stage.base)
			}
		}
	}
}

// What an image is told of its source is what its metrics tell. Git is not in the context.
func TestDockerfileRevision(t *testing.T) {
	const revision = "4f1c0de"
	build := regexp.MustCompile(`(?m)^ARG REVISION=\nRUN go build -trimpath -ldflags "([^"]*\$REVISION)" -o /gateway (\S+)$`)
	var lines []string // of each image
	for _, path := range []string{"deploy/gateway.Dockerfile", "deploy/sagemaker/Dockerfile"} {
		lines = append(lines, build.FindString(read(t, path)))
	}
	match := build.FindStringSubmatch(lines[0])
	if match == nil || lines[1] != lines[0] {
		t.Fatalf("the images do not build the gateway with a REVISION, both in one way: %q", lines)
	}
	told := filepath.Join(t.TempDir(), "gateway")
	compile := exec.Command("go", "build", "-buildvcs=false", "-ldflags", strings.Replace(match[1], "$REVISION", revision, 1), "-o", told, match[2])
	compile.Dir = absolute(t, ".")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g := listening(t, exec.Command(told, "serve"), "MODEL_REPOSITORY="+absolute(t, "model_repository"), "TRITON_ADDRESS=127.0.0.1:1")
	if !regexp.MustCompile(`histogate_build_info\{[^}]*revision="` + revision + `"`).Match(fetch(t, g.metrics)) {
		t.Errorf("with %s the metrics do not say so", match[0])
	}
}
