package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"histogate/tests/stack"
)

// write writes the tables, in Markdown, and the lines of the summary.
func (f *figures) write(w io.Writer, rounds int) {
	fmt.Fprintf(w, "%s.\n\nMedians of %d rounds; behind ± is half of the spread.\n", machine(), rounds)
	for _, cost := range costsMS {
		fmt.Fprintf(w, "\n### A model of %s ms a tile\n\n", cost)
		fmt.Fprintln(w, "| stack | in flight | tiles/s | p50 ms | p90 | p99 | CPU ms a tile: front end | Triton | model | load | RSS MB: front end | PSS MB: stack | batch | errors |")
		fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
		for _, s := range sides() {
			for _, n := range loads {
				of := func(value func(cell) float64) float64 { return median(f.of(s.name, cost, n, value)) }
				front, model := gatewayCPU, func(c cell) float64 { return c.cpu[modelPart] }
				if s.name == "peer" {
					front, model = func(c cell) float64 { return c.cpu[peerPart] - c.session }, func(c cell) float64 { return c.session }
				}
				fmt.Fprintf(w, "| %s | %d | %s | %.1f | %.1f | %.1f | %.2f | %.2f | %.2f | %.2f | %.0f | %.0f | %.1f | %.0f |\n", s.name, n,
					withSpread("%.0f", f.of(s.name, cost, n, perSecond)),
					of(func(c cell) float64 { return c.p50 }), of(func(c cell) float64 { return c.p90 }), of(func(c cell) float64 { return c.p99 }),
					of(front), of(func(c cell) float64 { return c.cpu[tritonPart] }), of(model), of(func(c cell) float64 { return c.load }),
					of(func(c cell) float64 { return c.rss[gatewayPart] + c.rss[peerPart] }), of(func(c cell) float64 { return c.pss }),
					of(func(c cell) float64 { return c.batch }), of(func(c cell) float64 { return c.errors }))
			}
		}
	}
	fmt.Fprintf(w, "\n### Summary\n\nThe bars are for a model of %s ms. rss_mb is the most over all models, of the gateway alone, as resident\n(RSS), which what it shares with Triton is part of; pss_mb is of whole stacks, where that counts once (PSS).\n\n| figure | median | least | most | unit | bar | reached |\n|---|---|---|---|---|---|---|\n", judged)
	for _, line := range f.summary() {
		asked, reached := "", ""
		if line.bar != nil {
			asked, reached = line.bar.String(), line.bar.reached(median(line.values))
		}
		fmt.Fprintf(w, "| %s | %.3g | %.3g | %.3g | %s | %s | %s |\n", line.name, median(line.values), slices.Min(line.values), slices.Max(line.values), line.unit, asked, reached)
	}
	fmt.Fprintln(w)
	for _, line := range f.summary() {
		fmt.Fprintf(w, "    bench %s %.4g %s\n", line.name, median(line.values), line.unit)
	}
}

func withSpread(format string, values []float64) string {
	return fmt.Sprintf(format+" ± "+format, median(values), (slices.Max(values)-slices.Min(values))/2)
}

// machine describes what this runs on.
func machine() string {
	name, memory := "an unknown processor", ""
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range bytes.Lines(text) {
			if key, value, _ := strings.Cut(string(line), ":"); strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int
		if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err == nil {
			memory = fmt.Sprintf(", %d GB", kib*1024/1e9)
		}
	}
	revision := "an unknown revision"
	git := exec.Command("git", "describe", "--always", "--dirty")
	git.Dir = stack.Root()
	if out, err := git.Output(); err == nil {
		revision = strings.TrimSpace(string(out))
	}
	return fmt.Sprintf("Revision %s, %d CPUs of %s%s, %s, no GPU", revision, runtime.NumCPU(), name, memory, runtime.Version())
}

// Where BENCHMARKS.md is made by this command, and where people write.
const (
	begins = "<!-- what follows is written by make bench -->\n"
	ends   = "<!-- what follows is not -->\n"
)

// record replaces the part of BENCHMARKS.md that is made.
func (f *figures) record(rounds int) error {
	path := filepath.Join(stack.Root(), "BENCHMARKS.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begins)
	_, after, too := strings.Cut(rest, ends)
	if !ok || !too {
		return errors.New("BENCHMARKS.md lacks the lines between which figures stand")
	}
	var made bytes.Buffer
	f.write(&made, rounds)
	return os.WriteFile(path, []byte(before+begins+"\n"+made.String()+"\n"+ends+after), 0o644)
}
