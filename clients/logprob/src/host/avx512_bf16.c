/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of bf16 products for AVX512-BF16. */
#include <immintrin.h>

#include "host/bf16.h"

enum { ROWS = BP_BF16_ROWS, VECTORS = BP_BF16_COLUMNS / 16 };

/* The sums of a tile stay in 24 registers. */
static void multiply_tile(const uint32_t *a, const uint32_t *b, uint64_t pairs, uint32_t rows, uint32_t columns,
                          bool adds, float *c, int64_t stride)
{
    __m512 sums[ROWS][VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++)
            sums[i][j] = _mm512_setzero_ps();
    for (uint64_t p = 0; p < pairs; p++) {
        __m512bh vectors[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++)
            vectors[j] = (__m512bh)_mm512_loadu_si512(b + p * BP_BF16_COLUMNS + 16 * j);
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[p * ROWS + (uint64_t)i]);
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++)
                sums[i][j] = _mm512_dpbf16_ps(sums[i][j], x, vectors[j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
        if ((uint32_t)i >= rows)
            return;
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) {
            const uint32_t first = 16 * (uint32_t)j;
            const uint32_t count = columns <= first ? 0 : columns - first;
            const __mmask16 mask = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
            float *to = c + i * stride + first;
            if (adds)
                sums[i][j] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums[i][j]);
            _mm512_mask_storeu_ps(to, mask, sums[i][j]);
        }
    }
}

/* Of 32-bit words: of 4 x 4 within lanes of 128 bits, then of the lanes. */
static void transpose(const uint16_t *from, int64_t stride, uint32_t *to, uint64_t lanes)
{
    __m512i rows[16], words[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        rows[i] = _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512i low = _mm512_unpacklo_epi32(rows[i], rows[i + 1]),
                      high = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        const __m512i next_low = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
        const __m512i next_high = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
        words[i] = _mm512_unpacklo_epi64(low, next_low);
        words[i + 1] = _mm512_unpackhi_epi64(low, next_low);
        words[i + 2] = _mm512_unpacklo_epi64(high, next_high);
        words[i + 3] = _mm512_unpackhi_epi64(high, next_high);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* words i, i + 4, i + 8 and i + 12 of each row */
        const __m512i a = _mm512_shuffle_i32x4(words[i], words[i + 4], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(words[i], words[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(words[i + 8], words[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(words[i + 8], words[i + 12], 0xdd);
        _mm512_storeu_si512(to + (uint64_t)i * lanes, _mm512_shuffle_i32x4(a, c, 0x88));
        _mm512_storeu_si512(to + (uint64_t)(i + 4) * lanes, _mm512_shuffle_i32x4(b, d, 0x88));
        _mm512_storeu_si512(to + (uint64_t)(i + 8) * lanes, _mm512_shuffle_i32x4(a, c, 0xdd));
        _mm512_storeu_si512(to + (uint64_t)(i + 12) * lanes, _mm512_shuffle_i32x4(b, d, 0xdd));
    }
}

static void interleave(const uint16_t *first, const uint16_t *second, uint32_t *to)
{
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(first + 16 * j)));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(second + 16 * j)));
        _mm512_storeu_si512(to + 16 * j, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

const bp_bf16_kernels bp_bf16_avx512 = {"avx512_bf16", multiply_tile, transpose, interleave};
