package raster

/*
#cgo pkg-config: zlib
#include <limits.h>
#include <stdint.h>
#include <zlib.h>

// hg_inflate fills dst from a zlib stream and tells whether it could. As zlib
// does it, the checksum counts where the stream ends with dst, and what follows
// beyond dst does not.
static int hg_inflate(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len) {
	z_stream z = {0};
	if (src_len > UINT_MAX || dst_len > UINT_MAX || inflateInit(&z) != Z_OK)
		return 0;
	z.next_in = (Bytef *)src;
	z.avail_in = (uInt)src_len;
	z.next_out = dst;
	z.avail_out = (uInt)dst_len;
	int state = inflate(&z, Z_PARTIAL_FLUSH);
	int full = (state == Z_OK || state == Z_STREAM_END) && z.avail_out == 0;
	inflateEnd(&z);
	return full;
}
*/
import "C"

import "unsafe"

// inflate replaces the chunks, zlib streams, by their bytes.
func (m *tiffImage) inflate() *Error {
	chunks := make([][]byte, len(m.chunks))
	for i, chunk := range m.chunks {
		chunks[i] = make([]byte, m.rowBytes()*m.rows(i))
		if C.hg_inflate((*C.uint8_t)(unsafe.Pointer(&chunk[0])), C.size_t(len(chunk)),
			(*C.uint8_t)(unsafe.Pointer(&chunks[i][0])), C.size_t(len(chunks[i]))) == 0 {
			return refuse(Damaged, TIFF, "the TIFF is truncated or damaged in its compressed data")
		}
	}
	m.chunks = chunks
	return nil
}
