package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"histogate/prep"
	"histogate/prep/raster"
	"histogate/tests/floor"
)

// measurement is one figure of a round: seconds of processor time for one tile.
type measurement struct {
	name        string
	measure     func() (float64, error)
	allocations func() float64 // for one tile; nil where it is none of ours
}

// How long one figure is measured for. The smallest unit of the kernel's
// accounts is some microseconds.
const span = 0.1 // seconds

var formats = []struct{ name, pillow, options string }{
	{"png", "", ""},
	{"jpeg", "JPEG", `{"quality": 90, "subsampling": "4:2:0"}`},
	{"webp", "WEBP", `{"quality": 80}`},
}

// prepare makes the request bodies, has Python and us do each once and compares,
// and lists what a round measures. Files are written to folder. The function that
// it returns ends what it started, also when there is an error.
func prepare(folder string) (list []measurement, stop func(), err error) {
	var running []*reference
	stop = func() {
		for _, r := range running {
			r.close()
		}
	}
	spec, err := prep.ReadSpec("model_repository/h1/spec.yaml")
	if err != nil {
		return nil, stop, err
	}
	tiles, err := filepath.Glob("tests/testdata/tiles/*.png")
	if err != nil || len(tiles) == 0 {
		return nil, stop, fmt.Errorf("no tiles; run this at the root of the repository (%w)", err)
	}
	preparer, tensor := prep.NewPreparer(spec), make([]byte, spec.SentBytes(0))
	for _, f := range formats {
		var bodies [][]byte
		var files []string
		for i, tile := range tiles {
			image := tile
			if f.pillow != "" {
				image = filepath.Join(folder, fmt.Sprintf("%d.%s", i, f.name))
				if err := encode(f.pillow, f.options, tile, image); err != nil {
					return nil, stop, err
				}
			}
			data, err := os.ReadFile(image)
			if err != nil {
				return nil, stop, err
			}
			fmt.Printf("# %s: %d bytes, as %s\n", filepath.Base(tile), len(data), f.name)
			bodies = append(bodies, requestBody(data, i))
			files = append(files, filepath.Join(folder, fmt.Sprintf("%s-%d.json", f.name, i)))
			if err := os.WriteFile(files[i], bodies[i], 0o600); err != nil {
				return nil, stop, err
			}
		}
		python, err := startReference(spec.Tile.Mean, spec.Tile.Std, files)
		if err != nil {
			return nil, stop, err
		}
		running = append(running, python)
		if err := compare(preparer, python, bodies, tensor); err != nil {
			return nil, stop, fmt.Errorf("%s: %w", f.name, err)
		}
		list = append(list, ours(f.name+"/ours", func(i int) error { return stage1(preparer, bodies[i%len(bodies)], tensor) }))
		for _, variant := range []string{"tuned", "plain"} {
			list = append(list, measurement{name: f.name + "/python-" + variant, measure: func() (float64, error) {
				once, err := python.seconds(variant, 1)
				if err != nil {
					return 0, err
				}
				return python.seconds(variant, whole(span/once, len(bodies)))
			}})
		}
		if f.name == "png" {
			parts, err := floorOf(spec, bodies)
			if err != nil {
				return nil, stop, err
			}
			list = append(list, parts...)
		}
	}
	return list, stop, nil
}

// floorOf measures each part of the work on PNG tiles alone.
func floorOf(spec *prep.Spec, bodies [][]byte) ([]measurement, error) {
	var mean, std [3]float32
	for c := range 3 {
		mean[c], std[c] = float32(spec.Tile.Mean[c]), float32(spec.Tile.Std[c])
	}
	table := raster.NewTable(mean, std)
	floors := make([]*floor.PNG, len(bodies))
	for i, body := range bodies {
		var err error
		if floors[i], err = floor.New(body, table); err != nil {
			return nil, err
		}
	}
	of := func(i int) *floor.PNG { return floors[i%len(floors)] }
	return []measurement{
		ours("floor/base64", func(i int) error { return of(i).Base64() }),
		ours("floor/inflate", func(i int) error { return of(i).Inflate() }),
		ours("floor/unfilter", func(i int) error { return of(i).Unfilter() }),
		ours("floor/table", func(i int) error { return of(i).Normalise() }),
	}, nil
}

// stage1 is all that is measured of ours.
func stage1(p *prep.Preparer, body, tensor []byte) error {
	request, err := prep.ParseRequest(body)
	if err != nil {
		return err
	}
	sample, err := p.Prepare(request)
	if err != nil {
		return err
	}
	sample.Write(0, tensor)
	sample.Release()
	return nil
}

// compare has both sides make each tensor once.
func compare(p *prep.Preparer, python *reference, bodies [][]byte, tensor []byte) error {
	for i, body := range bodies {
		request, err := prep.ParseRequest(body)
		if err != nil {
			return err
		}
		sample, err := p.Prepare(request)
		if err != nil {
			return err
		}
		sample.Write(0, tensor)
		sample.Release()
		sum := sha256.Sum256(tensor)
		for _, variant := range []string{"plain", "tuned"} {
			other, err := python.digest(variant, i)
			if err != nil {
				return err
			}
			if other != hex.EncodeToString(sum[:]) {
				return fmt.Errorf("tile %d: %s Python and we make different tensors of it", i, variant)
			}
		}
	}
	return nil
}

// ours measures a step in this process.
func ours(name string, step func(i int) error) measurement {
	run := func(n int) (float64, error) {
		start := processorTime()
		for i := range n {
			if err := step(i); err != nil {
				return 0, err
			}
		}
		return (processorTime() - start) / float64(n), nil
	}
	m := measurement{name: name, measure: func() (float64, error) {
		const trial = 32
		once, err := run(trial)
		if err != nil {
			return 0, err
		}
		return run(whole(span/once, trial))
	}}
	m.allocations = func() float64 {
		const n = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := run(n); err != nil {
			return -1
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / n
	}
	return m
}

// whole is n as a multiple of a number of tiles, so that each counts the same.
func whole(n float64, tiles int) int { return max(1, int(n)/tiles) * tiles }

// processorTime is what this process has used, in seconds, on all its threads: the
// collector's are among them.
func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it fails on wrong arguments alone
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// requestBody is a body as clients write it.
func requestBody(image []byte, patch int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"image_data": "%s", "bulk_rna": null, "slide_name": "S1", "x": 1120, "y": 2464, "width": 224, "height": 224, `+
		`"tissue_ratio": 0.87, "patch_idx": %d, "resolution": 0.5}`, base64.StdEncoding.EncodeToString(image), patch)
	return []byte(b.String())
}
