package repository

import (
	"context"
	"errors"
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
	// Unknown is why SMs is empty, in words for an operator.
	Unknown string
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
// sm says, if anything, else those that nvidia-smi lists. It returns within some ten
// seconds, with an error when the context ends before it knows.
func FindTarget(ctx context.Context, sm string) (Target, error) {
	if sm != "" {
		version, err := ParseSM(sm)
		return Target{SMs: []int{version}, Source: "TARGET_SM"}, err
	}
	const program = "nvidia-smi"
	list, err := output(ctx, smiTimeout, program, "--query-gpu=compute_cap", "--format=csv,noheader")
	switch {
	case ctx.Err() != nil:
		return Target{}, ctx.Err()
	case errors.Is(err, exec.ErrNotFound):
		return Target{Unknown: program + " is not installed"}, nil
	case errors.Is(err, context.DeadlineExceeded):
		return Target{Unknown: fmt.Sprintf("%s did not answer within %s", program, smiTimeout)}, nil
	case err != nil: // such as where there is no GPU
		return Target{Unknown: fmt.Sprintf("%s failed: %v", program, err)}, nil
	}
	t := Target{Source: program}
	for line := range strings.Lines(string(list)) {
		if version, err := ParseSM(strings.TrimSpace(line)); err == nil && !slices.Contains(t.SMs, version) {
			t.SMs = append(t.SMs, version)
		}
	}
	if t.SMs == nil {
		t.Unknown = program + " lists no SM version"
	}
	return t, nil
}

// output is what a program writes, or an error when the time is over. It is not waited
// for then: one that is stuck in a driver cannot even be killed.
func output(ctx context.Context, timeout time.Duration, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.WaitDelay = time.Second // for those that it started and that hold its output
		text, err := cmd.Output()
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		if r.err != nil && ctx.Err() != nil {
			return nil, ctx.Err() // it was killed
		}
		return r.text, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
