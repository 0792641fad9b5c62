package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"histogate/prep/raster"
)

// oracle is a process that runs tests/reference/pillow_oracle.py.
type oracle struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

type opinion struct {
	ok            bool
	width, height int
	sum           string
	exception     string
}

func (o opinion) String() string {
	if !o.ok {
		return "refuses: " + o.exception
	}
	return fmt.Sprintf("%dx%d %.8s", o.width, o.height, o.sum)
}

func startOracle(python string) (*oracle, error) {
	p := exec.Command(python, "tests/reference/pillow_oracle.py")
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
		return nil, fmt.Errorf("no Pillow to compare with (run deploy/setup): %w", err)
	}
	return &oracle{process: p, in: in, out: bufio.NewReader(out)}, nil
}

// ask sends a file; answer waits for what Pillow makes of it.
func (o *oracle) ask(file []byte) error {
	if _, err := o.in.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(file)))); err != nil {
		return err
	}
	_, err := o.in.Write(file)
	return err
}

func (o *oracle) answer() (opinion, error) {
	line, err := o.out.ReadString('\n')
	if err != nil {
		return opinion{}, fmt.Errorf("the Pillow process ended: %w", err)
	}
	var v opinion
	if _, err := fmt.Sscanf(line, "ok %d %d %s", &v.width, &v.height, &v.sum); err == nil {
		v.ok = true
		return v, nil
	}
	v.exception = strings.TrimSpace(strings.TrimPrefix(line, "error "))
	return v, nil
}

func (o *oracle) close() {
	o.in.Close()
	_ = o.process.Wait()
}

// picture is a file that both sides take.
type picture struct {
	name          string
	data          []byte
	width, height int
	sum           string
}

// loadSeeds gives, for each of formats, the pictures that mutants are made
// from: those of the tests that Pillow takes, and small ones of more kinds.
func loadSeeds(python string) ([3][]picture, error) {
	var seeds [3][]picture
	pillow, err := startOracle(python)
	if err != nil {
		return seeds, err
	}
	defer pillow.close()
	add := func(name string, data []byte) error {
		if err := pillow.ask(data); err != nil {
			return err
		}
		v, err := pillow.answer()
		if err != nil || !v.ok || len(data) > 200_000 || v.width*v.height > 300*300 {
			return err
		}
		var format int
		switch {
		case strings.HasPrefix(string(data), "\x89PNG"):
			format = 0
		case strings.HasPrefix(string(data), "\xff\xd8"):
			format = 1
		case strings.HasPrefix(string(data), "RIFF"):
			format = 2
		default:
			return nil
		}
		seeds[format] = append(seeds[format], picture{name, data, v.width, v.height, v.sum})
		return nil
	}
	files, err := filepath.Glob("tests/testdata/images/*")
	if err != nil {
		return seeds, err
	}
	tiles, err := filepath.Glob("tests/testdata/tiles/*.png")
	if err != nil || len(files) == 0 || len(tiles) == 0 {
		return seeds, errors.New("no pictures under tests/testdata; run this at the root of the repository")
	}
	for _, path := range append(files, tiles...) {
		data, err := os.ReadFile(path)
		if err != nil {
			return seeds, err
		}
		if err := add(filepath.Base(path), data); err != nil {
			return seeds, err
		}
	}
	small, err := exec.Command(python, "tests/reference/image_seeds.py", tiles[0]).Output()
	if err != nil {
		return seeds, fmt.Errorf("tests/reference/image_seeds.py: %w", err)
	}
	for i := 0; len(small) >= 4; i++ {
		n := binary.LittleEndian.Uint32(small)
		// Three times: they are quick, and so most mutants are to be theirs.
		for range 3 {
			if err := add(fmt.Sprintf("small %d", i), small[4:4+n]); err != nil {
				return seeds, err
			}
		}
		small = small[4+n:]
	}
	for i, s := range seeds {
		if len(s) == 0 {
			return seeds, fmt.Errorf("no %s to start from", formats[i])
		}
	}
	return seeds, nil
}

// mutate makes one mutant of one of the seeds.
func mutate(seeds []picture, format raster.Format, r *random) ([]byte, picture) {
	from := seeds[r.IntN(len(seeds))]
	switch format {
	case raster.PNG:
		return mutatePNG(from.data, r), from
	case raster.JPEG:
		return mutateJPEG(from.data, r), from
	default:
		return mutateWebP(from.data, r), from
	}
}
