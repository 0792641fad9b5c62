package raster

// #include "hg_png.h"
import "C"

import (
	"strings"
	"unsafe"
)

const pngSignature = "\x89PNG\r\n\x1a\n"

func isPNG(data []byte) bool {
	return strings.HasPrefix(string(data[:min(len(data), len(pngSignature))]), pngSignature)
}

func decodePNG(data []byte, width, height int, rgb []byte) error {
	return readPNG(data, width, height, rgb, false)
}

// readPNG is decodePNG with a choice of the code that undoes the filters.
func readPNG(data []byte, width, height int, rgb []byte, portable bool) error {
	p := pngReader{data: data, pos: len(pngSignature), sequence: noSequence}
	spans, ok := p.open()
	if p.sized && (p.width != int64(width) || p.height != int64(height)) {
		return wrongSize(PNG, int(p.width), int(p.height), width, height)
	}
	if !ok || !p.sized {
		return damaged(PNG)
	}
	if p.kind == (pngKind{16, 0}) {
		return refuse(Unsupported, PNG, "16-bit grey is not taken, since its range is not known; send 8-bit RGB")
	}
	if len(spans) > maxParts {
		return refuse(Unsupported, PNG, "the PNG's data are in more than %d chunks; send them in fewer", maxParts)
	}
	layout, lut, ok := p.layout()
	if !ok {
		return damaged(PNG)
	}
	if portable {
		layout.portable = 1
	}
	// Where the file ends within the image data, it matters for the chunks
	// behind the last row which of them it is in.
	if len(spans) > 1 && spans[len(spans)-1].end > len(data) {
		layout.stepwise = 1
	}
	kind, hasPalette := p.kind, p.hasPalette // those at the picture; headers may follow it
	parts := make([]C.hg_png_span, len(spans))
	for i, s := range spans {
		parts[i] = C.hg_png_span{offset: C.size_t(s.start), size: C.size_t(min(s.end, len(data)) - s.start)}
	}
	var last C.size_t
	status := C.hg_png_read((*C.uint8_t)(unsafe.SliceData(data)), &parts[0], C.size_t(len(parts)), &layout,
		(*C.uint8_t)(&lut[0]), (*C.uint8_t)(unsafe.SliceData(rgb)), &last)
	if err := refused(PNG, status); err != nil {
		return err
	}
	if !p.close(spans[last]) || !p.transparent.convertible(kind, hasPalette) {
		return damaged(PNG)
	}
	return nil
}

// layout says how the rows lie and gives the colour of each sample of a
// palette or a grey. It is false for what cannot be converted.
func (p *pngReader) layout() (C.hg_png_layout, *[768]byte, bool) {
	kind := p.kind
	l := C.hg_png_layout{width: C.size_t(p.width), height: C.size_t(p.height), depth: C.int(kind.depth)}
	l.cols, l.rows = l.width, l.height
	if p.interlaced {
		l.interlaced = 1
	}
	if p.framed {
		f := p.frame
		if f.width <= 0 || f.height <= 0 {
			return l, nil, false
		}
		l.cols, l.rows = C.size_t(f.width), C.size_t(f.height)
		if !p.interlaced { // Pillow forgets the offset of an interlaced one
			l.left, l.top = C.size_t(f.left), C.size_t(f.top)
		}
	}
	l.channels = [...]C.int{1, 0, 3, 1, 2, 0, 4}[kind.colour]

	lut := new([768]byte)
	scale := 1
	if kind.colour == 0 {
		scale = 255 / (1<<kind.depth - 1)
	}
	switch {
	case kind.colour == 3 && !p.hasPalette: // all colours are black
	case p.hasPalette:
		// Only an image that has one sample of 8 bits in memory, maybe beside
		// alpha, takes a palette. Colours behind its end are black.
		if len(p.palette) >= 3*257 || kind.colour == 2 || kind.colour == 6 || kind == (pngKind{1, 0}) || kind == (pngKind{16, 4}) {
			return l, nil, false
		}
		for i := range 255/scale + 1 {
			if at := 3 * i * scale; at+3 <= len(p.palette) {
				copy(lut[3*i:3*i+3], p.palette[at:])
			}
		}
	default:
		for i := range 256 {
			grey := byte(i * scale)
			lut[3*i], lut[3*i+1], lut[3*i+2] = grey, grey, grey
		}
	}
	return l, lut, true
}
