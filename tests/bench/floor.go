package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"histogate/prep"
	"histogate/prep/raster"
	"histogate/tests/floor"
	"histogate/tests/process"
	"histogate/tests/stack"
)

// embeddingSize is the numbers of h1's answer.
const embeddingSize = 1536

// floorPart is a step that nobody who serves a tile gets around.
type floorPart struct {
	name    string
	measure func() (ms float64, err error) // of processor time, for a tile
}

// floorParts are those that run in this process, each over all tiles.
func floorParts(bodies [][]byte) ([]floorPart, error) {
	spec, err := prep.ReadSpec(filepath.Join(stack.Root(), "model_repository/h1/spec.yaml"))
	if err != nil {
		return nil, err
	}
	var mean, std [3]float32
	for c := range 3 {
		mean[c], std[c] = float32(spec.Tile.Mean[c]), float32(spec.Tile.Std[c])
	}
	table := raster.NewTable(mean, std)
	tiles := make([]*floor.PNG, len(bodies))
	for i, body := range bodies {
		if tiles[i], err = floor.New(body, table); err != nil {
			return nil, err
		}
	}
	numbers := make([]byte, 4*embeddingSize)
	for i := range embeddingSize {
		binary.LittleEndian.PutUint32(numbers[4*i:], math.Float32bits(float32(math.Sin(float64(i)))))
	}
	var text []byte
	return []floorPart{
		{"base64", overTiles(tiles, (*floor.PNG).Base64)},
		{"inflate", overTiles(tiles, (*floor.PNG).Inflate)},
		{"unfilter", overTiles(tiles, (*floor.PNG).Unfilter)},
		{"table", overTiles(tiles, (*floor.PNG).Normalise)},
		{"numbers", overTiles(tiles, func(*floor.PNG) error {
			text = text[:0]
			for i := range embeddingSize {
				v := math.Float32frombits(binary.LittleEndian.Uint32(numbers[4*i:]))
				text = append(strconv.AppendFloat(text, float64(v), 'g', -1, 32), ',')
			}
			return nil
		})},
	}, nil
}

// overTiles measures a step on each tile, several times over.
func overTiles(tiles []*floor.PNG, step func(*floor.PNG) error) func() (float64, error) {
	const times = 8
	return func() (float64, error) {
		before, err := process.CPU(os.Getpid())
		if err != nil {
			return 0, err
		}
		for range times {
			for _, tile := range tiles {
				if err := step(tile); err != nil {
					return 0, err
				}
			}
		}
		after, err := process.CPU(os.Getpid())
		return millis(after-before) / float64(times*len(tiles)), err
	}
}

// echo is tests/bench/echo at work.
type echo struct {
	address string
	cmd     *exec.Cmd
	stdin   io.Closer
}

// startEcho starts the least of an HTTP server, which answers with so many bytes.
func startEcho(size int) (*echo, error) {
	binary := filepath.Join(stack.Root(), "build", "echo")
	build := exec.Command("go", "build", "-o", binary, "./tests/bench/echo")
	build.Dir = stack.Root()
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	e := &echo{cmd: exec.Command(binary, strconv.Itoa(size))}
	stdin, err := e.cmd.StdinPipe() // whose end, when this process ends, is the server's
	if err != nil {
		return nil, err
	}
	e.stdin = stdin
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	e.address = strings.TrimSpace(line)
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

func (e *echo) stop() error { return errors.Join(e.stdin.Close(), e.cmd.Wait()) }

// measure is the server's processor time for a request, in milliseconds.
func (e *echo) measure(requests [][]byte, inFlight int, each time.Duration) (float64, error) {
	before, err := process.CPU(e.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	seen := drive(e.address, requests, inFlight, each)
	if err := seen.whole(); err != nil {
		return 0, fmt.Errorf("echo: %w", err)
	}
	after, err := process.CPU(e.cmd.Process.Pid)
	return millis(after-before) / float64(seen.answers), err
}

// bodyOf is the body of a request that is on the wire form.
func bodyOf(request []byte) []byte {
	_, body, _ := bytes.Cut(request, []byte("\r\n\r\n"))
	return body
}
