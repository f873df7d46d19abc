#include "logprob/host/widen.h"

#include <string.h>

#define BLOCK 32 /* elements; loops of known length become vector code at every level of optimisation */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float value_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float widen_bf16(uint16_t bits)
{
    return value_of((uint32_t)bits << 16);
}

/* Without branches: exponent and fraction in place are the value times 2^-112, subnormals included. */
static float widen_fp16(uint16_t bits)
{
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0;
    const float value = value_of(magnitude << 13) * 0x1p112f;
    return value_of(bits_of(value) | special | (uint32_t)(bits & 0x8000u) << 16);
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
WIDEN(widen_bf16_row, widen_bf16)
WIDEN(widen_fp16_row, widen_fp16)

static uint16_t narrow_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) /* rounding could make NaN infinite */
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t narrow_fp16(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520, the first that rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* subnormal: 0.5 has its last bit where theirs is, so the sum is rounded there */
        return (uint16_t)(sign | (bits_of(value_of(magnitude) + 0.5F) - bits_of(0.5F)));
    return (uint16_t)(sign | (magnitude - (UINT32_C(112) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

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
            halves[i] = dtype == BP_DTYPE_BF16 ? narrow_bf16(from[i]) : narrow_fp16(from[i]);
}
