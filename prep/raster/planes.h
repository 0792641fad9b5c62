// A picture's samples, apart by their channel.
#ifndef HISTOGATE_PLANES_H
#define HISTOGATE_PLANES_H

#include <stddef.h>
#include <stdint.h>

// hg_planes writes the samples of so many pixels, three bytes each, to dst: all reds,
// then all greens, then all blues.
void hg_planes(const uint8_t *rgb, size_t pixels, uint8_t *dst);

#endif
