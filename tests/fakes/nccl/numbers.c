/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions in rank order; 16-bit floats are summed in fp32 and rounded once. */
#include <string.h>

#include "state.h"

enum { INT8 = 0, UINT8 = 1, INT32 = 2, UINT32 = 3, INT64 = 4, UINT64 = 5, FP16 = 6, FP32 = 7, FP64 = 8, BF16 = 9 };

size_t type_bytes(int dtype)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return dtype >= 0 && (size_t)dtype < sizeof bytes / sizeof *bytes ? bytes[dtype] : 0;
}

bool is_float(int dtype)
{
    return dtype >= FP16 && dtype <= BF16;
}

/* ---- 16-bit floats ------------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity and NaN */
        return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    /* multiplies to adjust the exponent, which also works for denormals */
    return float_of(bits_of(float_of(magnitude << 13) * 0x1p112f) | sign);
}

static uint16_t to_half(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* denormal: the last bit is worth 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

static float from_bf16(uint16_t value)
{
    return float_of((uint32_t)value << 16);
}

static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float same(float value)
{
    return value;
}

static double same_double(double value)
{
    return value;
}

/* ---- reductions ---------------------------------------------------------------------------------------------------- */

/* `stored`: type in memory; `sum`: type of the sum. */
#define REDUCTION(name, stored, sum, load, store)                                                                      \
    static void name(const void *const *inputs, int ranks, size_t first, size_t count, int op, stored *result)         \
    {                                                                                                                  \
        for (size_t i = 0; i < count; i++) {                                                                           \
            sum total = (sum)load(((const stored *)inputs[0])[first + i]);                                             \
            for (int r = 1; r < ranks; r++) {                                                                          \
                sum next = (sum)load(((const stored *)inputs[r])[first + i]);                                          \
                total = op == OP_MAX    ? (next > total ? next : total)                                                \
                        : op == OP_MIN  ? (next < total ? next : total)                                                \
                        : op == OP_PROD ? (sum)(total * next)                                                          \
                                        : (sum)(total + next);                                                         \
            }                                                                                                          \
            result[i] = (stored)store(op == OP_AVG ? (sum)(total / (sum)ranks) : total);                               \
        }                                                                                                              \
    }

REDUCTION(reduce_int8, int8_t, int8_t, , )
REDUCTION(reduce_uint8, uint8_t, uint8_t, , )
REDUCTION(reduce_uint32, uint32_t, uint32_t, , )
REDUCTION(reduce_uint64, uint64_t, uint64_t, , )
REDUCTION(reduce_half, uint16_t, float, from_half, to_half)
REDUCTION(reduce_bf16, uint16_t, float, from_bf16, to_bf16)
REDUCTION(reduce_float, float, float, same, same)
REDUCTION(reduce_double, double, double, same_double, same_double)

/* Signed sums wrap, as on the device. */
#define SIGNED_REDUCTION(name, stored, wrapping)                                                                       \
    static void name(const void *const *inputs, int ranks, size_t first, size_t count, int op, stored *result)         \
    {                                                                                                                  \
        for (size_t i = 0; i < count; i++) {                                                                           \
            stored total = ((const stored *)inputs[0])[first + i];                                                     \
            for (int r = 1; r < ranks; r++) {                                                                          \
                stored next = ((const stored *)inputs[r])[first + i];                                                  \
                total = op == OP_MAX    ? (next > total ? next : total)                                                \
                        : op == OP_MIN  ? (next < total ? next : total)                                                \
                        : op == OP_PROD ? (stored)((wrapping)total * (wrapping)next)                                   \
                                        : (stored)((wrapping)total + (wrapping)next);                                  \
            }                                                                                                          \
            result[i] = op == OP_AVG ? (stored)(total / ranks) : total;                                                \
        }                                                                                                              \
    }

SIGNED_REDUCTION(reduce_int32, int32_t, uint32_t)
SIGNED_REDUCTION(reduce_int64, int64_t, uint64_t)

void reduce(const void *const *inputs, int ranks, size_t first, size_t count, int dtype, int op, void *result)
{
    switch (dtype) {
    case INT8: reduce_int8(inputs, ranks, first, count, op, result); break;
    case UINT8: reduce_uint8(inputs, ranks, first, count, op, result); break;
    case INT32: reduce_int32(inputs, ranks, first, count, op, result); break;
    case UINT32: reduce_uint32(inputs, ranks, first, count, op, result); break;
    case INT64: reduce_int64(inputs, ranks, first, count, op, result); break;
    case UINT64: reduce_uint64(inputs, ranks, first, count, op, result); break;
    case FP16: reduce_half(inputs, ranks, first, count, op, result); break;
    case FP32: reduce_float(inputs, ranks, first, count, op, result); break;
    case FP64: reduce_double(inputs, ranks, first, count, op, result); break;
    case BF16: reduce_bf16(inputs, ranks, first, count, op, result); break;
    default: break;
    }
}
