/* Host kernels of one instruction set: a table of them, chosen once. They work on one row; jobs.c deals rows out to threads. */
#ifndef BP_LOGPROB_HOST_KERNELS_H
#define BP_LOGPROB_HOST_KERNELS_H

#include <stdbool.h>
#include <string.h>

#include "logprob/work.h"

/* A row's statistics and upstream gradients. */
typedef struct bp_row_gradient {
    float max, log_sum, energy;
    float scale;
    float logprob_grad, entropy_grad; /* g, h */
    int64_t target;                   /* its column; outside [0, columns): none here */
    bool streams;                     /* `out` is written past the caches: it is larger than they are */
} bp_row_gradient;

typedef struct bp_host_kernels {
    const char *name;
    uint32_t bit; /* BP_KERNELS_PLAIN, ... */
    /* One tile of a row: [columns] elements at `x`, at most BP_TILE_COLUMNS. Writes max, sum and weighted, not target. Indexed by
     * bp_row_dtype. */
    void (*tile[3])(const void *x, uint32_t columns, float scale, bool with_entropy, bp_partial *partial);
    /* Columns [begin, end) of a row. Indexed by the dtypes of x and of out. out == x where both
     * have one dtype, or out narrower at the same address. */
    void (*gradient[3][3])(const void *x, uint64_t begin, uint64_t end, const bp_row_gradient *row, void *out);
} bp_host_kernels;

/* Index into the tables: fp32, bf16, fp16. */
enum { BP_ROW_FP32 = 0, BP_ROW_BF16 = 1, BP_ROW_FP16 = 2 };

extern const bp_host_kernels bp_kernels_plain;
extern const bp_host_kernels bp_kernels_avx2, bp_kernels_avx512; /* x86-64 only */

/* The best of `allowed` (BP_KERNELS bits) that this machine has and this build too; plain where there is none. */
const bp_host_kernels *bp_kernels_choose(uint32_t allowed);

/* Element `target` of a row's gradient, from x there. */
float bp_gradient_at_target(const bp_row_gradient *row, float x);

/* ---- elements of rows as fp32 and back, in portable C ------------------------------------------------------------ */

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

/* To the nearest, ties to even. A NaN stays one: rounding its bits could give infinity. */
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
    if (magnitude >= 0x477ff000) /* 65520, half-way to what fp16 has no number for */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* subnormal: at 0.5 the unit of fp32 is that of fp16's subnormals */
        return (uint16_t)(sign | (bp_bits_of_fp32(bp_fp32_of_bits(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

static inline float bp_row_value(int row_dtype, const void *row, uint64_t column)
{
    switch (row_dtype) {
    case BP_ROW_BF16: return bp_fp32_of_bf16(((const uint16_t *)row)[column]);
    case BP_ROW_FP16: return bp_fp32_of_fp16(((const uint16_t *)row)[column]);
    default: return ((const float *)row)[column];
    }
}

static inline void bp_row_set(int row_dtype, void *row, uint64_t column, float value)
{
    switch (row_dtype) {
    case BP_ROW_BF16: ((uint16_t *)row)[column] = bp_bf16_of_fp32(value); break;
    case BP_ROW_FP16: ((uint16_t *)row)[column] = bp_fp16_of_fp32(value); break;
    default: ((float *)row)[column] = value; break;
    }
}

#endif
