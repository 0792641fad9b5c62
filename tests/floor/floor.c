#include "floor.h"

#include <libdeflate.h>

// The very code that prep/raster runs, under names of its own: both are linked
// into one program.
#define hg_table_write floor_table_write
#define hg_table_computable floor_table_computable
#define hg_unfilter floor_unfilter_rows
#define hg_unfilter_portable floor_unfilter_portable
#include "../../prep/raster/table.c"
#include "../../prep/raster/unfilter.c"

_Static_assert((int)FLOOR_SLACK == (int)HG_ROW_SLACK, "each row has what the unfilter needs");

int floor_inflate(const uint8_t *stream, size_t size, uint8_t *rows, size_t bytes) {
	struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
	const int ok = d && libdeflate_zlib_decompress(d, stream, size, rows, bytes, NULL) == LIBDEFLATE_SUCCESS;
	libdeflate_free_decompressor(d);
	return ok;
}

void floor_unfilter(const uint8_t *rows, size_t width, size_t height, uint8_t *rgb) {
	static const uint8_t zeros[1 << 16];
	const size_t size = 3 * width, line = size + HG_ROW_SLACK;
	const uint8_t *above = zeros;
	for (size_t y = 0, done; y < height; y += done) {
		uint8_t *row[HG_MOST_ROWS];
		for (size_t k = 0; k < HG_MOST_ROWS; k++)
			row[k] = rgb + (y + k) * line;
		done = floor_unfilter_rows(row, rows + y * (size + 1), above, height - y, size, 3);
		above = row[done - 1];
	}
}

void floor_table(const uint8_t *rgb, size_t width, size_t height, const void *table, float *planes) {
	for (size_t y = 0; y < height; y++)
		floor_table_write(table, HG_FLOAT32, rgb + (3 * width + HG_ROW_SLACK) * y, width, width * height, planes + width * y);
}
