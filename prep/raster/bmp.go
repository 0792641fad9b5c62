package raster

import (
	"encoding/binary"
	"strings"
)

func isBMP(data []byte) bool {
	return strings.HasPrefix(string(data[:min(len(data), 2)]), "BM")
}

// Compressions of a BMP that are read.
const (
	bmpRaw       = 0
	bmpBitfields = 3
)

// bmpMasks gives, for the bit fields of a 32-bit BMP (red, green, blue, alpha)
// that the reference knows, the place of red, green and blue in a pixel.
var bmpMasks = map[[4]uint32][3]int{
	{0xff0000, 0xff00, 0xff, 0}:          {2, 1, 0},
	{0xff000000, 0xff0000, 0xff00, 0}:    {3, 2, 1},
	{0xff000000, 0xff00, 0xff, 0}:        {3, 1, 0},
	{0xff000000, 0xff0000, 0xff00, 0xff}: {3, 2, 1},
	{0xff, 0xff00, 0xff0000, 0xff000000}: {0, 1, 2},
	{0xff0000, 0xff00, 0xff, 0xff000000}: {2, 1, 0},
	{0xff000000, 0xff00, 0xff, 0xff0000}: {3, 1, 0},
	{0, 0, 0, 0}:                         {2, 1, 0},
}

// bmpHeader is what the headers of a BMP say.
type bmpHeader struct {
	width, height int
	topDown       bool
	bits          int
	compression   uint32
	colors        int // entries of the palette that are in the file
	colorSize     int // bytes an entry
	paletteAt     int
	pixelsAt      int
	channels      [3]int // place of red, green and blue in a pixel
}

// readBMPHeader reads the file header and the information header, of any of
// the lengths that the reference takes. It refuses kinds that are not taken.
// Whoever calls it checks the size before the rest of the header is trusted.
func readBMPHeader(data []byte) (h bmpHeader, err *Error) {
	short := refuse(Damaged, BMP, "the BMP is truncated in its header")
	if len(data) < 18 {
		return h, short
	}
	le := binary.LittleEndian
	size := le.Uint32(data[14:])
	switch size {
	case 12, 40, 52, 56, 64, 108, 124:
	default:
		return h, refuse(Unsupported, BMP, "a BMP with a header of %d bytes is not taken", size)
	}
	end := 14 + int(size)
	if len(data) < end {
		return h, short
	}
	if size == 12 {
		h.width, h.height = int(le.Uint16(data[18:])), int(le.Uint16(data[20:]))
		h.bits, h.colorSize = int(le.Uint16(data[24:])), 3
	} else {
		height := le.Uint32(data[22:])
		if height>>24 == 0xff { // negative: rows from the top
			h.topDown, height = true, -height
		}
		h.width, h.height = int(le.Uint32(data[18:])), int(height)
		h.bits, h.colorSize = int(le.Uint16(data[28:])), 4
		h.compression = le.Uint32(data[30:])
		h.colors = int(le.Uint32(data[46:]))
	}
	if h.colors == 0 && h.bits <= 8 {
		h.colors = 1 << h.bits
	}
	h.paletteAt = end
	h.pixelsAt = int(le.Uint32(data[10:]))
	if h.pixelsAt == end && h.bits <= 8 {
		// The palette was forgotten in the offset of the pixels.
		h.pixelsAt += h.colorSize * h.colors
	}
	h.channels = [3]int{2, 1, 0}
	return h, nil
}

// checkBMPKind refuses kinds of BMP that are not taken, and sets where the
// colours of a pixel lie.
func checkBMPKind(data []byte, h *bmpHeader) *Error {
	switch h.compression {
	case bmpRaw, bmpBitfields:
	case 1, 2:
		return refuse(Unsupported, BMP, "a run-length encoded BMP is not taken; save it uncompressed")
	default:
		return refuse(Unsupported, BMP, "a BMP with compression %d is not taken; save it uncompressed", h.compression)
	}
	switch h.bits {
	case 1, 4, 8, 24, 32:
	default:
		return refuse(Unsupported, BMP, "a BMP with %d bits a pixel is not taken; save it with 24", h.bits)
	}
	if h.compression == bmpRaw {
		return nil
	}
	var masks [4]uint32
	count := 3
	if h.paletteAt >= 14+56 {
		count = 4
	}
	if len(data) < 54+4*count {
		return refuse(Damaged, BMP, "the BMP is truncated in its header")
	}
	for i := range count {
		masks[i] = binary.LittleEndian.Uint32(data[54+4*i:])
	}
	channels, known := bmpMasks[masks]
	switch {
	case h.bits == 32 && known:
		h.channels = channels
	case h.bits == 24 && [3]uint32(masks[:3]) == [3]uint32{0xff0000, 0xff00, 0xff}:
	default:
		return refuse(Unsupported, BMP, "a BMP with these bit fields is not taken; save it with 24 bits a pixel")
	}
	return nil
}

