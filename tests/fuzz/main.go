// Command fuzz holds package raster against Pillow on mutated pictures.
//
//	go run ./tests/fuzz -n 200000 -seed 1
//
// A third of the mutants each are PNG, JPEG and WebP. Most are changed inside
// the pixel data and have their checksums repaired, so that they decode, to
// other pixels than their seed's; the rest are broken in their structure. For
// each, raster must give exactly the pixels that Pillow gives, or refuse it if
// Pillow does. Mutant i of a seed is always the same one: -only runs it alone.
//
// It exits with 1 on a disagreement, or if too few mutants were accepted for
// the run to mean anything.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"histogate/prep/raster"
)

// Least shares of mutants that both accept, and of those that decode to other
// pixels than their seed.
const (
	wantAccepted = 0.2
	wantChanged  = 0.5
)

// maxPixels bounds the mutants whose header asks for a larger picture: they are
// decoded neither here nor by Pillow.
const maxPixels = 1 << 19

var formats = []raster.Format{raster.PNG, raster.JPEG, raster.WebP}

// tally counts what became of the mutants of one format.
type tally struct {
	mutants, accepted, changed, refused, purposely, disagreed int
}

func (t *tally) add(o tally) {
	t.mutants += o.mutants
	t.accepted += o.accepted
	t.changed += o.changed
	t.refused += o.refused
	t.purposely += o.purposely
	t.disagreed += o.disagreed
}

// options are the flags.
type options struct {
	n, only, workers int
	seed             uint64
	python, keep     string
}

func main() {
	var o options
	flag.IntVar(&o.n, "n", 200000, "number of mutants")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the mutations")
	flag.IntVar(&o.workers, "workers", 2, "Pillow processes to compare with")
	flag.IntVar(&o.only, "only", -1, "run this mutant alone")
	flag.StringVar(&o.python, "python", "build/tools/bin/python", "Python with Pillow; deploy/setup makes it")
	flag.StringVar(&o.keep, "keep", "", "folder for mutants that disagree")
	flag.Parse()
	log.SetFlags(0)
	pass, err := run(o)
	if err != nil {
		log.Fatalf("fuzz: %v", err)
	}
	if !pass {
		os.Exit(1)
	}
}

