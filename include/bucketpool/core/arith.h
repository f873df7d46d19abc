/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Checked arithmetic on sizes: each function returns false on overflow. Sizes come from untrusted input. */
#ifndef BUCKETPOOL_CORE_ARITH_H
#define BUCKETPOOL_CORE_ARITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool bp_add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool bp_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

static inline uint64_t bp_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline bool bp_is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* The smallest multiple of `step` (not 0) that is at least `value`. */
static inline bool bp_round_up_u64(uint64_t value, uint64_t step, uint64_t *rounded)
{
    uint64_t rest = value % step;
    return rest == 0 ? (*rounded = value, true) : bp_add_u64(value, step - rest, rounded);
}

static inline uint64_t bp_gcd_u64(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Least common multiple of two values that are not 0. */
static inline bool bp_lcm_u64(uint64_t a, uint64_t b, uint64_t *multiple)
{
    return bp_mul_u64(a / bp_gcd_u64(a, b), b, multiple);
}

#endif
