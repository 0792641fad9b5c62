package raster

import "encoding/binary"

// Compressions of a TIFF that are taken.
const (
	tiffRaw        = 1
	tiffLZW        = 5
	tiffDeflate    = 8
	tiffOldDeflate = 32946
	tiffPackBits   = 32773
)

// Photometric interpretations of a TIFF that are taken.
const (
	whiteIsZero = 0
	blackIsZero = 1
	tiffRGB     = 2
	tiffPalette = 3
)

// Meanings of the sample after the colours.
const (
	noExtra       = -1
	unknownExtra  = 0
	premultiplied = 1
	plainAlpha    = 2
)

// maxTile bounds the sides of a tile: a picture is stored in tiles that
// can be far larger than it is.
const maxTile = 512

// tiffImage is a TIFF of a kind that is taken.
type tiffImage struct {
	order         binary.ByteOrder
	width, height int // as stored
	orientation   int // 1 to 8
	bits, samples int
	photometric   int
	extra         int
	compression   int
	predictor     bool
	palette       [256][3]byte
	// Chunks are strips or tiles, in the order of the file, each of this size;
	// the last strip holds only the rows that are left.
	chunkWidth, chunkHeight int
	tiled                   bool
	chunks                  [][]byte
}

// readTIFF reads what says how the pixels are stored, and refuses kinds whose
// pixels are not certain to come out as the reference's.
func readTIFF(data []byte, wantWidth, wantHeight int) (*tiffImage, *Error) {
	d, err := readTIFFDir(data)
	if err != nil {
		return nil, err
	}
	m := &tiffImage{order: d.order, width: d.length(tagWidth, 0), height: d.length(tagHeight, 0)}
	m.orientation = d.short(tagOrientation, 1)
	if d.err != nil {
		return nil, d.err
	}
	if d.turnedByXMP() {
		return nil, refuse(Unsupported, TIFF, "a TIFF that is turned by its XMP data is not taken; turn it before saving")
	}
	width, height := m.width, m.height
	if m.orientation >= 5 {
		width, height = height, width
	}
	if width != wantWidth || height != wantHeight {
		return nil, wrongSize(TIFF, width, height, wantWidth, wantHeight)
	}
	if err := m.readKind(d); err != nil {
		return nil, err
	}
	if err := d.checkOthers(m.samples); err != nil {
		return nil, err
	}
	return m, m.readChunks(d, data)
}

// readKind reads the kind of the samples and of the compression.
func (m *tiffImage) readKind(d *tiffDir) *Error {
	odd := func(message string, args ...any) *Error {
		return refuse(Unsupported, TIFF, message+" is not taken; save it as 8-bit RGB", args...)
	}
	m.compression = d.short(tagCompression, 1)
	m.photometric = d.short(tagPhotometric, -1)
	m.samples = d.short(tagSamples, 1)
	if d.err != nil {
		return d.err
	}
	switch m.compression {
	case tiffRaw, tiffLZW, tiffPackBits, tiffDeflate, tiffOldDeflate:
	default:
		name := map[int]string{2: "fax", 3: "fax", 4: "fax", 6: "old JPEG", 7: "JPEG", 34925: "LZMA", 50000: "Zstandard",
			50001: "WebP", 33003: "JPEG 2000", 33005: "JPEG 2000"}[m.compression]
		if name == "" {
			name = "unknown"
		}
		return odd("a TIFF with %s compression (%d)", name, m.compression)
	}
	colours := 1
	switch m.photometric {
	case whiteIsZero, blackIsZero, tiffPalette:
	case tiffRGB:
		colours = 3
	case 5:
		return odd("a CMYK TIFF")
	case 6:
		return odd("a YCbCr TIFF")
	case 8:
		return odd("a CIELAB TIFF")
	default:
		return odd("a TIFF with photometric interpretation %d", m.photometric)
	}
	if m.samples < colours || m.samples > colours+1 {
		return odd("a TIFF of this colour kind with %d samples a pixel", m.samples)
	}
	m.bits = d.perSample(tagBits, m.samples, 1)
	format := d.perSample(tagSampleFormat, m.samples, 1)
	m.extra = noExtra
	if _, found := d.tags[tagExtraSamples]; found {
		m.extra = d.perSample(tagExtraSamples, m.samples-colours, noExtra)
	}
	predictor := d.short(tagPredictor, 1)
	if d.err != nil {
		return d.err
	}
	switch {
	case d.short(tagPlanar, 1) != 1:
		return odd("a TIFF with a plane for each colour")
	case d.short(tagFillOrder, 1) != 1:
		return odd("a TIFF with reversed bits")
	case format == 3:
		return odd("a TIFF with %d-bit floating-point samples", m.bits)
	case m.bits == 32:
		return odd("a TIFF with 32-bit samples")
	case format != 1 && !(format == 2 && m.bits == 8 && m.photometric == blackIsZero && m.samples == 1):
		return odd("a TIFF with samples of format %d", format)
	case m.bits == 16 && colours == 1:
		return odd("a TIFF with 16-bit grey samples")
	case !m.depthTaken():
		return odd("a TIFF with %d-bit samples of this colour kind", m.bits)
	case !m.extraTaken(colours):
		return odd("a TIFF with an extra sample of this kind")
	case m.orientation < 1 || m.orientation > 8:
		return refuse(Damaged, TIFF, "the orientation of the TIFF is %d", m.orientation)
	}
	switch {
	case predictor == 2 && m.compression != tiffRaw && m.compression != tiffPackBits && m.bits >= 8:
		m.predictor = true
	case predictor != 1:
		return odd("a TIFF with predictor %d for this compression", predictor)
	}
	return m.readPalette(d)
}

