// Command stage1bench measures stage 1, from the bytes of a request to the
// tensor, beside the same work in Python with Pillow and numpy.
//
//	go run ./tests/stage1bench
//
// It is run at the root of the repository. Every figure is processor time, not
// time on the wall, so that a busy machine disturbs it little; what disturbs it
// all the same, such as a shared cache, meets both sides, since each round
// measures everything once, one after the other. A ratio is taken within a round;
// printed is the median over the rounds, with the least and the greatest.
//
// The tiles are four of real H&E tissue, 224 x 224 pixels, taken in turn, as PNG of 111
// to 118 KB and, made by Pillow, as JPEG (quality 90, 4:2:0) and WebP (quality
// 80). What Python makes of each must have the same bits as ours before anything
// is measured. The parts of the floor are those of a PNG: base64, inflate by
// libdeflate, the filters undone and the table, each alone.
//
// With -check it exits with 1 where a ratio misses what it must reach. Python is
// measured as it is mostly written, which the bars are set for, and tuned: see
// tests/reference/stage1.py. Its memory allocator is set to keep memory.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
)

// bar is a ratio and what it is to reach.
type bar struct {
	name        string
	over, under []string // measurements, summed
	must, goal  float64
	atMost      bool // the bar is an upper one
	judged      bool // -check looks at it
}

// The bars are set for Python as it is written. How far one comes against the best
// that can be had of it stands beside them, unjudged: for a JPEG both sides spend
// most of their time in one library, libjpeg-turbo, and no ratio over two is left.
var bars = []bar{
	{"png", []string{"png/python-plain"}, []string{"png/ours"}, 3, 4, false, true},
	{"png-floor", []string{"png/ours"}, []string{"floor/base64", "floor/inflate", "floor/unfilter", "floor/table"}, 1.45, 1.3, true, true},
	{"jpeg", []string{"jpeg/python-plain"}, []string{"jpeg/ours"}, 3, 3.5, false, true},
	{"webp", []string{"webp/python-plain"}, []string{"webp/ours"}, 1, 1.2, false, true},
	{"png-tuned", []string{"png/python-tuned"}, []string{"png/ours"}, 3, 4, false, false},
	{"jpeg-tuned", []string{"jpeg/python-tuned"}, []string{"jpeg/ours"}, 3, 3.5, false, false},
	{"webp-tuned", []string{"webp/python-tuned"}, []string{"webp/ours"}, 1, 1.2, false, false},
}

func (b bar) holds(ratio, limit float64) string {
	if b.atMost && ratio <= limit || !b.atMost && ratio >= limit {
		return "yes"
	}
	return "no"
}

// ratio is that of one round.
func (b bar) ratio(figures map[string][]float64, round int) float64 {
	sum := func(names []string) (total float64) {
		for _, name := range names {
			total += figures[name][round]
		}
		return total
	}
	return sum(b.over) / sum(b.under)
}

func main() {
	rounds := flag.Int("rounds", 7, "how often everything is measured")
	check := flag.Bool("check", false, "exit with 1 where a ratio against plain Python misses what it must reach")
	flag.Parse()
	log.SetFlags(0)
	pass, err := run(*rounds)
	if err != nil {
		log.Fatal("stage1bench: ", err)
	}
	if *check && !pass {
		os.Exit(1)
	}
}

func run(rounds int) (pass bool, err error) {
	folder, err := os.MkdirTemp("", "stage1bench")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	measurements, stop, err := prepare(folder)
	defer stop()
	if err != nil {
		return false, err
	}
	figures := map[string][]float64{}
	for range rounds {
		for _, m := range measurements {
			seconds, err := m.measure()
			if err != nil {
				return false, fmt.Errorf("%s: %w", m.name, err)
			}
			figures[m.name] = append(figures[m.name], seconds)
		}
	}
	for _, m := range measurements {
		low, median, high := spread(figures[m.name])
		fmt.Printf("bench stage1/%s %.1f us  (%.1f to %.1f)\n", m.name, median*1e6, low*1e6, high*1e6)
		if m.allocations != nil {
			fmt.Printf("bench stage1/%s/allocs %.1f allocs/op\n", m.name, m.allocations())
		}
	}
	return report(figures, rounds), nil
}

// report prints the ratios and says whether each reaches what it must.
func report(figures map[string][]float64, rounds int) bool {
	pass := true
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %8s %18s %8s %8s %6s %6s\n", "ratio", "median", "spread", "must", "goal", "must?", "goal?")
	for _, b := range bars {
		ratios := make([]float64, rounds)
		for i := range ratios {
			ratios[i] = b.ratio(figures, i)
		}
		low, median, high := spread(ratios)
		fmt.Printf("bench stage1/ratio/%s %.2f x  (%.2f to %.2f)\n", b.name, median, low, high)
		sign := ">="
		if b.atMost {
			sign = "<="
		}
		must := b.holds(median, b.must)
		pass = pass && (must == "yes" || !b.judged)
		fmt.Fprintf(&table, "%-12s %8.2f %18s %8s %8s %6s %6s\n", b.name, median, fmt.Sprintf("%.2f to %.2f", low, high),
			fmt.Sprint(sign, b.must), fmt.Sprint(sign, b.goal), must, b.holds(median, b.goal))
	}
	fmt.Print("\n", table.String())
	return pass
}

func spread(values []float64) (low, median, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
}
