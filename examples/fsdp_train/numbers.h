/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with the same bits on every machine: only operations that IEEE 754 rounds correctly, in fp32, never contracted. So exp and log are
 * series here, as libraries of different machines differ in their last bits. */
#ifndef FSDP_TRAIN_NUMBERS_H
#define FSDP_TRAIN_NUMBERS_H

#include <math.h>
#include <string.h>

#include "work.h"

#ifdef __CUDACC__
#define OPERATION static __device__ inline
#else
#define OPERATION static inline
#endif

OPERATION uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

OPERATION float value_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

OPERATION float load(const void *from, uint32_t stored, uint64_t i)
{
    return stored == STORED_BF16 ? value_of((uint32_t)((const uint16_t *)from)[i] << 16) : ((const float *)from)[i];
}

/* bf16 is rounded to the nearest, ties to even. What trains has no NaN. */
OPERATION void store(void *to, uint32_t stored, uint64_t i, float value)
{
    uint32_t bits = bits_of(value);
    if (stored == STORED_BF16)
        ((uint16_t *)to)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    else
        ((float *)to)[i] = value;
}

/* 2^k e^r with |r| at most ln(2)/2, and the series of e^r. */
OPERATION float exp_of(float x)
{
    const float ln2_high = 0.693359375f,
                ln2_low = -2.12194440e-4f; /* the first has few bits, so that k times it is exact */
    if (x < -87.0f)
        return 0.0f;
    if (x > 88.0f)
        x = 88.0f;
    float k = floorf(x * 1.44269504f + 0.5f);
    float r = x - k * ln2_high;
    r = r - k * ln2_low;
    float sum = 1.0f;
    for (int i = 7; i > 0; i--)
        sum = 1.0f + sum * r / (float)i;
    return sum * value_of((uint32_t)((int)k + 127) << 23);
}

/* Of normal numbers above 0: the exponent, and the series of ln((1 + s) / (1 - s)). */
OPERATION float log_of(float x)
{
    int exponent = (int)(bits_of(x) >> 23) - 127;
    float m = value_of((bits_of(x) & 0x7fffff) | 0x3f800000);
    if (m > 1.41421356f) {
        m = m * 0.5f;
        exponent++;
    }
    float s = (m - 1.0f) / (m + 1.0f), square = s * s, sum = 0.0f;
    for (int i = 9; i > 0; i -= 2)
        sum = 1.0f / (float)i + sum * square;
    return 2.0f * s * sum + (float)exponent * 0.693147181f;
}

#endif
