package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	modelrepo "histogate/gateway/repository"
	"histogate/tritonclient"
)

// Findings are what [Check] found. Each is one line that says what to change.
type Findings struct {
	Mistakes []string // what keeps the gateway, or one of its models, from serving
	Warnings []string // what is served all the same, worse or not for long
	Looked   []string // at what it has looked, in words
}

// Check looks at all that serving by a configuration would need: the files that it
// names, the models and their checkpoints, the ports, shared memory and the Triton that
// is to be started or, where one answers, the models that it has loaded. It goes the ways
// that serving goes, starts nothing, and changes nothing but for a folder that it makes
// among temporary ones and removes again. The error is that of [ReadConfig], each of whose
// mistakes is among the findings.
func Check(ctx context.Context, cfg *Config, configured error) (f Findings) {
	f.mistake(configured)
	f.checkNames(os.Environ())
	f.looked("the configuration")
	p, err := readPlan(ctx, cfg, slog.New(warnings{slog.DiscardHandler, &f}))
	defer func() { f.mistake(os.RemoveAll(p.built)) }()
	f.mistake(err)
	if p.keys != nil {
		f.looked("API keys")
	}
	if p.certificate != nil {
		f.looked("the certificate")
	}
	if p.models.names != nil {
		f.looked("the models %s", strings.Join(p.models.names, ", "))
	}
	f.checkModels(ctx, &p)
	if cfg.Port == 0 || cfg.Port != cfg.MetricsPort { // else it is among the mistakes
		api, admin, err := cfg.listen()
		if err == nil {
			api.Close()
			admin.Close()
		}
		f.mistake(err)
		f.looked("the ports")
	}
	if cfg.TensorTransport == transportAuto {
		f.checkSharedMemory(p.models)
	}
	if cfg.TritonServer != "" {
		_, err := cfg.SafePorts.free(childPorts)
		f.mistake(errors.Join(cfg.checkServer(), p.checkBackends(), err, tritonclient.CheckServerMemory(p.models.fullBatches())))
		f.looked("shared memory of Triton's own")
		f.looked("%s, which is not started", cfg.TritonServer)
	} else if cfg.TritonAddress != "" { // else it is among the mistakes
		f.checkTriton(ctx, &p)
	}
	return f
}

// checkNames warns of variables in the environment that nothing reads, but whose names
// are nearly those of settings.
func (f *Findings) checkNames(environ []string) {
	all, known := settings(), map[string]bool{}
	for _, s := range all {
		known[s.env] = true
	}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if known[name] {
			continue
		}
		written := strings.TrimPrefix(strings.ToUpper(name), "HISTOGATE_")
		for _, s := range all {
			if distance(written, s.env) <= min(len(s.env)/6, 2) { // HOME is not HOST
				f.warn(fmt.Errorf("%s is set in the environment, and nothing reads it: did you mean %s?", name, s.env))
			}
		}
	}
}

// distance is how many letters have to be put in, left out or changed to get from one
// word to another.
func distance(from, to string) int {
	row := make([]int, len(to)+1) // from as much of from as was looked at, to so many letters
	for j := range row {
		row[j] = j
	}
	for i := range len(from) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(to) {
			above := row[j+1]
			if row[j+1] = diagonal; from[i] != to[j] {
				row[j+1] = 1 + min(diagonal, above, row[j])
			}
			diagonal = above
		}
	}
	return row[len(to)]
}

// checkModels looks at what Triton would load. A checkpoint that a repository was made
// of here has been looked at.
func (f *Findings) checkModels(ctx context.Context, p *plan) {
	target, err := modelrepo.FindTarget(ctx, p.cfg.TargetSM)
	f.mistake(err)
	for _, m := range p.models.list {
		switch {
		case m.broken != "":
			f.mistake(fmt.Errorf("model %s: %s", m.spec.Name, m.broken))
		case p.cfg.ModelDir != "" && p.built != "":
		default:
			err := modelrepo.CheckVersion(p.cfg.ModelRepository, m.config, target)
			if err == nil {
				continue
			}
			err = fmt.Errorf("model %s: %w", m.spec.Name, err)
			if p.cfg.TritonServer != "" {
				f.mistake(err)
			} else {
				f.warn(fmt.Errorf("%w (or does the Triton at TRITON_ADDRESS have a repository of its own?)", err))
			}
		}
	}
}

