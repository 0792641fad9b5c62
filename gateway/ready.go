package gateway

import (
	"fmt"
	"slices"
	"strings"
)

// The values of PING_MODE that are not a list of models.
const (
	pingAll = "all" // every model must be ready
	pingAny = "any" // one is enough
)

// readiness is the models whose state makes that of the service.
type readiness struct {
	models  []*model
	oneDoes bool // else all must be ready
}

// readiness is that of a PING_MODE: all, any, or models by name or alias, separated by
// commas.
func (s *models) readiness(mode string) (readiness, error) {
	if mode == pingAll || mode == pingAny {
		return readiness{s.list, mode == pingAny}, nil
	}
	var r readiness
	for name := range strings.SplitSeq(mode, ",") {
		name = strings.TrimSpace(name)
		m, ok := s.byName[name]
		if !ok {
			return r, fmt.Errorf("PING_MODE=%q: %q is neither %s nor %s nor among the models: %v", mode, name, pingAll, pingAny, s.names)
		}
		if !slices.Contains(r.models, m) {
			r.models = append(r.models, m)
		}
	}
	return r, nil
}

// missing says of each model that keeps the service from being ready why it does, in
// words for a caller. It is nil when the service is ready.
func (r readiness) missing() []string {
	var reasons []string
	for _, m := range r.models {
		if trouble := m.health.trouble.Load(); trouble != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %s", m.spec.Name, trouble.reason))
		}
	}
	if r.oneDoes && len(reasons) < len(r.models) {
		return nil
	}
	return reasons
}