func (m *tiffImage) depthTaken() bool {
	switch m.bits {
	case 1, 2, 4:
		return m.samples == 1
	case 8:
		return true
	case 16:
		return m.photometric == tiffRGB
	}
	return false
}

// extraTaken tells whether the reference knows the sample after the colours.
func (m *tiffImage) extraTaken(colours int) bool {
	if m.samples == colours {
		return m.extra == noExtra
	}
	switch m.photometric {
	case blackIsZero:
		return m.extra == unknownExtra || m.extra == plainAlpha
	case tiffRGB:
		// Without the tag a fourth sample is alpha.
		return m.extra <= plainAlpha && !(m.extra == premultiplied && m.bits == 16)
	}
	return false
}

// readPalette gives every possible sample its colour, a grey where the TIFF has
// no palette. It has nothing to do for RGB.
func (m *tiffImage) readPalette(d *tiffDir) *Error {
	if m.photometric == tiffRGB {
		return d.err
	}
	if _, found := d.tags[tagBits]; !found && m.photometric == tiffPalette {
		d.malformed(tagBits) // 1 by default, but not for every reader
	}
	n := 1 << m.bits
	if m.photometric != tiffPalette {
		for i := range n {
			v := byte(i * 255 / (n - 1))
			if m.photometric == whiteIsZero {
				v = ^v
			}
			m.palette[i] = [3]byte{v, v, v}
		}
		return d.err
	}
	t := d.tags[tagColorMap]
	if t.kind != typeShort || t.count != uint64(3*n) {
		d.malformed(tagColorMap)
		return d.err
	}
	for i, v := range d.numbers(tagColorMap) {
		m.palette[i%n][i/n] = byte(v >> 8)
	}
	return d.err
}

// readChunks finds the strips or tiles. Every one must be in the file.
func (m *tiffImage) readChunks(d *tiffDir, data []byte) *Error {
	_, m.tiled = d.tags[tagTileOffsets]
	_, strips := d.tags[tagStripOffsets]
	if m.tiled == strips {
		return refuse(Damaged, TIFF, "the TIFF has to have either strips or tiles")
	}
	across := 1
	offsetsTag, countsTag := uint16(tagStripOffsets), uint16(tagStripByteCounts)
	if m.tiled {
		offsetsTag, countsTag = tagTileOffsets, tagTileByteCounts
		m.chunkWidth, m.chunkHeight = d.length(tagTileWidth, 0), d.length(tagTileHeight, 0)
		if max(m.chunkWidth, m.chunkHeight) > maxTile || m.chunkWidth%16 != 0 || m.chunkHeight%16 != 0 {
			return refuse(Unsupported, TIFF, "a TIFF with tiles of %dx%d is not taken; the sides have to be multiples of 16, "+
				"at most %d", m.chunkWidth, m.chunkHeight, maxTile)
		}
		across = (m.width + m.chunkWidth - 1) / m.chunkWidth
	} else {
		m.chunkWidth, m.chunkHeight = m.width, min(m.height, d.length(tagRowsPerStrip, m.height))
		for _, tag := range [...]uint16{tagTileWidth, tagTileHeight, tagTileByteCounts} {
			if _, found := d.tags[tag]; found {
				d.malformed(tag)
			}
		}
	}
	want := across * ((m.height + m.chunkHeight - 1) / m.chunkHeight)
	// Before the values are read: a tag can have as many as the file has bytes.
	if n, lengths := d.tags[offsetsTag].count, d.tags[countsTag].count; n != uint64(want) || lengths != n {
		return refuse(Damaged, TIFF, "the TIFF has %d strips or tiles and %d lengths of them; its size asks for %d",
			n, lengths, want)
	}
	offsets, counts := d.numbers(offsetsTag), d.numbers(countsTag)
	if d.err != nil {
		return d.err
	}
	size, total := uint64(len(data)), uint64(0)
	m.chunks = make([][]byte, want)
	for i, at := range offsets {
		if at > size || counts[i] > size-at || counts[i] == 0 ||
			m.compression == tiffRaw && counts[i] < uint64(m.rowBytes()*m.rows(i)) {
			return refuse(Damaged, TIFF, "the TIFF is truncated: a strip or tile is not in the file in full")
		}
		// Strips that share bytes would be a small file that asks for much work.
		if total += counts[i]; total > size {
			return refuse(Damaged, TIFF, "the strips or tiles of the TIFF are larger than the file")
		}
		m.chunks[i] = data[at:][:counts[i]]
	}
	return nil
}

