package raster

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// pngReader walks a PNG's chunks and judges them as Pillow does: which are
// read, which checksums count and what makes the file one that is refused. It
// never inflates an ancillary chunk.
type pngReader struct {
	data []byte
	pos  int // of the next byte to read

	// As the last IHDR says, those of an unknown kind keep the kind before.
	sized         bool
	width, height int64
	kind          pngKind
	interlaced    bool

	palette     []byte // of data; bytes behind the last whole colour do not count
	hasPalette  bool
	transparent transparent

	// APNG.
	frames   int64 // 0 if not an animation
	animated bool  // has more than one picture
	sequence int64 // number of the last fcTL or fdAT
	framed   bool
	frame    struct{ left, top, width, height int64 }
}

// pngKind is depth in bits and colour type; the zero kind is none.
type pngKind struct{ depth, colour byte }

func (k pngKind) known() bool {
	switch k.colour {
	case 0:
		return k.depth == 1 || k.depth == 2 || k.depth == 4 || k.depth == 8 || k.depth == 16
	case 3:
		return k.depth == 1 || k.depth == 2 || k.depth == 4 || k.depth == 8
	case 2, 4, 6:
		return k.depth == 8 || k.depth == 16
	}
	return false
}

// transparent is what the last tRNS makes transparent. Alpha is dropped, but
// Pillow converts the transparent colour as well, and may fail in it.
type transparent int

const (
	noColour transparent = iota // or several of a palette
	oneSample
	oneRGB
	oneWideRGB // with a sample over 255
)

// convertible says whether Pillow can convert the transparent colour together
// with a picture of a kind. It fails where the colour is of the kind that
// another header gave, or of a palette that there is not.
func (t transparent) convertible(kind pngKind, hasPalette bool) bool {
	switch {
	case kind.colour == 3 && !hasPalette:
		return t == noColour
	case kind.colour == 3:
		return t != oneWideRGB
	case kind.colour == 0 && kind.depth > 1:
		return t < oneRGB
	}
	return true
}

const noSequence = -2 // before the first fcTL; no number precedes it

// pngSpan is the payload of a chunk with image data. It may end behind the
// file.
type pngSpan struct {
	start, end int
	sequence   int64 // when the chunk was reached
}

// verdict is what a chunk means for the walk.
type verdict int

const (
	read    verdict = iota // its payload has been read
	unknown                // its payload is still to be read, and ignored
	pixels                 // it holds image data, from pos on
	end                    // IEND
	bad                    // refuse the file
)

func (p *pngReader) skip(n int) bool {
	if n > len(p.data)-p.pos {
		return false
	}
	p.pos += max(n, 0)
	return true
}

// header reads the length and the name of the next chunk. A name of anything
// but letters, digits and underscores ends the walk.
func (p *pngReader) header() (name string, length int, ok bool) {
	if len(p.data)-p.pos < 8 {
		p.pos = len(p.data)
		return "", 0, false
	}
	length = int(binary.BigEndian.Uint32(p.data[p.pos:]))
	id := p.data[p.pos+4 : p.pos+8]
	p.pos += 8
	for _, c := range id {
		if !(c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_') {
			return "", 0, false
		}
	}
	return string(id), length, true
}

// open reads up to the image data and lists the chunks that hold them, which
// follow each other.
func (p *pngReader) open() ([]pngSpan, bool) {
	for {
		name, length, ok := p.header()
		if !ok {
			return nil, false
		}
		start := p.pos
		switch p.chunk(name, length) {
		case bad, end:
			return nil, false
		case pixels:
			if p.frames > 0 {
				frames := p.frames
				if !p.framed {
					frames++ // the picture in IDAT is none of the animation
				}
				p.animated = frames > 1
			}
			return p.spans(length - (p.pos - start)), true
		case unknown:
			if !p.skip(length) {
				return nil, false
			}
		}
		// The checksum covers the name and the payload.
		if p.pos != start+length || len(p.data)-p.pos < 4 {
			return nil, false
		}
		if crc32.ChecksumIEEE(p.data[start-4:p.pos]) != binary.BigEndian.Uint32(p.data[p.pos:]) {
			return nil, false
		}
		p.pos += 4
	}
}

// spans lists the image data from pos, where a chunk has length bytes of it. Of
// empty chunks it lists only the first, and of too many no more than needed to
// tell.
func (p *pngReader) spans(length int) []pngSpan {
	var spans []pngSpan
	for {
		span := pngSpan{start: p.pos, end: p.pos + length, sequence: p.sequence}
		if length > 0 || spans == nil {
			if spans = append(spans, span); len(spans) > maxParts {
				return spans
			}
		}
		p.pos = min(span.end+4, len(p.data)) // its checksum does not count
		name, n, ok := p.header()
		if !ok {
			return spans
		}
		switch name {
		case "IDAT", "DDAT":
		case "fdAT":
			if p.chunk(name, n) != pixels {
				return spans
			}
			n -= 4
		default:
			return spans
		}
		length = n
	}
}

