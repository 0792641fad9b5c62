// Where a C decoder puts its rows: the counterpart of Target.put in table.go.
//
// A sink lives on the stack of the one C call that Go makes for an image; the
// memory it points to is Go's, pinned for the length of that call and not kept.
#ifndef HISTOGATE_SINK_H
#define HISTOGATE_SINK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The values of Layout in raster.go.
enum { HG_RGB8 = 0, HG_FLOAT32 = 1, HG_FLOAT16 = 2 };

typedef struct {
	int layout;
	size_t width, height; // pixels
	const void *table;    // [3][256] of the layout's type; not used by HG_RGB8
	void *dst;            // 3 * width * height samples
} hg_sink;

// hg_sink_row writes one row of width pixels of step bytes each, of which the
// first three are red, green and blue.
static inline void hg_sink_row(const hg_sink *s, size_t row, const uint8_t *rgb, size_t step) {
	const size_t plane = s->width * s->height, at = row * s->width;
	switch (s->layout) {
	case HG_RGB8: {
		uint8_t *dst = (uint8_t *)s->dst + 3 * at;
		if (step == 3) {
			memcpy(dst, rgb, 3 * s->width);
			return;
		}
		for (size_t x = 0; x < s->width; x++)
			memcpy(dst + 3 * x, rgb + step * x, 3);
		return;
	}
	case HG_FLOAT32: {
		// As integers: a value is only moved, and so keeps its bits.
		const uint32_t *t = (const uint32_t *)s->table;
		uint32_t *r = (uint32_t *)s->dst + at, *g = r + plane, *b = g + plane;
		for (size_t x = 0; x < s->width; x++, rgb += step) {
			r[x] = t[rgb[0]];
			g[x] = t[256 + rgb[1]];
			b[x] = t[512 + rgb[2]];
		}
		return;
	}
	case HG_FLOAT16: {
		const uint16_t *t = (const uint16_t *)s->table;
		uint16_t *r = (uint16_t *)s->dst + at, *g = r + plane, *b = g + plane;
		for (size_t x = 0; x < s->width; x++, rgb += step) {
			r[x] = t[rgb[0]];
			g[x] = t[256 + rgb[1]];
			b[x] = t[512 + rgb[2]];
		}
		return;
	}
	}
}

#endif
