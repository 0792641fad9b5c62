// The pixels of a PNG whose chunks were read by png.go.
#ifndef HISTOGATE_PNG_H
#define HISTOGATE_PNG_H

#include <stddef.h>
#include <stdint.h>

#include "sink.h"
#include "status.h"

// Compressed bytes of one chunk: file[offset, offset + size).
typedef struct {
	size_t offset, size;
} hg_png_span;

typedef struct {
	size_t width, height;         // the picture
	size_t left, top, cols, rows; // the part of it that the data fill; the rest is zeros
	int depth;                    // bits a sample: 1, 2, 4, 8 or 16
	int channels;                 // 1 to 4
	int interlaced;
	int portable; // use no SIMD
	int stepwise; // *last must be exact even if all spans are one sound stream
} hg_png_layout;

// hg_png_read inflates the spans, which are one zlib stream, undoes the filters
// and writes the picture to dst. lut, 256 times R, G, B, gives the colour of
// the first sample of a pixel; it is not used from three channels on. *last is
// set to the span in which the last row ended, or to a later one.
//
// It accepts what a reader accepts that inflates row by row, 64 KiB of a
// chunk at a time, and stops with the last row: damage behind that row goes
// unseen, and so does a wrong checksum of the stream that is not read with it.
// A stream that ends properly after any row leaves the rest zeros.
int hg_png_read(const uint8_t *file, const hg_png_span *spans, size_t count, const hg_png_layout *png,
		const uint8_t *lut, uint8_t *dst, size_t *last);

#endif
