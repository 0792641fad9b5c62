package raster

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	othersDir    = "../../tests/testdata/images"
	othersScript = "../../tests/reference/other_images.py"
	oraclePython = "../../build/tools/bin/python"
)

// stored reads a file of the manifest that is in the repository, packed or not.
func stored(t *testing.T, name string) ([]byte, bool) {
	data, err := os.ReadFile(filepath.Join(othersDir, name))
	if err == nil {
		return data, true
	}
	packed, err := os.Open(filepath.Join(othersDir, name+".gz"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, false
	}
	if err == nil {
		defer packed.Close()
		var r *gzip.Reader
		if r, err = gzip.NewReader(packed); err == nil {
			data, err = io.ReadAll(r)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return data, true
}

func runOracle(t testing.TB, arguments ...string) {
	t.Helper()
	if out, err := exec.Command(oraclePython, append([]string{othersScript}, arguments...)...).CombinedOutput(); err != nil {
		t.Fatalf("the Python environment of the tests does not work (deploy/setup makes it): %v\n%s", err, out)
	}
}

// madeFiles is a folder of the files of the manifest that are not stored.
func madeFiles(t *testing.T) string {
	made := t.TempDir()
	source, found := stored(t, "bmp_rgb.bmp")
	if !found {
		t.Fatal("bmp_rgb.bmp is missing")
	}
	if err := os.WriteFile(filepath.Join(made, "source"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	runOracle(t, "make", filepath.Join(made, "source"), made)
	return made
}

// smallSeeds are the files that are mutated, with what Pillow makes of each.
func smallSeeds(t testing.TB) map[string][]byte {
	dir := t.TempDir()
	runOracle(t, "seeds", dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seeds := make(map[string][]byte)
	for _, entry := range entries {
		if seeds[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return seeds
}

// pillow is a running oracle: one answer for each file, in order.
type pillow struct {
	in  io.WriteCloser
	out *bufio.Reader
}

func startPillow(t testing.TB) *pillow {
	command := exec.Command(oraclePython, othersScript, "verdicts")
	in, inErr := command.StdinPipe()
	out, outErr := command.StdoutPipe()
	if err := errors.Join(inErr, outErr, command.Start()); err != nil {
		t.Fatalf("the Python environment of the tests does not work (deploy/setup makes it): %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("the oracle: %v", err)
		}
	})
	return &pillow{in, bufio.NewReaderSize(out, 1<<20)}
}

// decode gives Pillow's size and pixels, or a width of 0 for a file it refuses.
func (p *pillow) decode(t testing.TB, data []byte) (width, height int, rgb []byte) {
	t.Helper()
	var size [8]byte
	_, err := p.in.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(data))), data...))
	if err == nil {
		_, err = io.ReadFull(p.out, size[:])
	}
	width, height = int(binary.LittleEndian.Uint32(size[:])), int(binary.LittleEndian.Uint32(size[4:]))
	rgb = make([]byte, 3*width*height)
	if err == nil {
		_, err = io.ReadFull(p.out, rgb)
	}
	if err != nil {
		t.Fatalf("the oracle has died: %v", err)
	}
	return width, height, rgb
}
