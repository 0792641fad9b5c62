// Feeds the C decoders mutants of the files named as arguments, to be compiled
// with AddressSanitizer and UndefinedBehaviorSanitizer:
//
//	driver SECONDS SEED FILE...
//
// It gives the decoders what their callers in Go may give them: any bytes, but
// sizes, spans and layouts that were checked. Every other part of a run is on
// what it makes up itself. It ends with 0, or as the sanitizers end it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#include "jpeg.h"
#include "hg_png.h"
#include "sink.h"
#include "table.h"
#include "unfilter.h"
#include "webp.h"

enum { SIDE = 256 };

static uint64_t state;

static uint32_t next(uint32_t below) {
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

static void scribble(uint8_t *p, size_t size, uint32_t most) {
	for (uint32_t i = next(most) + 1; i > 0 && size > 0; i--)
		p[next((uint32_t)size)] ^= (uint8_t)(next(2) ? 1u << next(8) : next(256));
}

// An exact allocation, so that a step past its end is seen.
static uint8_t *copy(const uint8_t *p, size_t size) {
	uint8_t *c = malloc(size ? size : 1);
	if (!c)
		exit(2);
	memcpy(c, p, size);
	return c;
}

static uint8_t *noise(size_t size) {
	uint8_t *c = malloc(size ? size : 1);
	if (!c)
		exit(2);
	for (size_t i = 0; i < size; i++)
		c[i] = (uint8_t)next(256);
	return c;
}

static hg_table tables[2]; // looked up and, where this processor can, computed

static void make_tables(void) {
	memset(tables, 0x5a, sizeof tables[0]);
	tables[0].computable = 0;
	hg_table *t = &tables[1];
	for (int c = 0; c < 3; c++) {
		t->std[c] = t->inverse[c] = 1;
		for (int v = 0; v < 256; v++) {
			const float single = (float)v / 255;
			const _Float16 half = (_Float16)single;
			memcpy(&t->f32[c][v], &single, sizeof single);
			memcpy(&t->f16[c][v], &half, sizeof half);
		}
	}
	t->computable = hg_table_computable(t);
}

// Values of any number of pixels, at any address.
static void table(void) {
	const size_t pixels = 1 + next(60), skew = next(4);
	const int layout = next(2) ? HG_FLOAT32 : HG_FLOAT16;
	uint8_t *rgb = noise(3 * pixels), *dst = noise(skew + 3 * pixels * (layout == HG_FLOAT32 ? 4 : 2));
	hg_table_write(&tables[next(2)], layout, rgb, pixels, pixels, dst + skew);
	free(dst);
	free(rgb);
}

static size_t row_bytes(size_t cols, const hg_png_layout *l) {
	return (cols * (size_t)(l->depth * l->channels) + 7) / 8;
}

// One picture of noise of any kind; its stream sound, too short or damaged.
static void png(void) {
	static const int depths[] = {1, 2, 4, 8, 16};
	static const int grid[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
	hg_png_layout l = {.width = 1 + next(40), .height = 1 + next(40), .channels = 1 + (int)next(4)};
	l.depth = depths[l.channels == 1 ? next(5) : 3 + next(2)];
	l.interlaced = (int)next(2);
	l.portable = (int)next(2);
	l.stepwise = !next(4);
	l.cols = l.width, l.rows = l.height;
	if (!next(3)) {
		l.cols = 1 + next((uint32_t)l.width), l.rows = 1 + next((uint32_t)l.height);
		l.left = next((uint32_t)(l.width - l.cols + 1)), l.top = next((uint32_t)(l.height - l.rows + 1));
	}
	uint8_t *rows = malloc(8 * SIDE * SIDE), *at = rows;
	if (!rows)
		exit(2);
	for (int i = l.interlaced ? 0 : 6; i < 7; i++) {
		const size_t x = l.interlaced ? grid[i][0] : 0, y = l.interlaced ? grid[i][1] : 0;
		const size_t dx = l.interlaced ? grid[i][2] : 1, dy = l.interlaced ? grid[i][3] : 1;
		if (l.cols <= x)
			continue;
		for (size_t r = y; r < l.rows; r += dy) {
			*at++ = (uint8_t)(next(200) ? next(5) : next(256));
			for (size_t n = row_bytes((l.cols - x + dx - 1) / dx, &l); n > 0; n--)
				*at++ = (uint8_t)(next(3) ? next(256) : 0);
		}
	}
	uLong size = (uLong)(at - rows);
	if (!next(5))
		size = next((uint32_t)size + 1);
	uLongf packed = compressBound(size);
	uint8_t *stream = malloc(packed);
	if (!stream || compress2(stream, &packed, rows, size, (int)next(10)) != Z_OK)
		exit(2);
	if (!next(3))
		scribble(stream, packed, 4);
	if (!next(5))
		packed = next((uint32_t)packed + 1);
	uint8_t *file = copy(stream, packed), *lut = noise(768);
	hg_png_span spans[4];
	const size_t count = 1 + next(4);
	for (size_t i = 0, from = 0; i < count; i++) {
		const size_t n = i == count - 1 ? packed - from : next((uint32_t)(packed - from) + 1);
		spans[i] = (hg_png_span){.offset = from, .size = n};
		from += n;
	}
	uint8_t *dst = noise(3 * l.width * l.height);
	size_t last;
	hg_png_read(file, spans, count, &l, lut, dst, &last);
	free(dst);
	free(lut);
	free(file);
	free(stream);
	free(rows);
}

static void unfilter(void) {
	const size_t bpp = 1 + next(8), size = bpp * (1 + next(60)), rows = 1 + next(HG_MOST_ROWS + 2), step = size + 1;
	const uint32_t kinds = 1 + next(5); // at 1 all rows have the same filter
	const int first = (int)next(5);
	uint8_t *src = noise(rows * step + HG_ROW_SLACK), *above = noise(size + HG_ROW_SLACK);
	uint8_t *fast[HG_MOST_ROWS];
	for (size_t y = 0; y < rows; y++)
		src[y * step] = (uint8_t)((first + next(kinds)) % 5);
	for (size_t k = 0; k < HG_MOST_ROWS; k++)
		fast[k] = noise(size + HG_ROW_SLACK);
	const size_t done = hg_unfilter(fast, src, above, rows, size, bpp);
	if (done < 1 || done > rows || (rows >= HG_MOST_ROWS && (bpp == 3 || bpp == 4) && done != HG_MOST_ROWS)) {
		fprintf(stderr, "%zu of %zu rows undone\n", done, rows);
		exit(1);
	}
	for (size_t y = 0; y < done; y++) {
		uint8_t *row = noise(size + HG_ROW_SLACK);
		hg_unfilter_portable(row, src + y * step + 1, above, size, bpp, src[y * step]);
		if (memcmp(fast[y], row, size) != 0) {
			fprintf(stderr, "the two ways to undo filter %d at %zu bytes a pixel differ, row %zu of %zu\n", src[y * step], bpp, y, done);
			exit(1);
		}
		free(above);
		above = row;
	}
	for (size_t k = 0; k < HG_MOST_ROWS; k++)
		free(fast[k]);
	free(above);
	free(src);
}

static void jpeg(const uint8_t *seed, size_t size) {
	uint8_t *file = copy(seed, size);
	size_t width = 1, height = 1;
	int components = 3;
	for (size_t i = 0; i + 10 < size; i++) // before the mutation: as Go has read it, mostly
		if (file[i] == 0xff && memchr("\xc0\xc1\xc2\xc9\xca", file[i + 1], 5)) {
			height = (size_t)file[i + 5] << 8 | file[i + 6], width = (size_t)file[i + 7] << 8 | file[i + 8];
			components = file[i + 9];
		}
	scribble(file, next(2) ? size : size < 700 ? size : 700, 10);
	if (!next(6))
		size = next((uint32_t)size + 1);
	if (width > 0 && height > 0 && width <= SIDE && height <= SIDE && (components == 1 || components == 3 || components == 4)) {
		uint8_t *exact = copy(file, size), *dst = noise(3 * width * height);
		hg_jpeg_read(exact, size, width, height, components, 1 + (int)next(100), dst);
		free(dst);
		free(exact);
	}
	free(file);
}

static void webp(const uint8_t *seed, size_t size) {
	uint8_t *file = copy(seed, size);
	scribble(file, next(2) ? size : size < 100 ? size : 100, 6);
	if (!next(6))
		size = next((uint32_t)size + 1);
	const size_t side = next(8) ? 224 : 1 + next(SIDE);
	uint8_t *exact = copy(file, size), *dst = noise(3 * side * side);
	hg_webp_read(exact, size, side, side, 1 + (int)next(5), dst);
	free(dst);
	free(exact);
	free(file);
}

int main(int argc, char **argv) {
	if (argc < 4)
		return 2;
	const time_t end = time(NULL) + atoi(argv[1]);
	state = 88172645463325252u + (uint64_t)atoll(argv[2]);
	make_tables();
	uint8_t *data[1000];
	size_t size[1000];
	int files = 0;
	for (int i = 3; i < argc && files < 1000; i++) {
		FILE *f = fopen(argv[i], "rb");
		if (!f)
			return 2;
		data[files] = malloc(1 << 20);
		if (!data[files])
			return 2;
		size[files] = fread(data[files], 1, 1 << 20, f);
		fclose(f);
		if (size[files] > 16 && size[files] < 1 << 20)
			files++;
		else
			free(data[files]);
	}
	long runs = 0;
	for (; time(NULL) < end; runs++) {
		const int i = (int)next((uint32_t)files);
		for (int k = 0; k < 4; k++) {
			png();
			unfilter();
			table();
		}
		if (memcmp(data[i], "RIFF", 4) == 0)
			webp(data[i], size[i]);
		else
			jpeg(data[i], size[i]);
	}
	for (int i = 0; i < files; i++)
		free(data[i]);
	printf("%ld\n", runs);
	return 0;
}
