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

// pinged are the models of a PING_MODE, by name or alias, separated by commas.
func pinged(mode string) []string {
	names := strings.Split(mode, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// checkPingMode refuses one that names a model that is not served.
func (s *models) checkPingMode(mode string) error {
	if mode == pingAll || mode == pingAny {
		return nil
	}
	for _, name := range pinged(mode) {
		if _, ok := s.byName[name]; !ok {
			return fmt.Errorf("PING_MODE=%q: %q is neither %s nor %s nor among the models: %v", mode, name, pingAll, pingAny, s.names)
		}
	}
	return nil
}

// unready says of each model that keeps the service from being ready why it
// does, in words for a caller. It is nil when the service is ready by the mode.
func (s *models) unready(mode string) []string {
	count := s.list
	if mode != pingAll && mode != pingAny {
		count = nil
		for _, name := range pinged(mode) {
			if m := s.byName[name]; !slices.Contains(count, m) {
				count = append(count, m)
			}
		}
	}
	var reasons []string
	for _, m := range count {
		if trouble := m.health.trouble.Load(); trouble != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %s", m.spec.Name, trouble.reason))
		}
	}
	if mode == pingAny && len(reasons) < len(count) {
		return nil
	}
	return reasons
}
