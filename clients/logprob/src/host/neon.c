/* SPDX-License-Identifier: Apache-2.0 */
/* The vector kernels for NEON, which every AArch64 processor has: vectors of four fp32. */
#include <arm_neon.h>

#include "host/kernels.h"

#define WIDTH 4
#define INLINE static inline __attribute__((always_inline))

typedef float32x4_t vec;

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */

INLINE vec v_set(float value)
{
    return vdupq_n_f32(value);
}

INLINE vec v_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

INLINE vec v_fms(vec a, vec b, vec c)
{
    return vfmaq_f32(vnegq_f32(c), a, b);
}

/* The larger; `b` if one is NaN, which FMAX and FMAXNM do not return. */
INLINE vec v_max(vec a, vec b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* The smaller; `b` if one is NaN. */
INLINE vec v_min(vec a, vec b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

INLINE vec v_round(vec a)
{
    return vrndnq_f32(a);
}

/* a 2^n for integer n, through the exponent, so the result must be normal; 0 where `t` is below `min` (NaN is not). */
INLINE vec v_scale(vec a, vec n, vec t, vec min)
{
    const int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(a), vshlq_n_s32(vcvtq_s32_f32(n), 23));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(scaled), vcltq_f32(t, min)));
}

INLINE float v_max_of(vec a)
{
    return vmaxvq_f32(a);
}

INLINE float v_sum_of(vec a)
{
    return vaddvq_f32(a);
}

/* ---- loads --------------------------------------------------------------------------------------------------------- */

INLINE vec v_of_16(int dtype, uint16x4_t values)
{
    return dtype == BP_ROW_BF16 ? vreinterpretq_f32_u32(vshll_n_u16(values, 16))
                                : vcvt_f32_f16(vreinterpret_f16_u16(values));
}

INLINE vec v_load(int dtype, const void *x)
{
    return dtype == BP_ROW_FP32 ? vld1q_f32(x) : v_of_16(dtype, vld1_u16(x));
}

/* The elements of two vectors, in a permuted order. */
INLINE void v_load_two(int dtype, const void *x, vec *a, vec *b)
{
    if (dtype == BP_ROW_BF16) {
        const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(x));
        *a = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
        *b = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000)));
    } else if (dtype == BP_ROW_FP16) {
        const uint16x8_t both = vld1q_u16(x);
        *a = v_of_16(dtype, vget_low_u16(both));
        *b = vcvt_high_f32_f16(vreinterpretq_f16_u16(both));
    } else {
        *a = vld1q_f32(x);
        *b = vld1q_f32((const float *)x + WIDTH);
    }
}

/* ---- stores -------------------------------------------------------------------------------------------------------- */

INLINE uint16x4_t v_to_bf16(vec a)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16);
}

INLINE uint16x4_t v_to_16(int dtype, vec a)
{
    return dtype == BP_ROW_BF16 ? v_to_bf16(a) : vreinterpret_u16_f16(vcvt_f16_f32(a));
}

INLINE void v_store(int dtype, void *out, vec a)
{
    if (dtype == BP_ROW_FP32)
        vst1q_f32(out, a);
    else
        vst1_u16(out, v_to_16(dtype, a));
}

/* Ordinary stores: these processors detect streams that write whole lines and allocate none in the caches. */
INLINE void v_stream(int dtype, void *out, vec a)
{
    v_store(dtype, out, a);
}

INLINE void v_end_stream(void)
{
}

/* ---- halves: eight 16-bit numbers, their bits as signed integers ----------------------------------------------------- */

typedef int16x8_t halves;

INLINE halves h_set(int16_t value)
{
    return vdupq_n_s16(value);
}

INLINE halves h_load(const void *x)
{
    return vld1q_s16(x);
}

INLINE halves h_max(halves a, halves b)
{
    return vmaxq_s16(a, b);
}

INLINE halves h_min(halves a, halves b)
{
    return vminq_s16(a, b);
}

/* Eight of which one is the extreme. */
INLINE void h_eight(halves a, bool largest, int16_t *values)
{
    (void)largest;
    vst1q_s16(values, a);
}

#include "host/vector_parts.h" /* needs the vector functions above */

#include "host/vector_kernels.h"

const bp_host_kernels bp_kernels_neon = KERNELS("neon", BP_KERNELS_NEON);
