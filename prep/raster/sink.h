// Where a C decoder puts its rows.
//
// The memory is Go's, pinned for the length of the one C call that Go makes for an
// image, and not kept.
#ifndef HISTOGATE_SINK_H
#define HISTOGATE_SINK_H

#include <stddef.h>
#include <stdint.h>

// hg_sink_row writes a row of a picture that is width pixels wide to its place in
// dst, which holds three bytes a pixel. A pixel of rgb takes step bytes, 3 or 4, of
// which the first three are red, green and blue.
void hg_sink_row(uint8_t *dst, size_t width, size_t row, const uint8_t *rgb, size_t step);

#endif
