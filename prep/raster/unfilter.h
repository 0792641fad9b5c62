// PNG's five filters, undone.
#ifndef HISTOGATE_UNFILTER_H
#define HISTOGATE_UNFILTER_H

#include <stddef.h>
#include <stdint.h>

// HG_MOST_ROWS is how many rows are undone at once. HG_ROW_SLACK is what
// hg_unfilter may write behind a row and read behind the filtered ones.
enum { HG_MOST_ROWS = 8, HG_ROW_SLACK = 4 * HG_MOST_ROWS };

// hg_unfilter undoes the filters of one row or of HG_MOST_ROWS of the rows there
// are, and returns how many it did. A row has size bytes, bpp of them to a pixel.
// src has the filtered rows, each with its filter (0 to 4) before it. row says
// where the rows go, HG_MOST_ROWS of them; prev is the row above the first,
// undone, or zeros. All have HG_ROW_SLACK bytes more behind them, whose content
// does not matter, and none of row is prev. It uses SSE2 where there is any.
size_t hg_unfilter(uint8_t *const *row, const uint8_t *src, const uint8_t *prev, size_t rows, size_t size, size_t bpp);

// hg_unfilter_portable undoes filter for one row; src is behind the filter's byte.
void hg_unfilter_portable(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, int filter);

#endif
