// The steps of reading a PNG, each alone: what the whole is held against.
#ifndef HISTOGATE_FLOOR_H
#define HISTOGATE_FLOOR_H

#include <stddef.h>
#include <stdint.h>

// floor_inflate inflates one zlib stream of exactly bytes bytes; 0 if it fails.
int floor_inflate(const uint8_t *stream, size_t size, uint8_t *rows, size_t bytes);

// What a row of rgb has behind it, and rows at their end, for the unfilter.
enum { FLOOR_SLACK = 32 };

// floor_unfilter undoes the filters of height rows of width pixels in 8-bit RGB.
void floor_unfilter(const uint8_t *rows, size_t width, size_t height, uint8_t *rgb);

// floor_table writes width x height pixels as 3 planes of float32 by a table, a
// raster.Table.
void floor_table(const uint8_t *rgb, size_t width, size_t height, const void *table, float *planes);

#endif
