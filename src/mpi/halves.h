/* Reductions of fp16 and bf16, which MPI does not know: each step is computed in fp32 and rounded to nearest even. */
#ifndef BP_MPI_HALVES_H
#define BP_MPI_HALVES_H

#include <bucketpool/comm.h>

#include <string.h>

static inline uint32_t bp_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bp_float_value(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bp_bf16_value(uint16_t bits)
{
    return bp_float_value((uint32_t)bits << 16);
}

static inline uint16_t bp_bf16_bits(float value)
{
    uint32_t bits = bp_float_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) /* NaN: rounding could make it infinite */
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float bp_fp16_value(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31)
        return bp_float_value(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) { /* subnormal: a multiple of 2^-24, exact in fp32 */
        float value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return bp_float_value(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t bp_fp16_bits(float value)
{
    uint32_t bits = bp_float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520: the first that rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    /* below 2^-14: adding 0.5 puts multiples of 2^-24 into the last bits, rounded to even */
    if (magnitude < 0x38800000) {
        uint32_t rounded = bp_float_bits(bp_float_value(magnitude) + 0.5f);
        return (uint16_t)(sign | (rounded - 0x3f000000));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (UINT32_C(112) << 23);
    return (uint16_t)(sign | rounded >> 13);
}

static inline float bp_halves_combine(bp_reduction reduction, float a, float b)
{
    if (reduction == BP_REDUCE_SUM)
        return a + b;
    return (reduction == BP_REDUCE_MAX) == (a > b) ? a : b;
}

/* into[i] = reduction(from[i], into[i]); dtype is BP_DTYPE_FP16 or BP_DTYPE_BF16. Maxima and minima of NaN are not specified. */
static inline void bp_halves_reduce(bp_dtype dtype, bp_reduction reduction, const uint16_t *from, uint16_t *into,
                                    int count)
{
    for (int i = 0; i < count; i++)
        into[i] = dtype == BP_DTYPE_FP16
                      ? bp_fp16_bits(bp_halves_combine(reduction, bp_fp16_value(from[i]), bp_fp16_value(into[i])))
                      : bp_bf16_bits(bp_halves_combine(reduction, bp_bf16_value(from[i]), bp_bf16_value(into[i])));
}

#endif