// fullBatches are the tensors of one full batch of every model.
func (s *models) fullBatches() (all []tritonclient.TensorSpec) {
	for _, m := range s.list {
		if m.broken != "" {
			continue
		}
		rows := m.spec.Batching.MaxBatchSize
		all = append(all, m.inputs(rows)...)
		for _, out := range m.spec.Outputs {
			all = append(all, tritonclient.TensorSpec{Name: out.Name, Datatype: datatype(out.DType), Shape: batchShape(rows, out.Shape)})
		}
	}
	return all
}

func (f *Findings) checkSharedMemory(served *models) {
	var all []tritonclient.SharedInputs
	for _, m := range served.list {
		if m.broken == "" {
			all = append(all, m.sharedInputs(places(m.config)))
		}
	}
	if err := tritonclient.CheckSharedMemory(all); err != nil {
		f.warn(fmt.Errorf("%w; until then, and with TENSOR_TRANSPORT=raw, tensors go in messages", err))
	}
	f.looked("shared memory")
}

// checkTriton asks a Triton that something else runs, if there is one, of the models that
// it has loaded.
func (f *Findings) checkTriton(ctx context.Context, p *plan) {
	client, err := tritonclient.New(p.cfg.TritonAddress, tritonclient.Options{})
	if err != nil {
		f.mistake(fmt.Errorf("TRITON_ADDRESS=%q: %w", p.cfg.TritonAddress, err))
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	server, err := client.ServerMetadata(ctx)
	if err != nil {
		f.warn(fmt.Errorf("TRITON_ADDRESS=%q: no Triton answers there now, and what it has loaded is not checked: start it, or correct the address: %w", p.cfg.TritonAddress, err))
		return
	}
	loaded := 0
	for _, m := range p.models.list {
		if m.broken != "" {
			continue
		}
		ready, err := client.ModelReady(ctx, m.spec.Name)
		if ready {
			loaded++
			_, err = askContract(ctx, client, m.spec)
		}
		if err != nil {
			f.mistake(fmt.Errorf("model %s: %w", m.spec.Name, err))
		}
	}
	f.looked("Triton %s, which has %d of the models loaded", server.Version, loaded)
}

func (f *Findings) mistake(err error) { f.Mistakes = append(f.Mistakes, lines(err)...) }

func (f *Findings) warn(err error) { f.Warnings = append(f.Warnings, lines(err)...) }

func (f *Findings) looked(format string, args ...any) {
	f.Looked = append(f.Looked, fmt.Sprintf(format, args...))
}

// lines are an error's mistakes, one a line. Of errors that were joined each is one,
// behind what was written before all of them.
func lines(err error) (all []string) {
	if err == nil {
		return nil
	}
	text := err.Error()
	if joined, ok := err.(interface{ Unwrap() []error }); ok && text == errors.Join(joined.Unwrap()...).Error() {
		for _, e := range joined.Unwrap() {
			all = append(all, lines(e)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil {
		if before, after, ok := strings.Cut(text, inner.Error()); ok {
			for _, line := range lines(inner) {
				all = append(all, before+line+after)
			}
			return all
		}
	}
	return []string{strings.ReplaceAll(text, "\n", "; ")}
}

// warnings is a handler of logs that has what serve would warn of among the findings.
type warnings struct {
	slog.Handler // which drops all; it is asked only for what the others do not do
	findings     *Findings
}

// Enabled is true of warnings alone.
func (w warnings) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelWarn }

// Handle makes a finding of a warning.
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(", %s: %v", a.Key, a.Value)
		return true
	})
	w.findings.warn(errors.New(text))
	return nil
}
