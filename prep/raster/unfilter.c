#include "unfilter.h"

#include <string.h>

static inline uint8_t paeth(int a, int b, int c) {
	const int pa = b > c ? b - c : c - b, pb = a > c ? a - c : c - a;
	const int s = a + b - 2 * c, pc = s < 0 ? -s : s;
	if (pa <= pb && pa <= pc)
		return (uint8_t)a;
	return (uint8_t)(pb <= pc ? b : c);
}

void hg_unfilter_portable(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, int filter) {
	const size_t first = size < bpp ? size : bpp; // the bytes of the leftmost pixel
	switch (filter) {
	case 1:
		memcpy(row, src, first);
		for (size_t i = first; i < size; i++)
			row[i] = (uint8_t)(src[i] + row[i - bpp]);
		return;
	case 2:
		for (size_t i = 0; i < size; i++)
			row[i] = (uint8_t)(src[i] + prev[i]);
		return;
	case 3:
		for (size_t i = 0; i < first; i++)
			row[i] = (uint8_t)(src[i] + prev[i] / 2);
		for (size_t i = first; i < size; i++)
			row[i] = (uint8_t)(src[i] + (row[i - bpp] + prev[i]) / 2);
		return;
	case 4:
		for (size_t i = 0; i < first; i++)
			row[i] = (uint8_t)(src[i] + prev[i]);
		for (size_t i = first; i < size; i++)
			row[i] = (uint8_t)(src[i] + paeth(row[i - bpp], prev[i], prev[i - bpp]));
		return;
	default:
		memcpy(row, src, size);
	}
}

#ifdef __SSE2__
#include <emmintrin.h>

// A pixel is moved as four bytes also where it has three: the fourth belongs
// to the next pixel, which is written after it.
static inline __m128i load4(const uint8_t *p) {
	int v;
	memcpy(&v, p, 4);
	return _mm_cvtsi32_si128(v);
}

static inline void store4(uint8_t *p, __m128i v) {
	const int x = _mm_cvtsi128_si32(v);
	memcpy(p, &x, 4);
}

// Rows that follow each other are undone together, in each a pixel further left
// than in the one above: what is above a row's next pixel has just been made. That
// takes little more time than one row does, since a pixel waits for the one on its
// left, and meanwhile the other rows go on. A register has four rows, four bytes
// of each; of a mask the bytes of a row are all ones where it is the row's filter.
enum { FILTERS = 5, REGISTERS = HG_MOST_ROWS / 4 };

typedef struct {
	__m128i a[REGISTERS], c[REGISTERS]; // on the left of the next pixels; above that
	__m128i is[REGISTERS][FILTERS];
} hg_front;

// predict is what each row's own filter adds to the difference.
//
// Paeth: of a and b, c is held against the smaller and the larger one. Below both
// the larger one is nearest to a + b - c, above both the smaller one. In between
// that is the end from which c is more than twice as far as from the other, and c
// itself if there is none. Distances the other way count as zero, which makes one
// rule of the three.
static inline __m128i predict(__m128i a, __m128i b, __m128i c, const __m128i *is, int only_paeth) {
	const __m128i zero = _mm_setzero_si128();
	__m128i low = _mm_min_epu8(a, b), high = _mm_max_epu8(a, b);
	const __m128i over = _mm_subs_epu8(c, low), under = _mm_subs_epu8(high, c);
	const __m128i take_low = _mm_cmpeq_epi8(_mm_subs_epu8(_mm_adds_epu8(under, under), over), zero);
	const __m128i take_high = _mm_cmpeq_epi8(_mm_subs_epu8(_mm_adds_epu8(over, over), under), zero);
	__m128i other = zero;
	if (!only_paeth) {
		// The instruction rounds up where the filter rounds down.
		const __m128i odd = _mm_and_si128(_mm_xor_si128(a, b), _mm_set1_epi8(1));
		const __m128i average = _mm_sub_epi8(_mm_avg_epu8(a, b), odd);
		other = _mm_or_si128(_mm_and_si128(is[1], a), _mm_or_si128(_mm_and_si128(is[2], b), _mm_and_si128(is[3], average)));
		low = _mm_and_si128(low, is[4]);
		high = _mm_and_si128(high, is[4]);
		c = _mm_and_si128(c, is[4]);
	}
	const __m128i end = _mm_or_si128(_mm_and_si128(take_low, low), _mm_and_si128(take_high, high));
	return _mm_or_si128(_mm_or_si128(end, other), _mm_andnot_si128(_mm_or_si128(take_low, take_high), c));
}

