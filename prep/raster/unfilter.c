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

static inline void sub4(uint8_t *row, const uint8_t *src, size_t size, size_t bpp) {
	__m128i a = _mm_setzero_si128();
	for (size_t i = 0; i < size; i += bpp) {
		a = _mm_add_epi8(a, load4(src + i));
		store4(row + i, a);
	}
}

static inline void average4(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp) {
	const __m128i one = _mm_set1_epi8(1);
	__m128i a = _mm_setzero_si128();
	for (size_t i = 0; i < size; i += bpp) {
		const __m128i b = load4(prev + i);
		// The instruction rounds up where the filter rounds down.
		const __m128i odd = _mm_and_si128(_mm_xor_si128(a, b), one);
		a = _mm_add_epi8(load4(src + i), _mm_sub_epi8(_mm_avg_epu8(a, b), odd));
		store4(row + i, a);
	}
}

static inline __m128i abs16(__m128i v) {
	return _mm_max_epi16(v, _mm_sub_epi16(_mm_setzero_si128(), v));
}

static inline __m128i choose(__m128i mask, __m128i yes, __m128i no) {
	return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

// paeth16 predicts a pixel, or two: 16 bits a sample, the upper 8 zero.
static inline __m128i paeth16(__m128i a, __m128i b, __m128i c) {
	const __m128i da = _mm_sub_epi16(b, c), db = _mm_sub_epi16(a, c);
	const __m128i pa = abs16(da), pb = abs16(db), pc = abs16(_mm_add_epi16(da, db));
	const __m128i least = _mm_min_epi16(pc, _mm_min_epi16(pa, pb));
	return choose(_mm_cmpeq_epi16(pa, least), a, choose(_mm_cmpeq_epi16(pb, least), b, c));
}

static inline void paeth4(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp) {
	const __m128i zero = _mm_setzero_si128();
	__m128i a = zero, c = zero;
	for (size_t i = 0; i < size; i += bpp) {
		const __m128i b = _mm_unpacklo_epi8(load4(prev + i), zero);
		const __m128i x = _mm_unpacklo_epi8(load4(src + i), zero);
		a = _mm_add_epi8(x, paeth16(a, b, c)); // bytewise: no carry into the upper half
		c = b;
		store4(row + i, _mm_packus_epi16(a, a));
	}
}

// In the lower half of each register is the upper row, in the upper half the
// row below, one pixel behind: what is above its pixel has just been made.
static inline void paeth_pair(uint8_t *row, uint8_t *below, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp) {
	const __m128i zero = _mm_setzero_si128();
	const uint8_t *src_below = src + size + 1;
	// The first pixel of the upper row alone, with zeros on its left.
	__m128i c = _mm_unpacklo_epi8(load4(prev), zero);
	__m128i a = _mm_add_epi8(_mm_unpacklo_epi8(load4(src), zero), c);
	a = _mm_move_epi64(a);
	c = _mm_move_epi64(c);
	store4(row, _mm_packus_epi16(a, a));
	size_t i = bpp;
	for (; i < size; i += bpp) {
		const __m128i b = _mm_unpacklo_epi64(_mm_unpacklo_epi8(load4(prev + i), zero), a);
		const __m128i x = _mm_unpacklo_epi8(_mm_unpacklo_epi32(load4(src + i), load4(src_below + i - bpp)), zero);
		a = _mm_add_epi8(x, paeth16(a, b, c));
		c = b;
		const __m128i bytes = _mm_packus_epi16(a, a);
		store4(row + i, bytes);
		store4(below + i - bpp, _mm_srli_epi64(bytes, 32));
	}
	// The last pixel of the row below alone.
	const __m128i b = _mm_unpacklo_epi64(zero, a);
	const __m128i x = _mm_unpacklo_epi64(zero, _mm_unpacklo_epi8(load4(src_below + i - bpp), zero));
	a = _mm_add_epi8(x, paeth16(a, b, c));
	store4(below + i - bpp, _mm_srli_epi64(_mm_packus_epi16(a, a), 32));
}

int hg_unfilter_pair(uint8_t *row, uint8_t *below, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp) {
	if (bpp == 3)
		paeth_pair(row, below, src, prev, size, 3);
	else if (bpp == 4)
		paeth_pair(row, below, src, prev, size, 4);
	else
		return 0;
	return 1;
}

void hg_unfilter(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, int filter) {
	// One body for both widths, each compiled with its width known.
	if (bpp == 3) {
		switch (filter) {
		case 1: sub4(row, src, size, 3); return;
		case 3: average4(row, src, prev, size, 3); return;
		case 4: paeth4(row, src, prev, size, 3); return;
		}
	} else if (bpp == 4) {
		switch (filter) {
		case 1: sub4(row, src, size, 4); return;
		case 3: average4(row, src, prev, size, 4); return;
		case 4: paeth4(row, src, prev, size, 4); return;
		}
	}
	hg_unfilter_portable(row, src, prev, size, bpp, filter);
}
#else
int hg_unfilter_pair(uint8_t *row, uint8_t *below, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp) {
	(void)row, (void)below, (void)src, (void)prev, (void)size, (void)bpp;
	return 0;
}

void hg_unfilter(uint8_t *row, const uint8_t *src, const uint8_t *prev, size_t size, size_t bpp, int filter) {
	hg_unfilter_portable(row, src, prev, size, bpp, filter);
}
#endif
