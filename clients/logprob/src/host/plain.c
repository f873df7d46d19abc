/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels in portable C with libm, the reference of the others and the fallback; and the choice of kernels. */
#include <bucketpool/logprob.h>

#include <math.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "host/kernels.h"

static void tile(int dtype, const void *x, uint32_t columns, float scale, int level, bp_partial *partial)
{
    float max = -INFINITY;
    double total = 0;
    for (uint32_t i = 0; i < columns; i++) { /* NaN propagates through the sums */
        float value = bp_row_value(dtype, x, i);
        max = value > max ? value : max;
        total += value;
    }
    float from = max == -INFINITY ? 0 : max;
    double sum = 0, weighted = 0;
    for (uint32_t i = 0; i < columns; i++) {
        float d = (bp_row_value(dtype, x, i) - from) * scale, e = expf(d);
        sum += e;
        if (level >= BP_SUMS_WEIGHTED && e != 0)
            weighted += e * d;
    }
    *partial = (bp_partial){max, (float)sum, (float)weighted, level >= BP_SUMS_TOTAL ? (float)total : 0};
}

double bp_gradient_at_target(const bp_row_gradient *row, float x, double g)
{
    double d = ((double)x - row->max) * row->scale, z = d - row->log_sum, p = exp(z);
    double of_p = row->factor + g + (row->entropy_grad != 0 && p != 0 ? row->entropy_grad * (row->energy - d) : 0);
    return row->scale * (p * of_p - g * expm1(z) + row->everywhere);
}

static void gradient(int dtype, int out_dtype, const void *x, uint64_t begin, uint64_t end, const bp_row_gradient *row,
                     void *out)
{
    for (uint64_t i = begin; i < end; i++) {
        float value = bp_row_value(dtype, x, i), d = (value - row->max) * row->scale, p = expf(d - row->log_sum);
        float inner = row->entropy_grad != 0 && p != 0 ? row->entropy_grad * (row->energy - d) : 0;
        bp_row_set(out_dtype, out, i, row->scale * (p * (inner + (float)row->factor) + row->everywhere));
    }
}

static void widen_row(int dtype, const void *x, uint32_t columns, int rounding, float cap, float *to)
{
    for (uint32_t i = 0; i < columns; i++) {
        float value = bp_row_value(dtype, x, i), rounded;
        bp_row_set(rounding, &rounded, 0, value);
        value = bp_row_value(rounding, &rounded, 0);
        to[i] = cap != 0 ? cap * tanhf(value / cap) : value;
    }
}

static void narrow_row(int out_dtype, const float *gradient, const float *x, uint32_t columns, float cap, void *to)
{
    for (uint32_t i = 0; i < columns; i++) {
        float u = cap != 0 ? x[i] / cap : 0;
        bp_row_set(out_dtype, to, i, gradient[i] * ((1 - u) * (1 + u)));
    }
}

/* Logarithms of p, q and m relative to each other. */
typedef struct terms {
    double p, q;
    double p_to_m, q_to_m; /* log(p / m), log(q / m) */
} terms;

static terms terms_of(const bp_row_divergence *row, float x, float reference)
{
    double log_p = ((double)x - row->max) * row->scale - row->log_sum;
    double log_q = ((double)reference - row->reference_max) * row->scale - row->reference_log_sum;
    double p = exp(log_p), q = exp(log_q), ratio = log_q - log_p;
    if (row->beta == 0)
        return (terms){p, q, 0, ratio};
    if (row->beta == 1)
        return (terms){p, q, -ratio, 0};
    /* relative to the larger of p and q, whose share in m is the first factor */
    double share = ratio > 0 ? 1 - row->beta : row->beta;
    double log_m = log1p(share * expm1(-fabs(ratio)));
    return (terms){p, q, -fmax(ratio, 0) - log_m, fmin(ratio, 0) - log_m};
}

