// The normalised values of a picture's samples.
#ifndef HISTOGATE_TABLE_H
#define HISTOGATE_TABLE_H

#include <stddef.h>
#include <stdint.h>

// The values of Layout in table.go.
enum { HG_FLOAT32 = 0, HG_FLOAT16 = 1 };

// Table in table.go, member by member.
typedef struct {
	uint32_t f32[3][256]; // as integers: a value is only moved, and so keeps its bits
	uint16_t f16[3][256];
	float mean[3], std[3], inverse[3]; // the last is 1 / std, rounded
	int32_t computable;
} hg_table;

// hg_table_write writes the values of the samples of so many pixels, three bytes
// each, to dst: those of red, plane values after the first of them those of green,
// and as far behind those of blue.
void hg_table_write(const hg_table *t, int layout, const uint8_t *rgb, size_t pixels, size_t plane, void *dst);

// hg_table_computable says whether values can be computed from mean, std and
// inverse, which is quicker than to look them up: whether this processor has the
// instructions, and gives each of the 768 values of both types with the very bits
// that stand in the table.
int hg_table_computable(const hg_table *t);

#endif
