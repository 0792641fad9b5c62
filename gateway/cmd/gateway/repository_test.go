package main

import (
	"debug/elf"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"histogate/gateway/checkpoint/checkpointtest"
)

func TestRepository(t *testing.T) {
	here, other := elf.EM_X86_64, elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		here, other = other, here
	}
	good, bad := t.TempDir(), t.TempDir()
	checkpointtest.Package{Machine: here, SMs: []byte{90}, Metadata: `{"inputs": {"x": {"shape": ["B", 3, 224, 224], "dtype": "torch.float16"}},
		"outputs": {"cls": {"shape": ["B", 1536], "dtype": "torch.float16"}}}`}.Write(t, filepath.Join(good, "h1_optimus_cls_token.pt2"))
	checkpointtest.Package{Machine: other}.Write(t, filepath.Join(bad, "h1_optimus_cls_token.pt2"))
	checkpointtest.Package{Machine: here}.Write(t, filepath.Join(bad, "tissue_seg_aoti.pt2"))
	const testdata = "../../../tests/pt2/testdata"
	const models = "../../../model_repository"
	specs, assets := filepath.Join(testdata, "specs"), filepath.Join(testdata, "assets")
	t.Setenv("PATH", t.TempDir()) // no nvidia-smi
	for _, test := range []struct {
		name   string
		args   []string
		env    map[string]string
		code   int
		stdout []string
		stderr string
		not    string // on stdout
	}{
		{name: "nothing", code: 2, stderr: "usage:"},
		{name: "something else", args: []string{"make"}, code: 2, stderr: `"make" is neither build, check nor convert`},
		{name: "no folder", args: []string{"check", "-model-repository", specs}, code: 2, stderr: "MODEL_DIR is not set"},
		{name: "no out", args: []string{"build", "-model-repository", specs, "-model-dir", good}, code: 2, stderr: "-out is not set"},
		{name: "more", args: []string{"check", "-model-dir", good, "more"}, code: 2, stderr: `unexpected argument "more"`},
		{name: "unknown flag", args: []string{"check", "-port", "1"}, code: 2, stderr: "-port"},
		{name: "help of all", args: []string{"-h"}, code: 0, stderr: "gateway repository convert"},
		{name: "help", args: []string{"check", "-h"}, code: 0, stderr: "-target-sm"},
		{name: "bad variable", args: []string{"check", "-model-dir", good}, env: map[string]string{"BATCH_MAX_SIZE": "x"}, code: 2, stderr: `BATCH_MAX_SIZE="x"`},
		{name: "size of 0", args: []string{"check", "-model-dir", good, "-batch-max-size", "0"}, code: 2, stderr: `-batch-max-size="0": must be a whole number from 1 to 1024`},
		{name: "size below 0", args: []string{"check", "-model-dir", good}, env: map[string]string{"BATCH_MAX_SIZE": "-3"}, code: 2, stderr: `BATCH_MAX_SIZE="-3"`},
		{name: "size too large", args: []string{"check", "-model-dir", good, "-batch-max-size", "5000"}, code: 2, stderr: `-batch-max-size="5000"`},
		{name: "wait below 0", args: []string{"check", "-model-dir", good, "-batch-max-wait-ms", "-5"}, code: 2, stderr: `-batch-max-wait-ms="-5": must be a number from 0 to 1000`},
		{name: "wait no number", args: []string{"check", "-model-dir", good, "-batch-max-wait-ms", "NaN"}, code: 2, stderr: `-batch-max-wait-ms="NaN"`},
		{name: "bad SM", args: []string{"check", "-model-repository", specs, "-model-dir", good, "-target-sm", "x"}, code: 2, stderr: "must be an SM version"},
		{name: "good", args: []string{"check", "-model-repository", specs, "-model-dir", good, "-assets-dir", assets}, code: 0,
			stdout: []string{"h1", "good", "on the GPU, batches of up to 48", "tissue-seg", "left out", "not checked", "nvidia-smi is not installed"}},
		{name: "by an alias", args: []string{"check", "-models", "m-optimus-stx", "-model-repository", specs, "-model-dir", good}, code: 1, stdout: []string{"its checkpoint m_optimus_prediction.pt2"}},
		{name: "no model", args: []string{"check", "-models", "m-optima", "-model-repository", specs, "-model-dir", good}, code: 2, stderr: `MODELS: "m-optima" is no model`},
		{name: "by the environment", args: []string{"check"}, env: map[string]string{"MODEL_DIR": good, "MODEL_REPOSITORY": specs, "BATCH_MAX_SIZE": "7", "TARGET_SM": "90"},
			code: 0, stdout: []string{"batches of up to 7"}},
		{name: "bad", args: []string{"check", "-model-repository", specs, "-model-dir", bad}, code: 1,
			stdout: []string{"WRONG", "h1_optimus_cls_token.pt2 is built for", "tissue-seg", "it has no metadata"}},
		{name: "empty", args: []string{"check", "-model-repository", specs, "-model-dir", t.TempDir()}, code: 1, stdout: []string{"no spec names a checkpoint"}},
		{name: "not there", args: []string{"check", "-model-repository", specs, "-model-dir", "/nonexistent"}, code: 1, stderr: "no such file"},
		{name: "build", args: []string{"build", "-model-repository", specs, "-model-dir", good, "-out", t.TempDir()}, code: 0, stdout: []string{"good"}},
		{name: "build for bytes", args: []string{"build", "-model-repository", specs, "-model-dir", good, "-out", t.TempDir(), "-tile-transport", "uint8"}, code: 0, stdout: []string{"good"}},
		{name: "build among the specs", args: []string{"build", "-model-repository", specs, "-model-dir", good, "-out", filepath.Join(specs, "new")}, code: 1, stderr: "name a folder beside it"},
		{name: "convert into itself", args: []string{"convert", "-model-repository", models, "-out", filepath.Join(models, "new")}, code: 1, stderr: "name a folder beside it"},
		{name: "convert", args: []string{"convert", "-model-repository", models, "-out", t.TempDir(), "-tile-transport", "uint8"}, code: 0},
		{name: "convert one", args: []string{"convert", "-out", t.TempDir(), "-models", "m-optimus-stx"}, env: map[string]string{"MODEL_REPOSITORY": models, "BATCH_MAX_SIZE": "7"}, code: 0},
		{name: "convert to something", args: []string{"convert", "-model-repository", models, "-out", t.TempDir(), "-tile-transport", "float16"}, code: 2, stderr: "must be float or uint8"},
		{name: "convert no model", args: []string{"convert", "-model-repository", models, "-out", t.TempDir(), "-models", "h9"}, code: 2, stderr: `"h9" is no model`},
		{name: "convert badly", args: []string{"convert", "-model-repository", models, "-out", t.TempDir(), "-batch-max-size", "0"}, code: 2, stderr: "must be a whole number from 1 to 1024"},
		{name: "convert to nowhere", args: []string{"convert", "-model-repository", models}, code: 2, stderr: "-out is not set"},
		{name: "convert onto it", args: []string{"convert", "-model-repository", models, "-out", models}, code: 1, stderr: "is not empty"},
		{name: "help to convert", args: []string{"convert", "-h"}, code: 0, stderr: "-batch-max-size"},
		{name: "one of two", args: []string{"check", "-models", "tissue-seg", "-model-repository", specs, "-model-dir", bad}, code: 0, stdout: []string{"tissue-seg"}, not: "ignored"},
	} {
		var stdout, stderr strings.Builder
		lookup := func(name string) (string, bool) { v, ok := test.env[name]; return v, ok }
		if code := repository(t.Context(), test.args, lookup, &stdout, &stderr); code != test.code {
			t.Errorf("%s: exit code %d, %s%s", test.name, code, &stdout, &stderr)
		}
		for _, want := range test.stdout {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%s: %q is not in\n%s", test.name, want, &stdout)
			}
		}
		if test.not != "" && strings.Contains(stdout.String(), test.not) {
			t.Errorf("%s: %q is in\n%s", test.name, test.not, &stdout)
		}
		if !strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%s: %q is not in\n%s", test.name, test.stderr, &stderr)
		}
	}
}