// run makes the mutants at the root of the repository and says whether all is
// as it should be.
func run(o options) (bool, error) {
	seeds, err := loadSeeds(o.python)
	if err != nil {
		return false, err
	}
	start, first, last := time.Now(), 0, o.n
	if o.only >= 0 {
		first, last, o.workers = o.only, o.only+1, 1
	}
	var (
		mu     sync.Mutex
		totals [3]tally
		memory []string
		group  errgroup
	)
	for w := range o.workers {
		group.run(func() error {
			pillow, err := startOracle(o.python)
			if err != nil {
				return err
			}
			defer pillow.close()
			for i := first + w; i < last; i += o.workers {
				format := i % len(formats)
				mutant, from := mutate(seeds[format], formats[format], rand.New(rand.NewPCG(o.seed, uint64(i))))
				result, disagreement, err := compare(pillow, mutant, from)
				if err != nil {
					return fmt.Errorf("mutant %d: %w", i, err)
				}
				if disagreement != "" {
					log.Printf("mutant %d of %s: %s", i, from.name, disagreement)
					if o.keep != "" {
						name := fmt.Sprintf("%d.%s", i, strings.ToLower(string(formats[format])))
						if err := os.WriteFile(filepath.Join(o.keep, name), mutant, 0o644); err != nil {
							return err
						}
					}
				}
				mu.Lock()
				totals[format].add(result)
				if k := i - first; (k+1)%((last-first+4)/5) == 0 {
					memory = append(memory, fmt.Sprint(resident()>>20))
				}
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.wait(); err != nil {
		return false, err
	}
	memory = append(memory, fmt.Sprint(resident()>>20))
	return report(totals, memory, time.Since(start)) || o.only >= 0 && totals[o.only%3].disagreed == 0, nil
}

// report prints the shares and says whether the run is a pass.
func report(totals [3]tally, memory []string, took time.Duration) bool {
	pass := true
	for i, t := range totals {
		accepted := float64(t.accepted) / float64(max(t.mutants, 1))
		changed := float64(t.changed) / float64(max(t.accepted, 1))
		fmt.Printf("%-5s %7d mutants: %5.1f %% accepted by both, %5.1f %% of them with other pixels than their seed; "+
			"%d refused by both, %d refused on purpose; %d disagreements\n",
			formats[i], t.mutants, 100*accepted, 100*changed, t.refused, t.purposely, t.disagreed)
		pass = pass && t.disagreed == 0 && accepted >= wantAccepted && changed >= wantChanged
	}
	fmt.Printf("%.0f s; resident memory after each fifth of the run: %s MB\n", took.Seconds(), strings.Join(memory, ", "))
	return pass
}

var declaredSize = regexp.MustCompile(`is (\d+)x(\d+) pixels`)

// compare gives a mutant to both sides.
func compare(pillow *oracle, mutant []byte, from picture) (tally, string, error) {
	t := tally{mutants: 1}
	if w, h := ours(mutant, from.width, from.height).declared(); w > maxPixels || h > maxPixels || w*h > maxPixels {
		t.refused++
		return t, "", nil
	}
	if err := pillow.ask(mutant); err != nil {
		return t, "", err
	}
	got := ours(mutant, from.width, from.height)
	if w, h := got.declared(); w > 0 && h > 0 {
		got = ours(mutant, w, h)
	}
	want, err := pillow.answer()
	if err != nil {
		return t, "", err
	}
	if want.ok && want.width*want.height <= maxPixels && (want.width != got.width || want.height != got.height) {
		got = ours(mutant, want.width, want.height)
	}
	switch {
	case !want.ok && got.err != nil:
		t.refused++
	case want.ok && got.err == nil && got.sum == want.sum:
		t.accepted++
		if got.sum != from.sum {
			t.changed++
		}
	case want.ok && got.purposely():
		t.purposely++
	default:
		t.disagreed++
		return t, fmt.Sprintf("Pillow %v, raster %v", want, got), nil
	}
	return t, "", nil
}

// decoded is what raster makes of a file at a size.
type decoded struct {
	width, height int
	sum           string
	err           error
}

func ours(data []byte, width, height int) decoded {
	d := decoded{width: width, height: height}
	dst := make([]byte, 3*width*height)
	if d.err = raster.Decode(data, width, height, formats, dst); d.err == nil {
		sum := sha256.Sum256(dst)
		d.sum = hex.EncodeToString(sum[:])
	}
	return d
}

func (d decoded) String() string {
	if d.err != nil {
		return "refuses: " + d.err.Error()
	}
	return fmt.Sprintf("%dx%d %.8s", d.width, d.height, d.sum)
}

// declared is the size in the header of a file that was refused for it, which
// only the message gives.
func (d decoded) declared() (width, height int) {
	var refused *raster.Error
	if !errors.As(d.err, &refused) || refused.Kind != raster.WrongSize {
		return 0, 0
	}
	m := declaredSize.FindStringSubmatch(refused.Detail)
	width, _ = strconv.Atoi(m[1])
	height, _ = strconv.Atoi(m[2])
	return width, height
}

// purposely is true for a kind of file that raster does not take, valid or not.
func (d decoded) purposely() bool {
	var refused *raster.Error
	return errors.As(d.err, &refused) && refused.Kind == raster.Unsupported
}

// resident is the resident memory of this process, without what Go only keeps
// for later.
func resident() int64 {
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// errgroup runs functions and keeps the first error.
type errgroup struct {
	group sync.WaitGroup
	once  sync.Once
	err   error
}

func (g *errgroup) run(f func() error) {
	g.group.Go(func() {
		if err := f(); err != nil {
			g.once.Do(func() { g.err = err })
		}
	})
}

func (g *errgroup) wait() error {
	g.group.Wait()
	return g.err
}
