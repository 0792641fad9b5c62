package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	modelrepo "histogate/gateway/repository"
)

// plan is what a configuration has a gateway serve. It is read before anything is
// started, by serve and by check alike.
type plan struct {
	cfg         *Config // with the names and folders that are served
	built       string  // the model repository, where it was made for this; empty elsewhere
	models      *models
	keys        *keys        // nil where no key is asked for
	certificate *certificate // nil where HTTP is plain
}

// readPlan reads the files that a configuration names. Every mistake is reported, as
// far as one does not hide another; what was read is in the plan all the same. The
// folder that was built is the caller's to remove, whatever is returned.
func readPlan(ctx context.Context, cfg *Config, log *slog.Logger) (p plan, err error) {
	p = plan{cfg: cfg, models: new(models)}
	for _, warning := range cfg.warnings {
		log.Warn(warning)
	}
	var accessErr, namesErr error
	if p.keys, p.certificate, accessErr = readAccess(cfg); accessErr == nil && p.certificate != nil && p.certificate.until().Before(time.Now()) {
		log.Warn("the certificate's time is over, and callers will refuse it: put one that is valid into TLS_CERT_FILE", "until", p.certificate.until())
	}
	accessErr = errors.Join(accessErr, cfg.checkTraces(ctx))
	named := *cfg
	if named.Models, namesErr = modelrepo.Names(cfg.ModelRepository, cfg.Models); namesErr != nil && len(named.Models) == 0 {
		return p, errors.Join(accessErr, namesErr)
	}
	made, broken, built, err := makeRepository(ctx, &named, defaultModelDir, log)
	if err != nil {
		return p, errors.Join(accessErr, namesErr, err)
	}
	p.cfg, p.built = made, built
	served, err := readModels(made, broken)
	if served != nil {
		p.models = served
	}
	return p, errors.Join(accessErr, namesErr, err)
}

// checkServer tells why the child cannot be started, if it cannot.
func (c *Config) checkServer() error {
	if _, err := exec.LookPath(c.TritonServer); err != nil {
		if unnamed := errors.Unwrap(err); unnamed != nil {
			err = unnamed // the path is in the setting
		}
		return fmt.Errorf("TRITON_SERVER=%q: %w; name the file of a tritonserver that this process may run", c.TritonServer, err)
	}
	return nil
}

// checkBackends tells which models the child has no backend for.
func (p *plan) checkBackends() error {
	var mistakes []error
	checked := map[string]bool{}
	for _, m := range p.models.list {
		if m.broken != "" || m.config.Backend == "" || checked[m.config.Backend] || p.bringsBackend(m) {
			continue
		}
		checked[m.config.Backend] = true
		if err := checkBackend(p.cfg.TritonBackends, m.config.Backend); err != nil {
			mistakes = append(mistakes, fmt.Errorf("TRITON_BACKENDS=%q: the backend %q of model %s: %w", p.cfg.TritonBackends, m.config.Backend, m.spec.Name, err))
		}
	}
	return errors.Join(mistakes...)
}

// bringsBackend tells of a model that has its backend in its own folder, which goes
// before the folder of backends.
func (p *plan) bringsBackend(m *model) bool {
	folder := filepath.Join(p.cfg.ModelRepository, m.spec.Name)
	return isFile(folder, library(m.config.Backend)) || isFile(folder, "1", library(m.config.Backend))
}

// checkBackend looks for a backend where Triton does: a library of its own, or a
// model.py that the python backend runs.
func checkBackend(folder, name string) error {
	switch {
	case name != modelrepo.PythonBackend && isFile(folder, name, library(name)):
		return nil
	case name != modelrepo.PythonBackend && !isFile(folder, name, "model.py"):
		return fmt.Errorf("there is neither %s/%s nor %s/model.py in the folder; put the backend there, or name the folder that holds it", name, library(name), name)
	case !isFile(folder, modelrepo.PythonBackend, library(modelrepo.PythonBackend)):
		return fmt.Errorf("it needs %s/%s, which is not in the folder; put Triton's Python backend there", modelrepo.PythonBackend, library(modelrepo.PythonBackend))
	}
	if _, err := exec.LookPath(filepath.Join(folder, modelrepo.PythonBackend, "triton_python_backend_stub")); err != nil {
		return fmt.Errorf("it needs %s/triton_python_backend_stub as a program: %w; put the stub for your Python there, executable", modelrepo.PythonBackend, errors.Unwrap(err))
	}
	return nil
}

func library(backend string) string { return "libtriton_" + backend + ".so" }

func isFile(path ...string) bool {
	info, err := os.Stat(filepath.Join(path...))
	return err == nil && info.Mode().IsRegular()
}
