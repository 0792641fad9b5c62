// PNG's five filters, undone.
#ifndef HISTOGATE_UNFILTER_H
#define HISTOGATE_UNFILTER_H

#include <stddef.h>
#include <stdint.h>

// What hg_unfilter may write behind a row and read behind a filtered one.
enum { HG_ROW_SLACK = 16 };

// hg_unfilter undoes filter (0 to 4) for a row of size bytes, bpp of them to
// a pixel. prev is the row above, undone, or zeros. row, src and prev have
// HG_ROW_SLACK bytes more behind them, whose content does not matter; row is
// neither of the other two. The fast variant uses SSE2 where there is any.
void hg_unfilter(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, int filter);
void hg_unfilter_portable(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, int filter);

// hg_unfilter_pair undoes filter 4 in two rows that follow each other at once,
// in little more time than one takes: a pixel waits for the one on its left,
// and meanwhile the other row can go on. src has both rows, filtered, with one
// byte between them. It returns 0, and has done nothing, where it cannot.
int hg_unfilter_pair(uint8_t *row, uint8_t *below, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp);

#endif
