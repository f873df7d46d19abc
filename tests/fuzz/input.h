/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a fuzzer as a list of numbers; zeros behind its end. */
#ifndef BP_FUZZ_INPUT_H
#define BP_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

static inline uint8_t next_byte(input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->data++;
}

/* Mostly small, sometimes any value. */
static inline uint64_t next_number(input *in)
{
    uint8_t first = next_byte(in);
    if (first < 250)
        return first;
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | next_byte(in);
    return value >> (first - 250) * 8;
}

#endif
