package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"histogate/gateway"
	modelrepo "histogate/gateway/repository"
	"histogate/prep"
)

const repositoryUsage = `usage: gateway repository build -model-dir DIR -out DIR [flags]
       gateway repository check -model-dir DIR [flags]
       gateway repository convert -out DIR [flags]

build makes a Triton model repository of the .pt2 checkpoints in a folder, by the
specs in MODEL_REPOSITORY; check tells what would become of them. Both say of each
model what is wrong and what to change, and exit with 1 when anything is. convert
copies MODEL_REPOSITORY, whatever its checkpoints are, with links to those: each
config.pbtxt says what its spec.yaml says, and both say what the flags do.

  -out
    folder to build or to convert into; it must be empty, or not be there
  -copy
    copies the checkpoints into what is built; else it links to them
  -tile-transport
    what tiles go to Triton as, float or uint8, whatever the specs say of it

Each of these can also be set by the environment variable named beside it; the flag
wins. They are read as "gateway serve" reads them.
`

// repository runs "gateway repository" with the given arguments and returns its exit
// code: 0 when every model was built, 1 when one was not, 2 when it was called wrongly.
func repository(ctx context.Context, args []string, lookupEnv func(string) (string, bool), stdout, stderr io.Writer) int {
	what := ""
	if len(args) > 0 {
		what, args = args[0], args[1:]
	}
	known := slices.Contains([]string{"build", "check", "convert"}, what)
	if !known {
		if known = isHelp(what); what != "" && !known {
			fmt.Fprintf(stderr, "gateway repository: %q is neither build, check nor convert\n\n", what)
		}
		args = []string{"-h"}
	}
	flags := flag.NewFlagSet("gateway repository", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "", "")
	var transport prep.Transport
	flags.Func("tile-transport", "", func(value string) error {
		transport = prep.Transport(value)
		if transport != prep.FloatTransport && transport != prep.UInt8Transport {
			return fmt.Errorf("must be %s or %s", prep.FloatTransport, prep.UInt8Transport)
		}
		return nil
	})
	var conversion gateway.Conversion
	var options modelrepo.Options
	var err error
	if what == "convert" {
		conversion, err = gateway.ReadConversion(flags, repositoryUsage, args, lookupEnv)
		conversion.Changes.TileTransport = transport
	} else {
		copied := flags.Bool("copy", false, "")
		options, err = gateway.ReadBuildOptions(ctx, flags, repositoryUsage, args, lookupEnv)
		options.Copy, options.TileTransport = *copied, transport
	}
	if err == nil && what != "check" && *out == "" {
		err = errors.New("-out is not set: name the folder for what is made")
	}
	switch {
	case errors.Is(err, flag.ErrHelp) && known:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintf(stderr, "gateway repository: it is called wrongly:\n%v\n", err)
		return 2
	}
	if what == "convert" {
		if err := modelrepo.Convert(*out, conversion.From, conversion.Models, conversion.Changes); err != nil {
			fmt.Fprintf(stderr, "gateway repository: %v\n", err)
			return 1
		}
		return 0
	}
	result, err := buildOrCheck(*out, what == "check", options)
	if err != nil {
		fmt.Fprintf(stderr, "gateway repository: %v\n", err)
		return 1
	}
	write(stdout, result, options.Target)
	if result.Built() == 0 || result.Built() < len(result.Models) {
		return 1
	}
	return 0
}

// buildOrCheck builds, into a folder that is removed again if it is but a check.
func buildOrCheck(out string, check bool, o modelrepo.Options) (result *modelrepo.Result, err error) {
	if check {
		if out, err = os.MkdirTemp("", "histogate-check-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
		o.Copy = false
	}
	return modelrepo.Build(out, o)
}

// write tells a person what became of all.
func write(w io.Writer, r *modelrepo.Result, target modelrepo.Target) {
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
		fmt.Fprintf(table, "GPU\tnot checked\t%s; set TARGET_SM to the SM version that GPU code must be for\n", target.Unknown)
	}
	if len(r.Models) == 0 {
		fmt.Fprintf(table, "nothing\tWRONG\tno spec names a checkpoint that is in the model folder\n")
	}
}
