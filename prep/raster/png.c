#include "hg_png.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "unfilter.h"

// One of Adam7's passes, or the whole of a picture that is not interlaced.
typedef struct {
	size_t x, y, dx, dy; // where its first pixel lies and the way to the next
	size_t cols, rows;
	size_t row_bytes; // without the filter byte
} hg_pass;

typedef struct {
	hg_pass pass[7];
	int count;          // passes that are not empty
	size_t bytes, rows; // of all of them, with a filter byte before each row
	size_t row_bytes;   // of the longest row
} hg_passes;

static void set_passes(hg_passes *p, const hg_png_layout *png) {
	static const uint8_t adam7[7][4] = {
		{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2},
	};
	static const uint8_t whole[1][4] = {{0, 0, 1, 1}};
	const uint8_t(*grid)[4] = png->interlaced ? adam7 : whole;
	*p = (hg_passes){0};
	for (int i = 0; i < (png->interlaced ? 7 : 1); i++) {
		const size_t x = grid[i][0], y = grid[i][1], dx = grid[i][2], dy = grid[i][3];
		if (png->cols <= x || png->rows <= y)
			continue;
		hg_pass *q = &p->pass[p->count++];
		*q = (hg_pass){.x = x, .y = y, .dx = dx, .dy = dy};
		q->cols = (png->cols - x + dx - 1) / dx;
		q->rows = (png->rows - y + dy - 1) / dy;
		q->row_bytes = (q->cols * (size_t)(png->depth * png->channels) + 7) / 8;
		p->rows += q->rows;
		p->bytes += q->rows * (q->row_bytes + 1);
		if (q->row_bytes > p->row_bytes)
			p->row_bytes = q->row_bytes;
	}
}

// inflate_whole takes the common case at once: one sound stream that holds
// exactly the rows. It fails on everything else, of which nothing follows.
// What it takes zlib takes too, but for streams with the codes that deflate
// reserves (two lengths, two distances, and room for more than there are),
// which libdeflate reads and no encoder writes.
static int inflate_whole(const uint8_t *file, const hg_png_span *spans, size_t count, uint8_t *out, size_t bytes) {
	const uint8_t *in = file + spans[0].offset;
	uint8_t *joined = NULL;
	size_t size = 0, got = 0;
	for (size_t i = 0; i < count; i++)
		size += spans[i].size;
	if (count > 1) {
		in = joined = malloc(size + 1);
		if (!joined)
			return 0;
		for (size_t i = 0, at = 0; i < count; at += spans[i++].size)
			memcpy(joined + at, file + spans[i].offset, spans[i].size);
	}
	struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
	const int ok = d && libdeflate_zlib_decompress(d, in, size, out, bytes, &got) == LIBDEFLATE_SUCCESS && got == bytes;
	libdeflate_free_decompressor(d);
	free(joined);
	return ok;
}

// inflate_rows goes row by row, as the reader described in hg_png.h does, and
// counts the rows that it got.
static int inflate_rows(const uint8_t *file, const hg_png_span *spans, size_t count, const hg_passes *passes,
			uint8_t *out, size_t *rows, size_t *last) {
	enum { BLOCK = 65536 };
	z_stream z = {0};
	if (inflateInit(&z) != Z_OK)
		return HG_MEMORY;
	int pass = 0, status = HG_DAMAGED;
	size_t row = 0, have = 0; // in the pass; bytes of the row
	*rows = 0;
	for (size_t i = 0; i < count; i++) {
		for (size_t at = 0; at < spans[i].size; at += BLOCK) {
			const size_t left = spans[i].size - at;
			z.next_in = (Bytef *)(file + spans[i].offset + at);
			z.avail_in = (uInt)(left < BLOCK ? left : BLOCK);
			while (z.avail_in > 0) {
				const size_t want = passes->pass[pass].row_bytes + 1;
				z.next_out = out + have;
				z.avail_out = (uInt)(want - have);
				const int err = inflate(&z, Z_NO_FLUSH);
				if (err < 0)
					goto end;
				have = want - z.avail_out;
				if (have < want)
					break;
				if (out[0] > 4) // no such filter
					goto end;
				out += want;
				have = 0;
				++*rows;
				if (++row == passes->pass[pass].rows) {
					row = 0;
					pass++;
				}
				if (pass == passes->count || err == Z_STREAM_END) {
					*last = i;
					status = HG_OK;
					goto end;
				}
			}
		}
	}
end:
	inflateEnd(&z);
	return status;
}

// expand turns n pixels into R, G, B.
static void expand(uint8_t *rgb, const uint8_t *src, size_t n, const hg_png_layout *png, const uint8_t *lut) {
	const size_t sample = png->depth == 16 ? 2 : 1, pixel = sample * (size_t)png->channels;
	if (png->channels >= 3) {
		for (size_t i = 0; i < n; i++, rgb += 3, src += pixel) {
			rgb[0] = src[0];
			rgb[1] = src[sample];
			rgb[2] = src[2 * sample];
		}
	} else if (png->depth >= 8) {
		for (size_t i = 0; i < n; i++, rgb += 3, src += pixel)
			memcpy(rgb, lut + 3 * src[0], 3);
	} else {
		const size_t depth = (size_t)png->depth, mask = ((size_t)1 << depth) - 1;
		for (size_t i = 0; i < n; i++, rgb += 3) {
			const size_t bit = i * depth;
			memcpy(rgb, lut + 3 * ((src[bit / 8] >> (8 - depth - bit % 8)) & mask), 3);
		}
	}
}