// step undoes a pixel of each of count rows, that of row 0 at byte i. Rows that
// begin later, of which there are some if starting is set, stay zero.
static inline void step(hg_front *f, uint8_t *const *row, const uint8_t *src, const uint8_t *prev, size_t size,
			size_t bpp, size_t count, size_t i, int starting, int only_paeth) {
	__m128i above = load4(prev + i);
	for (size_t r = 0; 4 * r < count; r++) {
		__m128i x[4];
		for (size_t k = 0; k < 4; k++) {
			const size_t y = 4 * r + k;
			x[k] = y >= count || (starting && i < y * bpp) ? _mm_setzero_si128() : load4(src + y * (size + 1) + 1 + i - y * bpp);
		}
		const __m128i differences = _mm_unpacklo_epi64(_mm_unpacklo_epi32(x[0], x[1]), _mm_unpacklo_epi32(x[2], x[3]));
		const __m128i b = _mm_or_si128(above, _mm_slli_si128(f->a[r], 4));
		above = _mm_srli_si128(f->a[r], 12);
		f->a[r] = _mm_add_epi8(differences, predict(f->a[r], b, f->c[r], f->is[r], only_paeth));
		f->c[r] = b;
		__m128i made = f->a[r];
		for (size_t y = 4 * r; y < count && y < 4 * r + 4; y++, made = _mm_srli_si128(made, 4))
			if (!starting || i >= y * bpp)
				store4(row[y] + i - y * bpp, made);
	}
}

// Where row 0 has ended it goes on into the slack, until the last row has.
static inline void front(hg_front *f, uint8_t *const *row, const uint8_t *src, const uint8_t *prev, size_t size,
			 size_t bpp, size_t count, int only_paeth) {
	const size_t lag = (count - 1) * bpp;
	for (size_t i = 0; i < lag; i += bpp)
		step(f, row, src, prev, size, bpp, count, i, 1, only_paeth);
	for (size_t i = lag; i < size + lag; i += bpp)
		step(f, row, src, prev, size, bpp, count, i, 0, only_paeth);
}

// unfilter compiles a body for each width of a pixel, for a single row and for as
// many as there may be, and for these one more where all have the filter that
// encoders choose for most.
static inline void unfilter(uint8_t *const *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, size_t count) {
	hg_front f;
	memset(&f, 0, sizeof f);
	int only_paeth = 1;
	for (size_t y = 0; y < count; y++) {
		const int filter = src[y * (size + 1)];
		memset((uint8_t *)&f.is[y / 4][filter] + 4 * (y % 4), 0xff, 4);
		only_paeth &= filter == 4;
	}
	if (count == 1)
		front(&f, row, src, prev, size, bpp, 1, 0);
	else if (only_paeth)
		front(&f, row, src, prev, size, bpp, HG_MOST_ROWS, 1);
	else
		front(&f, row, src, prev, size, bpp, HG_MOST_ROWS, 0);
}

size_t hg_unfilter(uint8_t *const *row, const uint8_t *src, const uint8_t *prev, size_t rows, size_t size, size_t bpp) {
	const size_t count = rows < HG_MOST_ROWS ? 1 : HG_MOST_ROWS;
	if (bpp == 3) {
		unfilter(row, src, prev, size, 3, count);
		return count;
	}
	if (bpp == 4) {
		unfilter(row, src, prev, size, 4, count);
		return count;
	}
	hg_unfilter_portable(row[0], src + 1, prev, size, bpp, src[0]);
	return 1;
}
#else
size_t hg_unfilter(uint8_t *const *row, const uint8_t *src, const uint8_t *prev, size_t rows, size_t size, size_t bpp) {
	(void)rows;
	hg_unfilter_portable(row[0], src + 1, prev, size, bpp, src[0]);
	return 1;
}
#endif
