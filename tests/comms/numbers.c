/* SPDX-License-Identifier: Apache-2.0 */
/* Small integers encoded in every dtype. */
#include "numbers.h"

#include <string.h>

const bp_dtype SERVED[] = {BP_DTYPE_FP32, BP_DTYPE_FP16, BP_DTYPE_BF16, BP_DTYPE_INT32, BP_DTYPE_INT64};
const size_t SERVED_COUNT = sizeof SERVED / sizeof *SERVED;

int number_at(uint32_t rank, size_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ (rank + 1) * UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 29;
    return (int)(x % 41) - 20;
}

size_t element_bytes(bp_dtype dtype)
{
    return bp_dtype_bits(dtype) / 8;
}

/* bf16 is fp32's upper half, exact for integers below 257; fp16 has fewer exponent bits. */
static uint16_t half_of(int value)
{
    uint32_t magnitude = (uint32_t)(value < 0 ? -value : value), exponent = 0;
    if (magnitude == 0)
        return 0;
    while (magnitude >> (exponent + 1) != 0)
        exponent++;
    return (uint16_t)((value < 0 ? 0x8000u : 0) | (exponent + 15) << 10 | (magnitude << (10 - exponent) & 0x3ff));
}

static size_t encode(void *element, bp_dtype dtype, int value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t brain = (uint16_t)(bits >> 16), half = dtype == BP_DTYPE_FP16 ? half_of(value) : 0;
    int32_t narrow = value;
    int64_t wide = value;
    const void *from = dtype == BP_DTYPE_FP32    ? (void *)&f
                       : dtype == BP_DTYPE_BF16  ? (void *)&brain
                       : dtype == BP_DTYPE_FP16  ? (void *)&half
                       : dtype == BP_DTYPE_INT32 ? (void *)&narrow
                                                 : (void *)&wide;
    memcpy(element, from, element_bytes(dtype));
    return element_bytes(dtype);
}

void put_number(void *memory, size_t i, bp_dtype dtype, int value)
{
    encode((char *)memory + i * element_bytes(dtype), dtype, value);
}

int has_number(const void *memory, size_t i, bp_dtype dtype, int value)
{
    char expected[8];
    size_t bytes = encode(expected, dtype, value);
    const char *element = (const char *)memory + i * bytes;
    /* zero may have either sign */
    char negative[8] = {0};
    if (value == 0 && (dtype == BP_DTYPE_FP32 || dtype == BP_DTYPE_FP16 || dtype == BP_DTYPE_BF16)) {
        negative[bytes - 1] = (char)0x80;
        if (memcmp(element, negative, bytes) == 0)
            return 1;
    }
    return memcmp(element, expected, bytes) == 0;
}

int reduced_number(uint32_t ranks, size_t i, bp_reduction reduction)
{
    int total = number_at(0, i);
    for (uint32_t r = 1; r < ranks; r++) {
        int next = number_at(r, i);
        if (reduction == BP_REDUCE_SUM)
            total += next;
        else if (reduction == BP_REDUCE_MAX ? next > total : next < total)
            total = next;
    }
    return total;
}
