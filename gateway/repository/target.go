package repository

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"histogate/gateway/checkpoint"
)

// Target is the machine that checkpoints must have been compiled for.
type Target struct {
	GOARCH string // a value of [runtime.GOARCH]; empty means that of this program
	SMs    []int  // versions of the GPUs, 90 for sm_90; empty when it is not known
	Source string // what says so: TARGET_SM, nvidia-smi
}

func (t Target) check(p *checkpoint.Package) error {
	arch := t.GOARCH
	if arch == "" {
		arch = runtime.GOARCH
	}
	if err := p.CheckCPU(arch); err != nil {
		return err
	}
	return p.CheckGPU(t.SMs, t.Source)
}

// smiTimeout bounds nvidia-smi, which hangs where a driver does.
const smiTimeout = 10 * time.Second

// ParseSM reads an SM version as people write it: 90, sm_90, sm_90a, 9.0.
func ParseSM(text string) (int, error) {
	const most = 255 // what a cubin has room for
	version := 0
	if parts := smForms.FindStringSubmatch(text); parts != nil {
		version, _ = strconv.Atoi(parts[1] + parts[2] + parts[3]) // three digits
	}
	if version == 0 || version > most {
		return 0, fmt.Errorf("%q must be an SM version, such as 90, sm_90 or 9.0", clip(text))
	}
	return version, nil
}

var smForms = regexp.MustCompile(`^(?:(?:sm_)?(\d{2,3})[af]?|(\d{1,2})\.(\d))$`)

// FindTarget is the machine that this program runs on. Its GPUs are those that
// sm says, if anything, else those that nvidia-smi lists.
func FindTarget(ctx context.Context, sm string) (Target, error) {
	if sm != "" {
		version, err := ParseSM(sm)
		return Target{SMs: []int{version}, Source: "TARGET_SM"}, err
	}
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	defer cancel()
	list, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").Output()
	if err != nil {
		return Target{}, nil // a machine without one has no GPU to speak of
	}
	t := Target{Source: "nvidia-smi"}
	for line := range strings.Lines(string(list)) {
		if version, err := ParseSM(strings.TrimSpace(line)); err == nil && !slices.Contains(t.SMs, version) {
			t.SMs = append(t.SMs, version)
		}
	}
	return t, nil
}