// readBMPPalette gives the colour of every index. An index past the palette is
// black, or of the grey of its value if the others are. Palettes of a length that the reference
// reads as another depth of grey are refused.
func readBMPPalette(data []byte, h *bmpHeader) (palette [256][3]byte, err *Error) {
	if h.colors > 1<<h.bits || h.bits == 1 && h.colors != 2 {
		return palette, refuse(Unsupported, BMP, "a BMP of %d bits a pixel with a palette of %d colours is not taken",
			h.bits, h.colors)
	}
	if len(data) < h.paletteAt+h.colors*h.colorSize {
		return palette, refuse(Damaged, BMP, "the BMP is truncated in its palette")
	}
	grey := true
	for i := range h.colors {
		bgr := data[h.paletteAt+i*h.colorSize:]
		palette[i] = [3]byte{bgr[2], bgr[1], bgr[0]}
		v := byte(i)
		if h.colors == 2 && i == 1 {
			v = 255
		}
		grey = grey && palette[i] == [3]byte{v, v, v}
	}
	if grey && (h.bits == 4 || h.bits == 8 && h.colors <= 2) {
		return palette, refuse(Unsupported, BMP, "a grey BMP of %d bits a pixel with a palette of %d colours is not taken; "+
			"save it with 24 bits a pixel", h.bits, h.colors)
	}
	if grey && h.bits == 8 {
		return greys(), nil
	}
	return palette, nil
}

// greys is the palette in which every index is a grey of its value.
func greys() (palette [256][3]byte) {
	for i := range palette {
		palette[i] = [3]byte{byte(i), byte(i), byte(i)}
	}
	return palette
}

// decodeBMP reads a BMP by itself: without compression there is nothing to
// decode, and the decoders at hand know other kinds than the reference does.
func decodeBMP(data []byte, width, height int, rgb []byte) error {
	h, err := readBMPHeader(data)
	if err != nil {
		return err
	}
	if h.width != width || h.height != height {
		return wrongSize(BMP, h.width, h.height, width, height)
	}
	if err := checkBMPKind(data, &h); err != nil {
		return err
	}
	var palette [256][3]byte
	if h.bits <= 8 {
		if palette, err = readBMPPalette(data, &h); err != nil {
			return err
		}
		if h.pixelsAt == 0 {
			h.pixelsAt = h.paletteAt + h.colors*h.colorSize
		}
	}
	if h.pixelsAt == 0 {
		return refuse(Damaged, BMP, "the BMP does not say where its pixels are")
	}
	used := (width*h.bits + 7) / 8
	stride := (used + 3) &^ 3
	if need := stride*(height-1) + used; h.pixelsAt > len(data) || len(data)-h.pixelsAt < need {
		return refuse(Damaged, BMP, "the BMP is truncated")
	}
	for row := range height {
		y := row
		if !h.topDown {
			y = height - 1 - row
		}
		src := data[h.pixelsAt+stride*row:][:used]
		line := rgb[3*width*y:][:3*width]
		if h.bits <= 8 {
			lookUp(line, src, h.bits, &palette)
		} else {
			step := h.bits / 8
			for x := range width {
				for c, at := range h.channels {
					line[3*x+c] = src[step*x+at]
				}
			}
		}
	}
	return nil
}

// lookUp writes the colours of a row of indices of 1, 2, 4 or 8 bits, the first
// pixel in the highest bits, to rgb, which is three bytes for each pixel.
func lookUp(rgb, indices []byte, bits int, palette *[256][3]byte) {
	mask := byte(1<<bits - 1)
	for x := range len(rgb) / 3 {
		at := x * bits
		copy(rgb[3*x:], palette[indices[at/8]>>(8-bits-at%8)&mask][:])
	}
}
