package repository

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

const usage = `usage: gateway repository build -model-dir DIR -specs DIR -out DIR [flags]
       gateway repository check -model-dir DIR -specs DIR [flags]

build makes a Triton model repository of the .pt2 checkpoints in a folder; check
tells what would become of them. Both say of each model what is wrong and what to
change, and exit with 1 when anything is. The flags, and the variables that are
taken where a flag is not given:
`

// Command runs "gateway repository" with the given arguments and returns its
// exit code: 0 when every model was built, 1 when one was not, 2 when it was
// called wrongly.
func Command(ctx context.Context, args []string, lookupEnv func(string) (string, bool), stdout, stderr io.Writer) int {
	what := ""
	if len(args) > 0 {
		what, args = args[0], args[1:]
	}
	var o Options
	var out, models, sm string
	var wait float64
	flags := flag.NewFlagSet("gateway repository", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.ModelDir, "model-dir", "", "folder of the checkpoints (MODEL_DIR)")
	flags.StringVar(&o.Specs, "specs", "", "folder that holds a folder with a spec.yaml for each model (MODEL_REPOSITORY)")
	flags.StringVar(&out, "out", "", "folder to build into; it must be empty")
	flags.StringVar(&o.AssetsDir, "assets-dir", "", "folder that holds, in a folder a model, the gene lists (ASSETS_DIR);\nassets in the model folder where that is there, else /opt/ml/assets")
	flags.StringVar(&models, "models", "", "models to build, separated by commas (MODELS); all whose checkpoint is there when empty")
	flags.StringVar(&sm, "target-sm", "", "SM version of the GPU, such as 90 (TARGET_SM); what nvidia-smi says when empty")
	flags.IntVar(&o.MaxBatchSize, "batch-max-size", 0, "rows of a batch, from 1 to 1024 (BATCH_MAX_SIZE); what the spec says when 0")
	flags.Float64Var(&wait, "batch-max-wait-ms", -1, "how long a batch may wait for more, from 0 to 1000 (BATCH_MAX_WAIT_MS);\nwhat the spec says when negative")
	flags.BoolVar(&o.Copy, "copy", false, "copy the checkpoints into the repository; else it links to them")
	if what != "build" && what != "check" {
		flags.Usage()
		return 2
	}
	for name, env := range map[string]string{"model-dir": "MODEL_DIR", "specs": "MODEL_REPOSITORY", "assets-dir": "ASSETS_DIR", "models": "MODELS",
		"target-sm": "TARGET_SM", "batch-max-size": "BATCH_MAX_SIZE", "batch-max-wait-ms": "BATCH_MAX_WAIT_MS"} {
		if value, ok := lookupEnv(env); ok && value != "" {
			if err := flags.Set(name, value); err != nil {
				fmt.Fprintf(stderr, "gateway repository: %s=%q: %v\n", env, value, err)
				return 2
			}
		}
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if o.ModelDir == "" || o.Specs == "" || what == "build" && out == "" || flags.NArg() > 0 {
		flags.Usage()
		return 2
	}
	if wait >= 0 {
		o.MaxQueueDelayMS = &wait
	}
	if o.AssetsDir == "" {
		o.AssetsDir = AssetsDir(o.ModelDir)
	}
	for name := range strings.SplitSeq(models, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.Models = append(o.Models, name)
		}
	}
	var err error
	if o.Target, err = FindTarget(ctx, sm); err != nil {
		fmt.Fprintf(stderr, "gateway repository: -target-sm: %v\n", err)
		return 2
	}
	result, err := buildOrCheck(out, what == "check", o)
	if err != nil {
		fmt.Fprintf(stderr, "gateway repository: %v\n", err)
		return 1
	}
	result.write(stdout, o.Target)
	if result.Built() == 0 || result.Built() < len(result.Models) {
		return 1
	}
	return 0
}

// buildOrCheck builds, into a folder that is removed again if it is but a check.
func buildOrCheck(out string, check bool, o Options) (result *Result, err error) {
	if check {
		if out, err = os.MkdirTemp("", "histogate-check-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
		o.Copy = false
	}
	return Build(out, o)
}

// write tells a person what became of all.
func (r *Result) write(w io.Writer, target Target) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer table.Flush() //nolint:errcheck // nobody is left to tell
	gpus := false
	for _, m := range r.Models {
		if m.Problem != nil {
			fmt.Fprintf(table, "%s\tWRONG\t%v\n", m.Spec.Name, m.Problem)
			continue
		}
		device := "CPU"
		if m.Package.CUDA {
			device = "GPU"
			gpus = true
		}
		described := ""
		if m.Package.Metadata == nil {
			described = "; it has no metadata, so the spec's names and shapes are taken"
		}
		fmt.Fprintf(table, "%s\tgood\t%s, for %s, on the %s, batches of up to %d%s\n",
			m.Spec.Name, m.Package.File, m.Package.CPUs[0], device, m.Spec.Batching.MaxBatchSize, described)
	}
	for _, name := range r.LeftOut {
		fmt.Fprintf(table, "%s\tleft out\tits checkpoint is not in the model folder, or its spec names none\n", name)
	}
	for _, name := range r.Unknown {
		fmt.Fprintf(table, "%q\tignored\tno spec names it in its field checkpoint\n", name)
	}
	if gpus && len(target.SMs) == 0 {
		fmt.Fprintf(table, "GPU\tnot checked\tneither TARGET_SM nor nvidia-smi tells the SM version to check GPU code against\n")
	}
	if len(r.Models) == 0 {
		fmt.Fprintf(table, "nothing\tWRONG\tno spec names a checkpoint that is in the model folder\n")
	}
}
