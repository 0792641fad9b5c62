// Package floor has the steps that a tile of PNG costs anybody, each alone: what the
// whole is held against.
package floor

// #cgo CFLAGS: -std=c11 -O3 -Wall -Wextra
// #cgo pkg-config: libdeflate
// #include "floor.h"
import "C"

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"unsafe"

	"github.com/segmentio/asm/base64"

	"histogate/prep/raster"
)

const side = 224 // pixels of a tile, each way

// PNG is the work of one tile in its parts, each with what it starts from and room for
// what it makes.
type PNG struct {
	text   []byte // base64
	png    []byte
	stream []byte // the compressed rows
	rows   []byte // filtered
	rgb    []byte // undone, each row with slack behind it
	planes []float32
	table  *raster.Table
}

// New takes a request apart, a JSON document with an image of 224 x 224 pixels. All its
// parts have been run once, in order.
func New(body []byte, table *raster.Table) (*PNG, error) {
	var request struct {
		Image string `json:"image_data"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, err
	}
	const pixels, slack = side * side, C.FLOOR_SLACK
	f := &PNG{
		text:   []byte(request.Image),
		png:    make([]byte, base64.StdEncoding.DecodedLen(len(request.Image))),
		rows:   make([]byte, side*(1+3*side)+slack),
		rgb:    make([]byte, side*(3*side+slack)),
		planes: make([]float32, 3*pixels),
		table:  table,
	}
	if err := f.Base64(); err != nil {
		return nil, err
	}
	for rest := f.png[8:]; len(rest) >= 12; {
		n := binary.BigEndian.Uint32(rest)
		if bytes.Equal(rest[4:8], []byte("IDAT")) {
			f.stream = append(f.stream, rest[8:8+n]...)
		}
		rest = rest[12+n:]
	}
	return f, errors.Join(f.Inflate(), f.Unfilter(), f.Normalise())
}

// Base64 decodes the text of the image.
func (f *PNG) Base64() error {
	n, err := base64.StdEncoding.Decode(f.png[:cap(f.png)], f.text)
	f.png = f.png[:n]
	return err
}

// Inflate decompresses its rows.
func (f *PNG) Inflate() error {
	if C.floor_inflate(u8(f.stream), C.size_t(len(f.stream)), u8(f.rows), C.size_t(side*(1+3*side))) == 0 {
		return errors.New("the tile's data do not inflate to its rows")
	}
	return nil
}

// Unfilter undoes their filters.
func (f *PNG) Unfilter() error {
	C.floor_unfilter(u8(f.rows), side, side, u8(f.rgb))
	return nil
}

// Normalise writes the pixels as float32, channels first, by the table.
func (f *PNG) Normalise() error {
	C.floor_table(u8(f.rgb), side, side, unsafe.Pointer(f.table), (*C.float)(&f.planes[0]))
	return nil
}

func u8(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }
