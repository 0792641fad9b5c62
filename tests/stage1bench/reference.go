package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

const (
	python = "build/tools/bin/python"
	script = "tests/reference/stage1.py"
)

// reference is a process that does the work in Python.
type reference struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startReference(mean, std [3]float64, bodies []string) (*reference, error) {
	p := exec.Command(python, append([]string{script, "serve", commas(mean), commas(std)}, bodies...)...)
	for _, variable := range os.Environ() {
		// A kind of processor that was set by hand may be one of fewer instructions.
		if !strings.HasPrefix(variable, "OPENBLAS_CORETYPE=") && !strings.HasPrefix(variable, "NPY_DISABLE_CPU_FEATURES=") {
			p.Env = append(p.Env, variable)
		}
	}
	// glibc's malloc gives the memory of a tensor back to the system and has it
	// cleared anew for the next, which may take twice as long as all the work. That
	// is a setting, and no cost of Python's.
	p.Env = append(p.Env, "MALLOC_TRIM_THRESHOLD_=1000000000", "MALLOC_MMAP_THRESHOLD_=1000000000")
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("no Python to compare with (run deploy/setup): %w", err)
	}
	return &reference{process: p, in: in, out: bufio.NewReader(out)}, nil
}

func (r *reference) ask(format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(r.in, format+"\n", args...); err != nil {
		return "", err
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the Python process ended: %w", err)
	}
	return strings.TrimSpace(line), nil
}

// seconds is the processor time that a body takes, the mean over n.
func (r *reference) seconds(variant string, n int) (float64, error) {
	line, err := r.ask("time %s %d", variant, n)
	if err != nil {
		return 0, err
	}
	var s float64
	_, err = fmt.Sscan(line, &s)
	return s, err
}

// digest is the SHA-256 of what a variant makes of a body.
func (r *reference) digest(variant string, body int) (string, error) {
	return r.ask("digest %s %d", variant, body)
}

func (r *reference) close() {
	r.in.Close()
	_ = r.process.Wait()
}

// encode writes a tile in another format, by Pillow.
func encode(format, options, tile, out string) error {
	if message, err := exec.Command(python, script, "encode", format, options, tile, out).CombinedOutput(); err != nil {
		return fmt.Errorf("no Pillow to encode with (run deploy/setup): %w\n%s", err, message)
	}
	return nil
}

func commas(values [3]float64) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(values), "[]"), " ", ",")
}
