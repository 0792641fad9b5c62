// The pixels of a JPEG whose header was read by jpeg.go.
#ifndef HISTOGATE_JPEG_H
#define HISTOGATE_JPEG_H

#include <stddef.h>
#include <stdint.h>

#include "sink.h"
#include "status.h"

// hg_jpeg_read decodes to dst a JPEG of that size and of 1 (grey), 3 or 4 (CMYK)
// components, as libjpeg's users do that hand it 64 KiB of the file at a time
// and stop with the last row: damage that libjpeg conceals is accepted, a file
// that ends before the last row is not. It is refused with HG_TOO_MUCH when it
// has more than max_scans scans, or streams with nothing but tables.
int hg_jpeg_read(const uint8_t *file, size_t size, size_t width, size_t height, int components, int max_scans,
		 uint8_t *dst);

#endif
