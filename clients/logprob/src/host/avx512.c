/* SPDX-License-Identifier: Apache-2.0 */
/* The vector kernels for AVX-512 F, BW, VL and DQ: vectors of sixteen fp32. */
#include <immintrin.h>

#include "host/kernels.h"

#define WIDTH 16
#define INLINE static inline __attribute__((always_inline))

typedef __m512 vec;

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */

INLINE vec v_set(float value)
{
    return _mm512_set1_ps(value);
}

INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vec v_fms(vec a, vec b, vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}

/* The larger; `b` if one is NaN. */
INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

/* The smaller; `b` if one is NaN. */
INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

INLINE vec v_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a 2^n for integer n; 0 where `t` is below `least` (NaN is not). */
INLINE vec v_scale(vec a, vec n, vec t, vec min)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, min, _CMP_NLT_UQ), a, n);
}

INLINE float v_max_of(vec a)
{
    return _mm512_reduce_max_ps(a);
}

INLINE float v_sum_of(vec a)
{
    return _mm512_reduce_add_ps(a);
}

/* ---- loads --------------------------------------------------------------------------------------------------------- */

INLINE vec v_of_bf16(__m256i values)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

INLINE vec v_of_16(int dtype, __m256i values)
{
    return dtype == BP_ROW_BF16 ? v_of_bf16(values) : _mm512_cvtph_ps(values);
}

INLINE vec v_load(int dtype, const void *x)
{
    return dtype == BP_ROW_FP32 ? _mm512_loadu_ps(x) : v_of_16(dtype, _mm256_loadu_si256(x));
}

/* The elements of two vectors, in a permuted order. */
INLINE void v_load_two(int dtype, const void *x, vec *a, vec *b)
{
    if (dtype == BP_ROW_BF16) {
        __m512i both = _mm512_loadu_si512(x);
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        *b = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
    } else {
        *a = v_load(dtype, x);
        *b = v_load(dtype, (const char *)x + WIDTH * (dtype == BP_ROW_FP32 ? 4 : 2));
    }
}

/* `count` elements, at most a vector, padded with -inf; reads nothing beyond them. */
INLINE vec v_load_part(int dtype, const void *x, unsigned count)
{
    __mmask16 part = (__mmask16)((1u << count) - 1);
    if (dtype == BP_ROW_FP32)
        return _mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), part, x);
    __m256i lowest = _mm256_set1_epi16((short)(dtype == BP_ROW_BF16 ? 0xff80 : 0xfc00));
    return v_of_16(dtype, _mm256_mask_loadu_epi16(lowest, part, x));
}

/* ---- stores -------------------------------------------------------------------------------------------------------- */

INLINE __m256i v_to_bf16(vec a)
{
    __m512i bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

INLINE __m256i v_to_16(int dtype, vec a)
{
    return dtype == BP_ROW_BF16 ? v_to_bf16(a) : _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE void v_store(int dtype, void *out, vec a)
{
    if (dtype == BP_ROW_FP32)
        _mm512_storeu_ps(out, a);
    else
        _mm256_storeu_si256(out, v_to_16(dtype, a));
}

/* Non-temporal store to an address aligned to the vector size. */
INLINE void v_stream(int dtype, void *out, vec a)
{
    if (dtype == BP_ROW_FP32)
        _mm512_stream_ps(out, a);
    else
        _mm256_stream_si256(out, v_to_16(dtype, a));
}

INLINE void v_end_stream(void)
{
    _mm_sfence();
}

INLINE void v_store_part(int dtype, void *out, vec a, unsigned count)
{
    __mmask16 part = (__mmask16)((1u << count) - 1);
    if (dtype == BP_ROW_FP32)
        _mm512_mask_storeu_ps(out, part, a);
    else
        _mm256_mask_storeu_epi16(out, part, v_to_16(dtype, a));
}

/* ---- halves: thirty-two 16-bit numbers, their bits as signed integers ------------------------------------------------- */

typedef __m512i halves;

INLINE halves h_set(int16_t value)
{
    return _mm512_set1_epi16(value);
}

INLINE halves h_load(const void *x)
{
    return _mm512_loadu_si512(x);
}

/* `count` numbers, padded with `rest`; reads nothing beyond them. */
INLINE halves h_load_part(const void *x, unsigned count, int16_t rest)
{
    __mmask32 part = count < 2 * WIDTH ? (1u << count) - 1 : UINT32_MAX;
    return _mm512_mask_loadu_epi16(_mm512_set1_epi16(rest), part, x);
}

INLINE halves h_max(halves a, halves b)
{
    return _mm512_max_epi16(a, b);
}

INLINE halves h_min(halves a, halves b)
{
    return _mm512_min_epi16(a, b);
}

/* Eight of which one is the extreme. */
INLINE void h_eight(halves a, bool largest, int16_t *values)
{
    __m256i low = _mm512_castsi512_si256(a), high = _mm512_extracti64x4_epi64(a, 1);
    __m256i b = largest ? _mm256_max_epi16(low, high) : _mm256_min_epi16(low, high);
    __m128i c = _mm256_castsi256_si128(b), d = _mm256_extracti128_si256(b, 1);
    _mm_storeu_si128((void *)values, largest ? _mm_max_epi16(c, d) : _mm_min_epi16(c, d));
}

#include "host/vector_kernels.h" /* needs the vector functions above */

const bp_host_kernels bp_kernels_avx512 = KERNELS("avx512", BP_KERNELS_AVX512);
