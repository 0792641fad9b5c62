#include "sink.h"

#include <string.h>

void hg_sink_row(uint8_t *dst, size_t width, size_t row, const uint8_t *rgb, size_t step) {
	dst += 3 * width * row;
	if (step == 3) {
		memcpy(dst, rgb, 3 * width);
		return;
	}
	// Four bytes are moved at once; the fourth is written over by the next pixel.
	for (; width > 1; width--, dst += 3, rgb += 4)
		memcpy(dst, rgb, 4);
	memcpy(dst, rgb, 3);
}
