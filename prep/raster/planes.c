#include "planes.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

// shuffle writes all pixels but the last few and returns how many it did. It loads 16
// bytes for four pixels, and stops where they would end behind the last.
__attribute__((target("ssse3"))) static size_t shuffle(const uint8_t *rgb, size_t pixels, uint8_t *dst) {
	// The reds of four pixels, then the greens, then the blues.
	const __m128i apart = _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1);
	size_t x = 0;
	for (; x + 18 <= pixels; x += 16, rgb += 16 * 3) {
		__m128i four[4];
		for (size_t i = 0; i < 4; i++)
			four[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(rgb + i * 4 * 3)), apart);
		const __m128i left = _mm_unpacklo_epi32(four[0], four[1]), right = _mm_unpacklo_epi32(four[2], four[3]);
		const __m128i blue_left = _mm_unpackhi_epi32(four[0], four[1]), blue_right = _mm_unpackhi_epi32(four[2], four[3]);
		_mm_storeu_si128((__m128i *)(dst + x), _mm_unpacklo_epi64(left, right));
		_mm_storeu_si128((__m128i *)(dst + pixels + x), _mm_unpackhi_epi64(left, right));
		_mm_storeu_si128((__m128i *)(dst + 2 * pixels + x), _mm_unpacklo_epi64(blue_left, blue_right));
	}
	return x;
}

static size_t quick(const uint8_t *rgb, size_t pixels, uint8_t *dst) {
	return __builtin_cpu_supports("ssse3") ? shuffle(rgb, pixels, dst) : 0;
}
#else
static size_t quick(const uint8_t *rgb, size_t pixels, uint8_t *dst) {
	(void)rgb, (void)pixels, (void)dst;
	return 0;
}
#endif

void hg_planes(const uint8_t *rgb, size_t pixels, uint8_t *dst) {
	for (size_t x = quick(rgb, pixels, dst); x < pixels; x++)
		for (size_t c = 0; c < 3; c++)
			dst[c * pixels + x] = rgb[3 * x + c];
}
