/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of fp16 and bf16 against plain arithmetic: every 16-bit value, and the midpoint of every two
 * neighbours. */
#include <math.h>

#include "comms/mpi/halves.h"
#include "support/suite/suite.h"

/* From the fields, by definition. */
static double value_by_fields(uint16_t bits, int exponent_bits)
{
    int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    int fraction = bits & ((1 << fraction_bits) - 1);
    double sign = bits >> 15 != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? NAN : sign * INFINITY;
    double significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    return sign * ldexp(significand, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
}

typedef struct type {
    int exponent_bits;
    float (*value)(uint16_t bits);
    uint16_t (*bits)(float value);
} type;

static void check_type(const type *t)
{
    const uint16_t infinite = (uint16_t)(((1 << t->exponent_bits) - 1) << (15 - t->exponent_bits));
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        uint16_t bits = (uint16_t)i;
        double expected = value_by_fields(bits, t->exponent_bits);
        float value = t->value(bits);
        if (isnan(expected)) {
            assert_true(isnan(value) && isnan(t->value(t->bits(value))));
            continue;
        }
        assert_true((double)value == expected && (signbit(value) != 0) == (bits >> 15 != 0));
        assert_int_equal(t->bits(value), bits);
        uint16_t magnitude = bits & 0x7fff;
        if (magnitude >= infinite - 1)
            continue;
        /* the midpoint rounds to even, points beside it to the nearer value */
        double next = value_by_fields((uint16_t)(bits + 1), t->exponent_bits);
        float middle = (float)((expected + next) / 2);
        if ((double)middle != (expected + next) / 2)
            continue; /* the midpoint of bf16's two smallest values is below fp32's range */
        assert_int_equal(t->bits(middle), bits % 2 == 0 ? bits : bits + 1);
        assert_int_equal(t->bits(nextafterf(middle, (float)expected)), bits);
        assert_int_equal(t->bits(nextafterf(middle, (float)next)), bits + 1);
    }
    assert_int_equal(t->bits(INFINITY), infinite);
    assert_int_equal(t->bits(3.4e38f), infinite);
    assert_int_equal(t->bits(-3.4e38f), infinite | 0x8000);
}

TEST(fp16)
{
    check_type(&(type){5, bp_fp32_of_fp16, bp_fp16_of_fp32});
    assert_int_equal(bp_fp16_of_fp32(65519.0f), 0x7bff);
    assert_int_equal(bp_fp16_of_fp32(65520.0f), 0x7c00);
}

TEST(bf16)
{
    check_type(&(type){8, bp_fp32_of_bf16, bp_bf16_of_fp32});
}

TEST(reductions)
{
    const uint16_t from[] = {bp_bf16_of_fp32(3), bp_bf16_of_fp32(-8)};
    const float expected[] = {4, -6, 3, 2, 1, -8};
    for (int r = 0; r < 3; r++) {
        uint16_t into[] = {bp_bf16_of_fp32(1), bp_bf16_of_fp32(2)};
        bp_halves_reduce(BP_DTYPE_BF16, (bp_reduction)r, from, into, 2);
        assert_true(bp_fp32_of_bf16(into[0]) == expected[2 * r] && bp_fp32_of_bf16(into[1]) == expected[2 * r + 1]);
    }
}