// scatter puts a row of a pass onto the picture.
static void scatter(uint8_t *canvas, const uint8_t *rgb, const hg_png_layout *png, const hg_pass *p, size_t y) {
	uint8_t *at = canvas + 3 * ((png->top + p->y + y * p->dy) * png->width + png->left + p->x);
	for (size_t x = 0; x < p->cols; x++, at += 3 * p->dx)
		memcpy(at, rgb + 3 * x, 3);
}

// The memory of one call.
typedef struct {
	uint8_t *raw;    // all rows, filtered
	uint8_t *lines;  // the row above, and the rows that are undone at once
	uint8_t *rgb;    // a row as R, G, B
	uint8_t *canvas; // the picture, where it cannot be written row by row
} hg_buffers;

// draw undoes the filters of so many rows and puts them into dst, or onto the
// canvas first if there is one.
static int draw(const hg_buffers *m, size_t rows, const hg_passes *passes, const hg_png_layout *png, const uint8_t *lut,
		uint8_t *dst) {
	const size_t line = passes->row_bytes + HG_ROW_SLACK, bpp = ((size_t)(png->depth * png->channels) + 7) / 8;
	const int direct = png->depth == 8 && png->channels >= 3; // a row is R, G, B and maybe alpha already
	uint8_t *above = m->lines, *row[HG_MOST_ROWS];
	for (size_t k = 0; k < HG_MOST_ROWS; k++)
		row[k] = above + (k + 1) * line;
	const uint8_t *src = m->raw;
	for (int i = 0; i < passes->count; i++) {
		const hg_pass *p = &passes->pass[i];
		const size_t step = p->row_bytes + 1, stop = rows < p->rows ? rows : p->rows;
		rows -= stop;
		for (size_t y = 0; y < stop; y++)
			if (src[y * step] > 4) // no such filter
				return HG_DAMAGED;
		memset(above, 0, line);
		for (size_t y = 0, done; y < stop; y += done, src += done * step) {
			done = 1;
			if (png->portable)
				hg_unfilter_portable(row[0], src + 1, above, p->row_bytes, bpp, src[0]);
			else
				done = hg_unfilter(row, src, above, stop - y, p->row_bytes, bpp);
			for (size_t k = 0; k < done; k++) {
				if (!m->canvas && direct) {
					hg_sink_row(dst, png->width, y + k, row[k], bpp);
					continue;
				}
				expand(m->rgb, row[k], p->cols, png, lut);
				if (m->canvas)
					scatter(m->canvas, m->rgb, png, p, y + k);
				else
					hg_sink_row(dst, png->width, y + k, m->rgb, 3);
			}
			memcpy(above, row[done - 1], p->row_bytes);
		}
	}
	if (m->canvas)
		memcpy(dst, m->canvas, 3 * png->width * png->height);
	return HG_OK;
}

static int read_into(hg_buffers *m, const uint8_t *file, const hg_png_span *spans, size_t count, const hg_png_layout *png,
		     const uint8_t *lut, uint8_t *dst, size_t *last) {
	hg_passes passes;
	set_passes(&passes, png);
	m->raw = malloc(passes.bytes + HG_ROW_SLACK);
	m->lines = calloc(1 + HG_MOST_ROWS, passes.row_bytes + HG_ROW_SLACK);
	m->rgb = malloc(3 * png->width);
	if (!m->raw || !m->lines || !m->rgb)
		return HG_MEMORY;
	size_t rows = passes.rows;
	*last = count - 1;
	if (png->stepwise || !inflate_whole(file, spans, count, m->raw, passes.bytes)) {
		const int status = inflate_rows(file, spans, count, &passes, m->raw, &rows, last);
		if (status != HG_OK)
			return status;
	}
	memset(m->raw + passes.bytes, 0, HG_ROW_SLACK);
	if (png->interlaced || rows < passes.rows || png->cols < png->width || png->rows < png->height) {
		m->canvas = calloc(png->height, 3 * png->width);
		if (!m->canvas)
			return HG_MEMORY;
		for (size_t i = 0; png->channels < 3 && i < png->width * png->height; i++)
			memcpy(m->canvas + 3 * i, lut, 3);
	}
	return draw(m, rows, &passes, png, lut, dst);
}

int hg_png_read(const uint8_t *file, const hg_png_span *spans, size_t count, const hg_png_layout *png,
		const uint8_t *lut, uint8_t *dst, size_t *last) {
	hg_buffers m = {0};
	const int status = read_into(&m, file, spans, count, png, lut, dst, last);
	free(m.canvas);
	free(m.rgb);
	free(m.lines);
	free(m.raw);
	return status;
}