// close reads the chunks behind the one in which the picture ended.
func (p *pngReader) close(last pngSpan) bool {
	p.pos = min(last.end, len(p.data))
	p.sequence = last.sequence
	for {
		p.pos = min(p.pos+4, len(p.data)) // checksums do not count here
		name, length, ok := p.header()
		if !ok || name == "IEND" || name == "fcTL" && p.animated {
			return true
		}
		switch p.chunk(name, length) {
		case bad:
			return false
		case pixels:
			if name == "fdAT" {
				length -= 4
			}
			if !p.skip(length) {
				return false
			}
		case unknown:
			if !p.skip(length) {
				return false
			}
		}
	}
}

// shortestChunk is the least length of a chunk that Pillow reads; -1 for all
// others.
func shortestChunk(name string) int {
	switch name {
	case "PLTE", "tRNS", "iCCP", "zTXt", "tEXt", "iTXt", "eXIf":
		return 0
	case "sRGB":
		return 1
	case "gAMA":
		return 4
	case "acTL":
		return 8
	case "pHYs":
		return 9
	case "IHDR":
		return 13
	case "fcTL":
		return 26
	case "cHRM":
		return 32
	}
	return -1
}

// chunk reads a chunk whose header has been read.
func (p *pngReader) chunk(name string, length int) verdict {
	switch name {
	case "IEND":
		return end
	case "IDAT":
		if p.kind == (pngKind{}) {
			return unknown
		}
		return pixels
	case "fdAT":
		if length < 4 || !p.skip(4) || p.sequence == noSequence || !p.follows(p.data[p.pos-4:]) || p.kind == (pngKind{}) {
			return bad
		}
		return pixels
	}
	shortest := shortestChunk(name)
	if shortest < 0 {
		return unknown
	}
	start := p.pos
	if !p.skip(length) || length < shortest {
		return bad
	}
	body := p.data[start:p.pos]
	ok := true
	switch name {
	case "IHDR":
		ok = p.header13(body)
	case "PLTE":
		if p.kind.colour == 3 {
			p.palette, p.hasPalette = body, true
		}
	case "tRNS":
		ok = p.transparency(body)
	case "iCCP":
		ok = deflated(body)
	case "zTXt":
		// Without a zero byte, or with nothing behind it, it is an empty text.
		at := bytes.IndexByte(body, 0)
		ok = at < 0 || at == len(body)-1 || body[at+1] == 0
	case "acTL":
		p.animation(body)
	case "fcTL":
		ok = p.frameControl(body)
	}
	if !ok {
		return bad
	}
	return read
}

func (p *pngReader) header13(b []byte) bool {
	p.sized = true
	p.width, p.height = int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:]))
	if kind := (pngKind{b[8], b[9]}); kind.known() {
		p.kind = kind
	}
	if b[12] != 0 {
		p.interlaced = true
	}
	return b[11] == 0 // the filter method; the compression method is not looked at
}

func (p *pngReader) transparency(b []byte) bool {
	switch {
	case p.kind.colour == 3:
		// The pattern that Pillow matches has a $ that also stands before a
		// last line feed.
		b = bytes.TrimSuffix(b, []byte("\n"))
		p.transparent = noColour
		if bytes.Count(b, []byte{0}) == 1 && bytes.Count(b, []byte{0xff}) == len(b)-1 {
			p.transparent = oneSample
		}
	case p.kind.colour == 0 && p.kind.depth != 0:
		p.transparent = oneSample
		return len(b) >= 2
	case p.kind == (pngKind{8, 2}) || p.kind == (pngKind{16, 2}):
		if len(b) < 6 {
			return false
		}
		p.transparent = oneRGB
		if b[0]|b[2]|b[4] != 0 {
			p.transparent = oneWideRGB
		}
	}
	return true
}

// deflated says whether an iCCP chunk is of the one compression method that
// there is. A profile that is no zlib stream does no harm.
func deflated(b []byte) bool {
	at := bytes.IndexByte(b, 0) + 1
	return at < len(b) && b[at] == 0
}

func (p *pngReader) animation(b []byte) {
	n := int64(binary.BigEndian.Uint32(b))
	switch {
	case p.frames > 0: // a second one: not taken for an animation any more
		p.frames = 0
	case n <= 1<<31:
		p.frames = n
	}
}

// follows counts the sequence number in b, which must be the next one.
func (p *pngReader) follows(b []byte) bool {
	n := int64(binary.BigEndian.Uint32(b))
	if p.sequence == noSequence && n != 0 || p.sequence != noSequence && n != p.sequence+1 {
		return false
	}
	p.sequence = n
	return true
}

func (p *pngReader) frameControl(b []byte) bool {
	if !p.follows(b) {
		return false
	}
	f := &p.frame
	f.width, f.height = int64(binary.BigEndian.Uint32(b[4:])), int64(binary.BigEndian.Uint32(b[8:]))
	f.left, f.top = int64(binary.BigEndian.Uint32(b[12:])), int64(binary.BigEndian.Uint32(b[16:]))
	p.framed = true
	return f.left+f.width <= p.width && f.top+f.height <= p.height
}
