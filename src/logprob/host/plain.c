/* Kernels in portable C with libm, the reference of the others and the fallback; and the choice of kernels. */
#include <bucketpool/logprob.h>

#include <math.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "logprob/host/kernels.h"

static void tile(int dtype, const void *x, uint32_t columns, float scale, bool with_entropy, bp_partial *partial)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < columns; i++) { /* NaN propagates through the sums */
        float value = bp_row_value(dtype, x, i);
        max = value > max ? value : max;
    }
    float from = max == -INFINITY ? 0 : max;
    double sum = 0, weighted = 0;
    for (uint32_t i = 0; i < columns; i++) {
        float d = (bp_row_value(dtype, x, i) - from) * scale, e = expf(d);
        sum += e;
        if (with_entropy && e != 0)
            weighted += e * d;
    }
    partial->max = max;
    partial->sum = (float)sum;
    partial->weighted = (float)weighted;
}

float bp_gradient_at_target(const bp_row_gradient *row, float x)
{
    double d = ((double)x - row->max) * row->scale, z = d - row->log_sum, p = exp(z);
    double inner = row->entropy_grad != 0 && p != 0 ? row->entropy_grad * p * (row->energy - d) : 0;
    return (float)(row->scale * (inner - row->logprob_grad * expm1(z)));
}

static void gradient(int dtype, int out_dtype, const void *x, uint64_t begin, uint64_t end, const bp_row_gradient *row,
                     void *out)
{
    for (uint64_t i = begin; i < end; i++) {
        float value = bp_row_value(dtype, x, i), d = (value - row->max) * row->scale, p = expf(d - row->log_sum);
        float inner = row->entropy_grad != 0 && p != 0 ? row->entropy_grad * (row->energy - d) : 0;
        bp_row_set(out_dtype, out, i,
                   (int64_t)i == row->target ? bp_gradient_at_target(row, value)
                                             : row->scale * (p * (inner - row->logprob_grad)));
    }
}

#define TILE(dtype)                                                                                                    \
    static void tile_##dtype(const void *x, uint32_t columns, float scale, bool with_entropy, bp_partial *partial)     \
    {                                                                                                                  \
        tile(BP_ROW_##dtype, x, columns, scale, with_entropy, partial);                                                \
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
    (void)allowed;
    return &bp_kernels_plain;
}
#endif