// rowBytes is the length of one row of a chunk.
func (m *tiffImage) rowBytes() int { return (m.chunkWidth*m.samples*m.bits + 7) / 8 }

// rows is the number of rows that chunk i holds.
func (m *tiffImage) rows(i int) int {
	if m.tiled {
		return m.chunkHeight
	}
	return min(m.chunkHeight, m.height-i*m.chunkHeight)
}

// decodeTIFF reads the first picture of a TIFF. Only the compressed bytes of its
// strips or tiles ever reach C code.
func decodeTIFF(data []byte, width, height int, rgb []byte) error {
	m, err := readTIFF(data, width, height)
	if err != nil {
		return err
	}
	switch m.compression {
	case tiffLZW, tiffPackBits:
		err = m.expand()
	case tiffDeflate, tiffOldDeflate:
		err = m.inflate()
	}
	if err != nil {
		return err
	}
	stored := make([]byte, 3*m.width*m.height)
	for i, chunk := range m.chunks {
		m.drawChunk(stored, i, chunk)
	}
	if m.orientation == 1 {
		copy(rgb, stored)
		return nil
	}
	for y := range height {
		for x := range width {
			copy(rgb[3*(width*y+x):][:3], stored[3*m.source(x, y):])
		}
	}
	return nil
}

// source is the stored pixel that is shown at x, y.
func (m *tiffImage) source(x, y int) int {
	o := m.orientation
	if o >= 5 {
		x, y = y, x
	}
	if o == 2 || o == 3 || o == 7 || o == 8 {
		x = m.width - 1 - x
	}
	if o == 3 || o == 4 || o == 6 || o == 7 {
		y = m.height - 1 - y
	}
	return y*m.width + x
}

// drawChunk writes what chunk i shows of the picture to stored. The chunk is
// uncompressed; where it was predicted its bytes are changed, and it is a copy.
func (m *tiffImage) drawChunk(stored []byte, i int, chunk []byte) {
	across := (m.width + m.chunkWidth - 1) / m.chunkWidth
	x, y := i%across*m.chunkWidth, i/across*m.chunkHeight
	width := min(m.chunkWidth, m.width-x)
	for row := range min(m.rows(i), m.height-y) {
		line := chunk[row*m.rowBytes():][:m.rowBytes()]
		if m.predictor {
			m.unpredict(line)
		}
		m.unpack(stored[3*((y+row)*m.width+x):][:3*width], line)
	}
}

// unpredict turns differences to the pixel on the left into samples.
func (m *tiffImage) unpredict(line []byte) {
	if m.bits == 8 {
		for i := m.samples; i < len(line); i++ {
			line[i] += line[i-m.samples]
		}
		return
	}
	for i := 2 * m.samples; i < len(line); i += 2 {
		m.order.PutUint16(line[i:], m.order.Uint16(line[i:])+m.order.Uint16(line[i-2*m.samples:]))
	}
}

// unpack turns a row of samples into RGB. Of 16 bits the high byte is taken.
func (m *tiffImage) unpack(rgb, line []byte) {
	if m.samples == 1 {
		lookUp(rgb, line, m.bits, &m.palette)
		return
	}
	if m.samples == 2 { // grey and alpha
		for x := range len(rgb) / 3 {
			copy(rgb[3*x:], m.palette[line[2*x]][:])
		}
		return
	}
	step, high := m.bits/8, 0
	if step == 2 && m.order == binary.ByteOrder(binary.LittleEndian) {
		high = 1
	}
	for x := range len(rgb) / 3 {
		pixel := line[x*m.samples*step:]
		for c := range 3 {
			v := int(pixel[c*step+high])
			if m.extra == premultiplied {
				v = divideAlpha(v, int(pixel[3]))
			}
			rgb[3*x+c] = byte(v)
		}
	}
}

// divideAlpha undoes a multiplication by alpha as the reference does it.
func divideAlpha(v, alpha int) int {
	if alpha == 0 {
		return 0
	}
	return min(255, 255*v/alpha)
}
