/* SPDX-License-Identifier: Apache-2.0 */
/* The vector kernels for AVX2, FMA and F16C: vectors of eight fp32. */
#include <immintrin.h>

#include "host/kernels.h"

#define WIDTH 8
#define INLINE static inline __attribute__((always_inline))

typedef __m256 vec;

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */

INLINE vec v_set(float value)
{
    return _mm256_set1_ps(value);
}

INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vec v_fms(vec a, vec b, vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}

/* The larger; `b` if one is NaN. */
INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

/* The smaller; `b` if one is NaN. */
INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

INLINE vec v_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a 2^n for integer n, through the exponent, so the result must be normal; 0 where `t` is below `least` (NaN is not). */
INLINE vec v_scale(vec a, vec n, vec t, vec min)
{
    __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power));
    return _mm256_and_ps(_mm256_cmp_ps(t, min, _CMP_NLT_UQ), scaled);
}

INLINE float v_max_of(vec a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

INLINE float v_sum_of(vec a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* ---- loads --------------------------------------------------------------------------------------------------------- */

INLINE vec v_of_bf16(__m128i values)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
}

INLINE vec v_of_16(int dtype, __m128i values)
{
    return dtype == BP_ROW_BF16 ? v_of_bf16(values) : _mm256_cvtph_ps(values);
}

INLINE vec v_load(int dtype, const void *x)
{
    return dtype == BP_ROW_FP32 ? _mm256_loadu_ps(x) : v_of_16(dtype, _mm_loadu_si128(x));
}

/* The elements of two vectors, in a permuted order. */
INLINE void v_load_two(int dtype, const void *x, vec *a, vec *b)
{
    if (dtype == BP_ROW_BF16) {
        __m256i both = _mm256_loadu_si256(x);
        *a = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        *b = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)));
    } else {
        *a = v_load(dtype, x);
        *b = v_load(dtype, (const char *)x + WIDTH * (dtype == BP_ROW_FP32 ? 4 : 2));
    }
}

/* ---- stores -------------------------------------------------------------------------------------------------------- */

INLINE __m128i v_to_bf16(vec a)
{
    __m256i bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    rounded = _mm256_srli_epi32(rounded, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

INLINE __m128i v_to_16(int dtype, vec a)
{
    return dtype == BP_ROW_BF16 ? v_to_bf16(a) : _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE void v_store(int dtype, void *out, vec a)
{
    if (dtype == BP_ROW_FP32)
        _mm256_storeu_ps(out, a);
    else
        _mm_storeu_si128(out, v_to_16(dtype, a));
}

/* Non-temporal store to an address aligned to the vector size. */
INLINE void v_stream(int dtype, void *out, vec a)
{
    if (dtype == BP_ROW_FP32)
        _mm256_stream_ps(out, a);
    else
        _mm_stream_si128(out, v_to_16(dtype, a));
}

INLINE void v_end_stream(void)
{
    _mm_sfence();
}

/* ---- halves: sixteen 16-bit numbers, their bits as signed integers --------------------------------------------------- */

typedef __m256i halves;

INLINE halves h_set(int16_t value)
{
    return _mm256_set1_epi16(value);
}

INLINE halves h_load(const void *x)
{
    return _mm256_loadu_si256(x);
}

INLINE halves h_max(halves a, halves b)
{
    return _mm256_max_epi16(a, b);
}

INLINE halves h_min(halves a, halves b)
{
    return _mm256_min_epi16(a, b);
}

/* Eight of which one is the extreme. */
INLINE void h_eight(halves a, bool largest, int16_t *values)
{
    __m128i b = _mm256_castsi256_si128(a), c = _mm256_extracti128_si256(a, 1);
    _mm_storeu_si128((void *)values, largest ? _mm_max_epi16(b, c) : _mm_min_epi16(b, c));
}

#include "host/vector_parts.h" /* needs the vector functions above */

#include "host/vector_kernels.h"

const bp_host_kernels bp_kernels_avx2 = KERNELS("avx2", BP_KERNELS_AVX2);
