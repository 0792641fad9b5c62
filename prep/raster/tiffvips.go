package raster

/*
#cgo pkg-config: vips libtiff-4
#include <stdatomic.h>
#include <tiffio.h>
#include <vips/vips.h>

// libvips fills in what libtiff could not decode and calls it a warning, so
// libtiff's errors are counted. It has one handler of them for the process.
static atomic_ulong hg_errors;

static void hg_count(thandle_t client, const char *module, const char *format, va_list arguments) {
	atomic_fetch_add(&hg_errors, 1);
}

static unsigned long hg_tiff_errors(void) { return atomic_load(&hg_errors); }

static void hg_silent(const gchar *domain, GLogLevelFlags level, const gchar *message, gpointer data) {}

// Of all loaders of libvips only the one that is used stays on: those for SVG,
// PDF and what ImageMagick reads would be as ready.
static void hg_lock_vips(void) {
	vips_concurrency_set(1);
	vips_operation_block_set("VipsForeignLoad", TRUE);
	vips_operation_block_set("VipsForeignLoadTiffBuffer", FALSE);
	g_log_set_handler("VIPS", G_LOG_LEVEL_MASK, hg_silent, NULL); // a caller's bad file is not for our log
	TIFFSetErrorHandlerExt(hg_count);
}
*/
import "C"

import (
	"encoding/binary"
	"runtime"
	"sync"

	"github.com/h2non/bimg"
)

// vips is libvips, of which a process has one. A picture is decompressed beside
// others, and once more alone when any of them met an error.
type vips struct{ alone sync.RWMutex }

// theVips locks libvips down before its first use. Its process-wide cache is
// off: it would keep the pictures of past requests.
var theVips = sync.OnceValue(func() *vips {
	bimg.VipsCacheSetMax(0)
	bimg.VipsCacheSetMaxMem(0)
	C.hg_lock_vips()
	return new(vips)
})

// decompress gives the picture of a TIFF as a TIFF without compression.
func (v *vips) decompress(tiff []byte) (out []byte, intact bool) {
	v.alone.RLock()
	out, intact = v.try(tiff)
	v.alone.RUnlock()
	if intact {
		return out, true
	}
	v.alone.Lock()
	defer v.alone.Unlock()
	return v.try(tiff)
}

// try tells whether no error occurred, in this picture or in one beside it. libvips
// keeps per-thread state between the calls that bimg makes, and reads from tiff
// until the last of them is done.
func (v *vips) try(tiff []byte) (out []byte, intact bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer runtime.KeepAlive(tiff)
	before := C.hg_tiff_errors()
	out, err := bimg.Resize(tiff, bimg.Options{
		Type: bimg.TIFF, NoAutoRotate: true, StripMetadata: true, Interpretation: bimg.InterpretationBW,
	})
	return out, err == nil && C.hg_tiff_errors() == before
}

// expand replaces the compressed chunks by their bytes. It gives libvips a TIFF
// made here, of one grey byte a pixel: the chunks as its strips and the ten
// tags that describe them. So whatever else the file holds never reaches C code,
// and libvips converts, turns and guesses nothing; it undoes the compression.
func (m *tiffImage) expand() *Error {
	rows := 0
	for i := range m.chunks {
		rows += m.rows(i)
	}
	plain := &tiffImage{
		order: binary.LittleEndian, width: m.rowBytes(), height: rows, compression: m.compression,
		chunkHeight: m.chunkHeight, chunks: m.chunks,
	}
	bytes, intact := theVips().decompress(plain.encode())
	if !intact {
		return refuse(Damaged, TIFF, "the TIFF is truncated or damaged in its compressed data")
	}
	out, refused := readTIFF(bytes, m.rowBytes(), rows)
	if refused != nil || out.bits != 8 || out.samples != 1 || out.photometric != blackIsZero || out.tiled ||
		out.compression != tiffRaw {
		return refuse(Damaged, TIFF, "the TIFF could not be decompressed")
	}
	chunks, flat := make([][]byte, len(m.chunks)), make([]byte, 0, m.rowBytes()*rows)
	for i, strip := range out.chunks {
		flat = append(flat, strip[:m.rowBytes()*out.rows(i)]...)
	}
	for i := range chunks {
		length := m.rowBytes() * m.rows(i)
		chunks[i], flat = flat[:length], flat[length:]
	}
	m.chunks = chunks
	return nil
}

// encode writes the chunks as a little-endian classic TIFF of one grey byte a pixel.
func (m *tiffImage) encode() []byte {
	n := uint32(len(m.chunks))
	const tags = 10
	const arrays = 8 + 2 + 12*tags + 4 // the place of the offsets and lengths of strips
	offsetsAt, lengthsAt := uint32(arrays), arrays+4*n
	at := lengthsAt + 4*n
	var offsets, lengths, pixels []byte
	le := binary.LittleEndian
	for _, chunk := range m.chunks {
		offsets = le.AppendUint32(offsets, at)
		lengths = le.AppendUint32(lengths, uint32(len(chunk)))
		pixels = append(pixels, chunk...)
		at += uint32(len(chunk))
	}
	if n == 1 { // a single value is in the directory itself
		offsetsAt, lengthsAt = le.Uint32(offsets), le.Uint32(lengths)
	}
	out := append(make([]byte, 0, at), "II*\x00\x08\x00\x00\x00"...)
	out = le.AppendUint16(out, tags)
	for _, tag := range [tags]struct {
		tag, kind uint16
		n, value  uint32
	}{
		{tagWidth, typeLong, 1, uint32(m.width)},
		{tagHeight, typeLong, 1, uint32(m.height)},
		{tagBits, typeShort, 1, 8},
		{tagCompression, typeShort, 1, uint32(m.compression)},
		{tagPhotometric, typeShort, 1, blackIsZero},
		{tagStripOffsets, typeLong, n, offsetsAt},
		{tagSamples, typeShort, 1, 1},
		{tagRowsPerStrip, typeLong, 1, uint32(m.chunkHeight)},
		{tagStripByteCounts, typeLong, n, lengthsAt},
		{tagPlanar, typeShort, 1, 1},
	} {
		out = le.AppendUint16(out, tag.tag)
		out = le.AppendUint16(out, tag.kind)
		out = le.AppendUint32(out, tag.n)
		out = le.AppendUint32(out, tag.value)
	}
	out = le.AppendUint32(out, 0) // no further directory
	out = append(append(out, offsets...), lengths...)
	return append(out, pixels...)
}
