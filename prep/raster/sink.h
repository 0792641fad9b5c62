// Where a C decoder puts its rows: the counterpart of Target.put in table.go.
//
// A sink lives on the stack of the one C call that Go makes for an image; the
// memory it points to is Go's, pinned for the length of that call and not kept.
#ifndef HISTOGATE_SINK_H
#define HISTOGATE_SINK_H

#include <stddef.h>
#include <stdint.h>

// The values of Layout in raster.go.
enum { HG_RGB8 = 0, HG_FLOAT32 = 1, HG_FLOAT16 = 2 };

// Table in table.go, member by member.
typedef struct {
	uint32_t f32[3][256]; // as integers: a value is only moved, and so keeps its bits
	uint16_t f16[3][256];
	float mean[3], std[3], inverse[3]; // the last is 1 / std, rounded
	int32_t computable;
} hg_table;

typedef struct {
	int layout;
	size_t width, height;  // pixels
	const hg_table *table; // not used by HG_RGB8
	void *dst;             // 3 * width * height samples
} hg_sink;

// hg_sink_row writes one row of width pixels of step bytes each, 3 or 4, of which
// the first three are red, green and blue.
void hg_sink_row(const hg_sink *s, size_t row, const uint8_t *rgb, size_t step);

// hg_table_computable says whether values can be computed from mean, std and
// inverse, which is quicker than to look them up: whether this processor has the
// instructions, and gives each of the 768 values of both types with the very bits
// that stand in the table.
int hg_table_computable(const hg_table *t);

#endif
