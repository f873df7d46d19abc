/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Conversions between fp32 and fp16 or bf16 in portable C, rounded to nearest, ties to even. */
#ifndef BUCKETPOOL_CORE_HALVES_H
#define BUCKETPOOL_CORE_HALVES_H

#include <stdint.h>
#include <string.h>

static inline float bp_fp32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bp_bits_of_fp32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bp_fp32_of_bf16(uint16_t value)
{
    return bp_fp32_of_bits((uint32_t)value << 16);
}

static inline float bp_fp32_of_fp16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, exponent = (value >> 10) & 31, fraction = value & 0x3ff;
    if (exponent == 31)
        return bp_fp32_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return bp_fp32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Keeps NaN: rounding its bits could give infinity. */
static inline uint16_t bp_bf16_of_fp32(float value)
{
    uint32_t bits = bp_bits_of_fp32(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint16_t bp_fp16_of_fp32(float value)
{
    uint32_t bits = bp_bits_of_fp32(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520, half-way between the largest fp16 number and the next one */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* subnormal: at 0.5 an fp32 ulp is the unit of fp16's subnormals */
        return (uint16_t)(sign | (bp_bits_of_fp32(bp_fp32_of_bits(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

#endif
