#include "logprob/host/widen.h"

#include <string.h>

#include "logprob/host/values.h"

#define BLOCK 32 /* elements; loops of known length become vector code at every level of optimisation */

/* Without branches: exponent and fraction in place are the value times 2^-112, subnormals included. */
static float widen_fp16(uint16_t bits)
{
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0;
    const float value = bp_fp32_of_bits(magnitude << 13) * 0x1p112f;
    return bp_fp32_of_bits(bp_bits_of_fp32(value) | special | (uint32_t)(bits & 0x8000u) << 16);
}

#define WIDEN(name, one)                                                                                               \
    static void name(const uint16_t *restrict from, size_t count, float *restrict to)                                  \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; i + BLOCK <= count; i += BLOCK)                                                                         \
            for (size_t k = 0; k < BLOCK; k++)                                                                         \
                to[i + k] = one(from[i + k]);                                                                          \
        for (; i < count; i++)                                                                                         \
            to[i] = one(from[i]);                                                                                      \
    }
WIDEN(widen_bf16_row, bp_fp32_of_bf16)
WIDEN(widen_fp16_row, widen_fp16)

void bp_widen(bp_dtype dtype, const void *from, size_t count, float *to)
{
    if (dtype == BP_DTYPE_BF16)
        widen_bf16_row(from, count, to);
    else if (dtype == BP_DTYPE_FP16)
        widen_fp16_row(from, count, to);
    else
        memcpy(to, from, count * sizeof *to);
}

void bp_narrow(bp_dtype dtype, const float *from, size_t count, void *to)
{
    uint16_t *halves = to;
    if (dtype == BP_DTYPE_FP32)
        memcpy(to, from, count * sizeof *from);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = dtype == BP_DTYPE_BF16 ? bp_bf16_of_fp32(from[i]) : bp_fp16_of_fp32(from[i]);
}
