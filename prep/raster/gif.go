package raster

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"io"
	"strings"
)

func isGIF(data []byte) bool {
	start := string(data[:min(len(data), 6)])
	return strings.HasPrefix(start, "GIF87a") || strings.HasPrefix(start, "GIF89a")
}

// gifFrame is the first frame of a GIF and the screen it is drawn on.
type gifFrame struct {
	width, height int // of the screen, grown to hold the frame
	x0, y0, w, h  int // the frame on it
	background    byte
	interlaced    bool
	palette       [256][3]byte
	codeBits      int
	blocks        []byte // from the first block of the frame's data on
}

// gifReader takes a file apart. It remembers that the file was too short.
type gifReader struct {
	rest  []byte
	short bool
}

func (r *gifReader) take(n int) []byte {
	if len(r.rest) < n {
		r.short, r.rest = true, nil
		return make([]byte, n)
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

// block takes one block of data: empty at the end of a series of them.
func (r *gifReader) block() []byte { return r.take(int(r.take(1)[0])) }

// readGIF reads up to the data of the first frame. Where the reference reads an
// irregular file in a way of its own, the file is refused.
func readGIF(data []byte) (f gifFrame, err *Error) {
	le := binary.LittleEndian
	damaged := refuse(Damaged, GIF, "the GIF is truncated or damaged before its first frame")
	r := gifReader{rest: data[6:]}
	screen := r.take(7)
	f.width, f.height = int(le.Uint16(screen)), int(le.Uint16(screen[2:]))
	f.palette = greys()
	if screen[4]&0x80 != 0 {
		f.readPalette(&r, screen[4])
	}
	for !r.short {
		switch r.take(1)[0] {
		case 0x21:
			if !f.readExtension(&r) {
				return f, damaged
			}
		case 0x2c:
			d := r.take(9)
			f.x0, f.y0 = int(le.Uint16(d)), int(le.Uint16(d[2:]))
			f.w, f.h = int(le.Uint16(d[4:])), int(le.Uint16(d[6:]))
			f.width, f.height = max(f.width, f.x0+f.w), max(f.height, f.y0+f.h)
			f.interlaced = d[8]&0x40 != 0
			if d[8]&0x80 != 0 {
				f.readPalette(&r, d[8])
			}
			f.codeBits = int(r.take(1)[0])
			if r.short || f.w == 0 || f.h == 0 || f.codeBits < 2 || f.codeBits > 8 {
				return f, damaged
			}
			f.blocks = r.rest
			return f, nil
		default:
			return f, damaged
		}
	}
	return f, damaged
}

// readPalette reads a palette of the size that the flags give. An index past it
// is black, but of the grey of its value if the others are, too.
func (f *gifFrame) readPalette(r *gifReader, flags byte) {
	n := 2 << (flags & 7)
	colours := r.take(3 * n)
	grey := true
	f.palette = [256][3]byte{}
	for i := range n {
		f.palette[i] = [3]byte(colours[3*i:])
		grey = grey && f.palette[i] == [3]byte{byte(i), byte(i), byte(i)}
	}
	if grey {
		f.palette = greys()
	}
}

// readExtension reads one extension; only a transparent colour concerns the
// first frame: it is what the screen is filled with.
func (f *gifFrame) readExtension(r *gifReader) bool {
	label := r.take(1)[0]
	block := r.block()
	const comment = 0xfe
	if len(block) == 0 {
		return label == comment && !r.short
	}
	switch label {
	case 0xf9:
		if len(block) < 4 {
			return false
		}
		if block[0]&1 != 0 {
			f.background = block[3]
		}
	case 0xff:
		// The reference reads one block more here, even past the last one.
		if bytes.HasPrefix(block, []byte("NETSCAPE2.0")) && len(r.block()) == 0 {
			return false
		}
	}
	for len(r.block()) > 0 {
	}
	return !r.short
}

// gifBlocks is the data of a frame without its division into blocks. A block
// that is not there in full is an error, as it is for the reference.
type gifBlocks struct {
	rest, block []byte
}

// ReadByte implements [io.ByteReader].
func (b *gifBlocks) ReadByte() (byte, error) {
	if len(b.block) == 0 {
		r := gifReader{rest: b.rest}
		b.block = r.block()
		if r.short || len(b.block) == 0 {
			return 0, io.ErrUnexpectedEOF
		}
		b.rest = r.rest
	}
	c := b.block[0]
	b.block = b.block[1:]
	return c, nil
}

// Read is there for the decoder's signature; the decoder reads bytes.
func (b *gifBlocks) Read(p []byte) (int, error) {
	for i := range p {
		c, err := b.ReadByte()
		if err != nil {
			return i, err
		}
		p[i] = c
	}
	return len(p), nil
}

// rows gives the order in which the rows of a frame are stored.
func (f *gifFrame) rows() []int {
	order := make([]int, 0, f.h)
	if !f.interlaced {
		for y := range f.h {
			order = append(order, y)
		}
		return order
	}
	for _, pass := range [...]struct{ start, step int }{{0, 8}, {4, 8}, {2, 4}, {1, 2}} {
		for y := pass.start; y < f.h; y += pass.step {
			order = append(order, y)
		}
	}
	return order
}

// decodeGIF draws the first frame, and reads nothing after it: a missing end of
// the file and further frames do not matter.
func decodeGIF(data []byte, width, height int, rgb []byte) error {
	f, err := readGIF(data)
	if err != nil {
		return err
	}
	if f.width != width || f.height != height {
		return wrongSize(GIF, f.width, f.height, width, height)
	}
	screen := bytes.Repeat([]byte{f.background}, width*height)
	codes := lzw.NewReader(&gifBlocks{rest: f.blocks}, lzw.LSB, f.codeBits)
	defer codes.Close()
	for _, y := range f.rows() {
		if _, err := io.ReadFull(codes, screen[(f.y0+y)*width+f.x0:][:f.w]); err != nil {
			return refuse(Damaged, GIF, "the GIF is truncated or damaged in its first frame")
		}
	}
	lookUp(rgb, screen, 8, &f.palette)
	return nil
}
