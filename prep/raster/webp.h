// WebP, still or the first frame of an animation.
#ifndef HISTOGATE_WEBP_H
#define HISTOGATE_WEBP_H

#include <stddef.h>
#include <stdint.h>

#include "sink.h"
#include "status.h"

// hg_webp_read decodes the first frame onto a canvas of zeros, which must be of
// that size, drops alpha and writes what is left to dst. A file of more than max_frames frames is refused
// with HG_TOO_MUCH.
int hg_webp_read(const uint8_t *file, size_t size, size_t width, size_t height, int max_frames, uint8_t *dst);

#endif
