#include "table.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define HG_COMPUTE __attribute__((target("avx2,fma,f16c")))

// quotient is x / d for eight x, of which r is the reciprocal, rounded: a first
// quotient is put right by its remainder, which an FMA computes without rounding
// (Markstein, IBM Journal of Research and Development 34, 1990). It is the
// rounded quotient but for ranges that hg_table_computable rules out.
HG_COMPUTE static inline __m256 quotient(__m256 x, __m256 d, __m256 r) {
	const __m256 q = _mm256_mul_ps(x, r);
	return _mm256_fmadd_ps(_mm256_fnmadd_ps(q, d, x), r, q);
}

// compute writes the values of all pixels but the last few and returns how many it
// did. It loads 16 bytes for four pixels, and stops where they would end behind the
// last.
HG_COMPUTE static size_t compute(const hg_table *t, int layout, const uint8_t *rgb, size_t pixels, size_t plane, void *dst) {
	// The reds of four pixels, then the greens, then the blues.
	const __m128i apart = _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1);
	const __m256 most = _mm256_set1_ps(255), least = _mm256_set1_ps(1.0f / 255);
	size_t x = 0;
	for (; x + 10 <= pixels; x += 8, rgb += 8 * 3) {
		const __m128i left = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)rgb), apart);
		const __m128i right = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(rgb + 4 * 3)), apart);
		const __m128i red_green = _mm_unpacklo_epi32(left, right);
		const __m128i of[3] = {red_green, _mm_srli_si128(red_green, 8), _mm_unpackhi_epi32(left, right)};
		for (size_t c = 0; c < 3; c++) {
			const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(of[c]));
			const __m256 centred = _mm256_sub_ps(quotient(v, most, least), _mm256_set1_ps(t->mean[c]));
			const __m256 value = quotient(centred, _mm256_set1_ps(t->std[c]), _mm256_set1_ps(t->inverse[c]));
			const size_t to = c * plane + x;
			if (layout == HG_FLOAT32)
				_mm256_storeu_ps((float *)((uint8_t *)dst + 4 * to), value);
			else
				_mm_storeu_si128((__m128i *)((uint8_t *)dst + 2 * to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
		}
	}
	return x;
}

int hg_table_computable(const hg_table *t) {
	enum { SAMPLES = 256, PIXELS = SAMPLES + 16 }; // the last pixels are looked up
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
		return 0;
	uint8_t rgb[3 * PIXELS];
	uint32_t f32[3 * PIXELS];
	uint16_t f16[3 * PIXELS];
	for (size_t i = 0; i < sizeof rgb; i++)
		rgb[i] = (uint8_t)(i / 3);
	if (compute(t, HG_FLOAT32, rgb, PIXELS, PIXELS, f32) < SAMPLES || compute(t, HG_FLOAT16, rgb, PIXELS, PIXELS, f16) < SAMPLES)
		return 0;
	for (size_t c = 0; c < 3; c++)
		if (memcmp(f32 + c * PIXELS, t->f32[c], sizeof t->f32[c]) != 0 || memcmp(f16 + c * PIXELS, t->f16[c], sizeof t->f16[c]) != 0)
			return 0;
	return 1;
}
#else
static size_t compute(const hg_table *t, int layout, const uint8_t *rgb, size_t pixels, size_t plane, void *dst) {
	(void)t, (void)layout, (void)rgb, (void)pixels, (void)plane, (void)dst;
	return 0;
}

int hg_table_computable(const hg_table *t) {
	(void)t;
	return 0;
}
#endif

void hg_table_write(const hg_table *t, int layout, const uint8_t *rgb, size_t pixels, size_t plane, void *dst) {
	size_t x = t->computable ? compute(t, layout, rgb, pixels, plane, dst) : 0;
	rgb += 3 * x;
	uint8_t *const to = dst;
	for (; x < pixels; x++, rgb += 3)
		for (size_t c = 0; c < 3; c++) {
			if (layout == HG_FLOAT32)
				memcpy(to + 4 * (c * plane + x), &t->f32[c][rgb[c]], 4);
			else
				memcpy(to + 2 * (c * plane + x), &t->f16[c][rgb[c]], 2);
		}
}
