#include "floor.h"

#include <libdeflate.h>

#include "../../prep/raster/sink.h"

// The very code that prep/raster runs, under names of its own: both are linked
// into one program.
#define hg_unfilter floor_unfilter_row
#define hg_unfilter_pair floor_unfilter_pair
#define hg_unfilter_portable floor_unfilter_portable
#include "../../prep/raster/unfilter.c"

int floor_inflate(const uint8_t *stream, size_t size, uint8_t *rows, size_t bytes) {
	struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
	const int ok = d && libdeflate_zlib_decompress(d, stream, size, rows, bytes, NULL) == LIBDEFLATE_SUCCESS;
	libdeflate_free_decompressor(d);
	return ok;
}

void floor_unfilter(const uint8_t *rows, size_t width, size_t height, uint8_t *rgb) {
	static const uint8_t zeros[1 << 16];
	const size_t size = 3 * width, line = size + FLOOR_SLACK;
	const uint8_t *above = zeros;
	for (size_t y = 0; y < height; y++) {
		const uint8_t *src = rows + y * (size + 1);
		uint8_t *row = rgb + y * line;
		if (y + 1 < height && src[0] == 4 && src[size + 1] == 4 &&
		    floor_unfilter_pair(row, row + line, src + 1, above, size, 3)) {
			y++;
			above = row + line;
			continue;
		}
		floor_unfilter_row(row, src + 1, above, size, 3, src[0]);
		above = row;
	}
}

void floor_table(const uint8_t *rgb, size_t width, size_t height, const float *table, float *planes) {
	const hg_sink sink = {.layout = HG_FLOAT32, .width = width, .height = height, .table = table, .dst = planes};
	for (size_t y = 0; y < height; y++)
		hg_sink_row(&sink, y, rgb + (3 * width + FLOOR_SLACK) * y, 3);
}