static void plain_divergence(const float *x, const float *reference, uint32_t columns, const bp_row_divergence *row,
                             bp_divergence_sums *sums)
{
    double of_p = 0, of_q = 0;
    for (uint32_t i = 0; i < columns; i++) {
        terms t = terms_of(row, x[i], reference[i]);
        of_p += t.p != 0 ? t.p * t.p_to_m : 0;
        of_q += t.q != 0 ? t.q * t.q_to_m : 0;
    }
    *sums =
        (bp_divergence_sums){.reference = row->beta == 1 ? 0 : (float)of_q, .logits = row->beta == 0 ? 0 : (float)of_p};
}

static void plain_divergence_gradient(const float *x, const float *reference, uint32_t columns,
                                      const bp_row_divergence *row, float *out)
{
    for (uint32_t i = 0; i < columns; i++) {
        terms t = terms_of(row, x[i], reference[i]);
        double share = row->beta == 1 ? 1 : 1 - row->beta;
        double inner = t.p != 0 ? t.p * (t.p_to_m - row->kept) : 0;
        out[i] = (float)(row->upstream * (row->beta == 0 ? t.p - t.q : share * inner));
    }
}

#define TILE(dtype)                                                                                                    \
    static void tile_##dtype(const void *x, uint32_t columns, float scale, int level, bp_partial *partial)             \
    {                                                                                                                  \
        tile(BP_ROW_##dtype, x, columns, scale, level, partial);                                                       \
    }                                                                                                                  \
    static void widen_##dtype(const void *x, uint32_t columns, int rounding, float cap, float *to)                     \
    {                                                                                                                  \
        widen_row(BP_ROW_##dtype, x, columns, rounding, cap, to);                                                      \
    }                                                                                                                  \
    static void narrow_##dtype(const float *gradient, const float *x, uint32_t columns, float cap, void *to)           \
    {                                                                                                                  \
        narrow_row(BP_ROW_##dtype, gradient, x, columns, cap, to);                                                     \
    }
TILE(FP32)
TILE(BF16)
TILE(FP16)

#define GRADIENT(dtype, out_dtype)                                                                                     \
    static void gradient_##dtype##_##out_dtype(const void *x, uint64_t begin, uint64_t end,                            \
                                               const bp_row_gradient *row, void *out)                                  \
    {                                                                                                                  \
        gradient(BP_ROW_##dtype, BP_ROW_##out_dtype, x, begin, end, row, out);                                         \
    }
GRADIENT(FP32, FP32)
GRADIENT(FP32, BF16)
GRADIENT(FP32, FP16)
GRADIENT(BF16, FP32)
GRADIENT(BF16, BF16)
GRADIENT(BF16, FP16)
GRADIENT(FP16, FP32)
GRADIENT(FP16, BF16)
GRADIENT(FP16, FP16)

const bp_host_kernels bp_kernels_plain = {
    .name = "plain",
    .bit = BP_KERNELS_PLAIN,
    .tile = {tile_FP32, tile_BF16, tile_FP16},
    .gradient = {{gradient_FP32_FP32, gradient_FP32_BF16, gradient_FP32_FP16},
                 {gradient_BF16_FP32, gradient_BF16_BF16, gradient_BF16_FP16},
                 {gradient_FP16_FP32, gradient_FP16_BF16, gradient_FP16_FP16}},
    .widen = {widen_FP32, widen_BF16, widen_FP16},
    .narrow = {narrow_FP32, narrow_BF16, narrow_FP16},
    .divergence = plain_divergence,
    .divergence_gradient = plain_divergence_gradient,
};

/* ---- the choice -------------------------------------------------------------------------------------------------- */

#ifdef __x86_64__
const bp_host_kernels *bp_kernels_choose(uint32_t allowed)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    /* __builtin_cpu_supports of some compilers does not know F16C */
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && has_avx2;
    if ((allowed & BP_KERNELS_AVX512) != 0 && has_avx512)
        return &bp_kernels_avx512;
    return (allowed & BP_KERNELS_AVX2) != 0 && has_avx2 ? &bp_kernels_avx2 : &bp_kernels_plain;
}
#else
const bp_host_kernels *bp_kernels_choose(uint32_t allowed)
{
#ifdef __aarch64__
    if ((allowed & BP_KERNELS_NEON) != 0)
        return &bp_kernels_neon;
#endif
    (void)allowed;
    return &bp_kernels_plain;
}
#endif
