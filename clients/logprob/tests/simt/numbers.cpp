/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of a GPU. Where PTX leaves a choice, it takes the worst one, so that code that passes here passes on a GPU. */
#include "simt.h"

namespace device
{

static const uint32_t NAN_BITS = 0x7fffffff;

/* Positive zero is larger than negative zero. */
float max_nan(float a, float b)
{
    if (std::isnan(a) || std::isnan(b))
        return as_float(NAN_BITS);
    if (a == b)
        return std::signbit(a) ? b : a;
    return a > b ? a : b;
}

float min_nan(float a, float b)
{
    if (std::isnan(a) || std::isnan(b))
        return as_float(NAN_BITS);
    return -max_nan(-a, -b);
}

static uint32_t by_halves(uint32_t a, uint32_t b, float (*choose)(float, float), float (*widen)(uint32_t), uint32_t nan)
{
    uint32_t chosen = 0;
    for (unsigned shift = 0; shift < 32; shift += 16) {
        const uint32_t x = a >> shift & 0xffff, y = b >> shift & 0xffff;
        const float choice = choose(widen(x), widen(y));
        const bool is_x = as_bits(choice) == as_bits(widen(x));
        chosen |= (std::isnan(choice) ? nan : is_x ? x : y) << shift;
    }
    return chosen;
}

static float widen_bf16(uint32_t half)
{
    return as_float(half << 16);
}

uint32_t max_nan_bf16x2(uint32_t a, uint32_t b)
{
    return by_halves(a, b, max_nan, widen_bf16, 0x7fff);
}

uint32_t min_nan_bf16x2(uint32_t a, uint32_t b)
{
    return by_halves(a, b, min_nan, widen_bf16, 0x7fff);
}

uint32_t max_nan_fp16x2(uint32_t a, uint32_t b)
{
    return by_halves(a, b, max_nan, widen_fp16, 0x7fff);
}

uint32_t min_nan_fp16x2(uint32_t a, uint32_t b)
{
    return by_halves(a, b, min_nan, widen_fp16, 0x7fff);
}

/* ex2.approx.ftz.f32: exact for 0 and infinities, otherwise with an error of up to 2^-22, two units in the last place (CUDA programming
 * guide, exp2f), that is derived from the argument's bits. */
float exp2_fast(float x)
{
    if (std::isnan(x))
        return as_float(NAN_BITS);
    if (std::fabs(x) < 1.17549435e-38f)
        return 1;
    const uint32_t mixed = (as_bits(x) * 2654435761u) >> 8;
    const double share = static_cast<double>(mixed) / (1 << 23) - 1; /* -1 to 1 */
    const double power = std::exp2(static_cast<double>(x)) * (1 + share * 2.384185791015625e-7);
    return power < 1.17549435e-38 ? 0 : static_cast<float>(power);
}

float widen_fp16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31)
        return as_float(sign | 0x7f800000u | fraction << 13);
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(fraction), -24)
                                : std::ldexp(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25);
    return as_float(sign | as_bits(magnitude));
}

static uint32_t narrow_bf16(float x)
{
    const uint32_t bits = as_bits(x);
    return std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static uint32_t narrow_fp16(float x)
{
    const uint32_t sign = as_bits(x) >> 16 & 0x8000u;
    const float magnitude = std::fabs(x);
    if (std::isnan(x))
        return 0x7fff;
    if (magnitude >= 65520)
        return sign | 0x7c00;
    int exponent = magnitude == 0 ? -14 : std::ilogb(magnitude);
    exponent = exponent < -14 ? -14 : exponent;
    const uint32_t fraction = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    return sign | (fraction + (static_cast<uint32_t>(exponent + 14) << 10)); /* 1024 carries into the exponent */
}

uint32_t narrow_bf16x2(float low, float high)
{
    return narrow_bf16(low) | narrow_bf16(high) << 16;
}

uint32_t narrow_fp16x2(float low, float high)
{
    return narrow_fp16(low) | narrow_fp16(high) << 16;
}

} // namespace device
