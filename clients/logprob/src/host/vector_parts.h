/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of parts of a vector through memory, for instruction sets without masks. They read and write nothing beyond the part. */
#include <string.h>

/* `count` elements, at most a vector, padded with -inf. */
INLINE vec v_load_part(int dtype, const void *x, unsigned count)
{
    if (dtype == BP_ROW_FP32) {
        float values[WIDTH];
        for (unsigned i = 0; i < WIDTH; i++)
            values[i] = -__builtin_inff();
        memcpy(values, x, count * sizeof *values);
        return v_load(dtype, values);
    }
    uint16_t values[WIDTH];
    for (unsigned i = 0; i < WIDTH; i++)
        values[i] = dtype == BP_ROW_BF16 ? 0xff80 : 0xfc00;
    memcpy(values, x, count * sizeof *values);
    return v_load(dtype, values);
}

INLINE void v_store_part(int dtype, void *out, vec a, unsigned count)
{
    float values[WIDTH]; /* 16-bit numbers take half of it */
    v_store(dtype, values, a);
    memcpy(out, values, count * (dtype == BP_ROW_FP32 ? sizeof(float) : sizeof(uint16_t)));
}

/* `count` numbers, at most two vectors of fp32, padded with `rest`. */
INLINE halves h_load_part(const void *x, unsigned count, int16_t rest)
{
    int16_t values[2 * WIDTH];
    for (unsigned i = 0; i < 2 * WIDTH; i++)
        values[i] = rest;
    memcpy(values, x, count * sizeof *values);
    return h_load(values);
}
