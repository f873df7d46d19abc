/* Four vectors at a time, and their exp: for vector_kernels.h, after the header of one kind of vectors. */
#ifndef BP_LOGPROB_HOST_VECTOR_QUADS_H
#define BP_LOGPROB_HOST_VECTOR_QUADS_H

#include "logprob/host/kernels.h"

#define BLOCK (4u * WIDTH) /* columns of a round */

INLINE uint64_t size_of(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

INLINE const char *at(int dtype, const void *x, uint64_t column)
{
    return (const char *)x + column * size_of(dtype);
}

/* ---- four vectors -------------------------------------------------------------------------------------------------- */

/* What depends on one another is four instructions apart: processors do not look far enough ahead to find that by themselves. */
typedef struct quad {
    vec a, b, c, d;
} quad;

INLINE quad q_set(float value)
{
    return (quad){v_set(value), v_set(value), v_set(value), v_set(value)};
}

INLINE quad q_add(quad x, quad y)
{
    return (quad){v_add(x.a, y.a), v_add(x.b, y.b), v_add(x.c, y.c), v_add(x.d, y.d)};
}

INLINE quad q_less(quad x, vec y)
{
    return (quad){v_sub(x.a, y), v_sub(x.b, y), v_sub(x.c, y), v_sub(x.d, y)};
}

INLINE quad q_from(vec x, quad y)
{
    return (quad){v_sub(x, y.a), v_sub(x, y.b), v_sub(x, y.c), v_sub(x, y.d)};
}

INLINE quad q_times(quad x, vec y)
{
    return (quad){v_mul(x.a, y), v_mul(x.b, y), v_mul(x.c, y), v_mul(x.d, y)};
}

INLINE quad q_mul(quad x, quad y)
{
    return (quad){v_mul(x.a, y.a), v_mul(x.b, y.b), v_mul(x.c, y.c), v_mul(x.d, y.d)};
}

INLINE quad q_round(quad x)
{
    return (quad){v_round(x.a), v_round(x.b), v_round(x.c), v_round(x.d)};
}

/* x y + z and x y - z: those that are vectors are the same four times. */
INLINE quad q_fma_vv(quad x, vec y, vec z)
{
    return (quad){v_fma(x.a, y, z), v_fma(x.b, y, z), v_fma(x.c, y, z), v_fma(x.d, y, z)};
}

INLINE quad q_fma_qv(quad x, quad y, vec z)
{
    return (quad){v_fma(x.a, y.a, z), v_fma(x.b, y.b, z), v_fma(x.c, y.c, z), v_fma(x.d, y.d, z)};
}

INLINE quad q_fma_vq(quad x, vec y, quad z)
{
    return (quad){v_fma(x.a, y, z.a), v_fma(x.b, y, z.b), v_fma(x.c, y, z.c), v_fma(x.d, y, z.d)};
}

INLINE quad q_fma(quad x, quad y, quad z)
{
    return (quad){v_fma(x.a, y.a, z.a), v_fma(x.b, y.b, z.b), v_fma(x.c, y.c, z.c), v_fma(x.d, y.d, z.d)};
}

INLINE quad q_fms_vq(quad x, vec y, quad z)
{
    return (quad){v_fms(x.a, y, z.a), v_fms(x.b, y, z.b), v_fms(x.c, y, z.c), v_fms(x.d, y, z.d)};
}

/* `y` where `x` is NaN. */
INLINE quad q_max(quad x, quad y)
{
    return (quad){v_max(x.a, y.a), v_max(x.b, y.b), v_max(x.c, y.c), v_max(x.d, y.d)};
}

INLINE float q_sum_of(quad x)
{
    return v_sum_of(v_add(v_add(x.a, x.b), v_add(x.c, x.d)));
}

/* In an order of their own. */
INLINE quad q_load(int dtype, const void *x, uint64_t column)
{
    quad block;
    v_load_two(dtype, at(dtype, x, column), &block.a, &block.b);
    v_load_two(dtype, at(dtype, x, column + BLOCK / 2), &block.c, &block.d);
    return block;
}

INLINE quad q_load_ordered(int dtype, const void *x, uint64_t column)
{
    const char *from = at(dtype, x, column);
    return (quad){v_load(dtype, from), v_load(dtype, at(dtype, from, WIDTH)), v_load(dtype, at(dtype, from, 2 * WIDTH)),
                  v_load(dtype, at(dtype, from, 3 * WIDTH))};
}

/* Of a vector that begins `before` columns into the last `count`. */
INLINE unsigned share_of(uint64_t count, uint64_t before)
{
    return count <= before ? 0 : count - before < WIDTH ? (unsigned)(count - before) : WIDTH;
}

/* The last `count` columns, less than a block, in their order, and -inf behind them. */
INLINE quad q_load_part(int dtype, const void *x, uint64_t column, uint64_t count)
{
    const char *from = at(dtype, x, column);
    return (quad){v_load_part(dtype, from, share_of(count, 0)),
                  v_load_part(dtype, at(dtype, from, WIDTH), share_of(count, WIDTH)),
                  v_load_part(dtype, at(dtype, from, 2 * WIDTH), share_of(count, 2 * WIDTH)),
                  v_load_part(dtype, at(dtype, from, 3 * WIDTH), share_of(count, 3 * WIDTH))};
}

/* ---- exp ----------------------------------------------------------------------------------------------------------- */

/* scale log2(e) in two parts. */
typedef struct exp_scale {
    vec high, low;
} exp_scale;

INLINE exp_scale exp_scale_of(float scale)
{
    const double log2_e = 1.4426950408889634;
    float high = (float)(scale * log2_e);
    return (exp_scale){v_set(high), v_set((float)(scale * log2_e - high))};
}

/* 2^f for f in [-1/2, 1/2]: Remez's polynomial of least relative error with 1 and an fp32 for its first two coefficients, the others
 * rounded to fp32: 6.4e-9 off. */
INLINE quad power_of(quad f)
{
    quad p = q_fma_vv(f, v_set(0x1.4862e8p-13f), v_set(0x1.5fe1a6p-10f));
    p = q_fma_qv(p, f, v_set(0x1.3b2508p-7f));
    p = q_fma_qv(p, f, v_set(0x1.c6ad6ep-5f));
    p = q_fma_qv(p, f, v_set(0x1.ebfbe6p-3f));
    p = q_fma_qv(p, f, v_set(0x1.62e432p-1f));
    return q_fma_qv(p, f, v_set(1));
}

/* The same for terms of a sum: a degree less, and 1 for the first coefficient. 1.5e-7 off, 7e-8 less than it should be on average. */
INLINE quad power_of_term(quad f)
{
    quad p = q_fma_vv(f, v_set(0x1.5c08e6p-10f), v_set(0x1.3d0c52p-7f));
    p = q_fma_qv(p, f, v_set(0x1.c6b6e4p-5f));
    p = q_fma_qv(p, f, v_set(0x1.ebf918p-3f));
    p = q_fma_qv(p, f, v_set(0x1.62e428p-1f));
    return q_fma_qv(p, f, v_set(1));
}

/* 2^n a. 0 where t, of which n is the whole part, is that of less than the least normal number; NaN stays NaN. */
INLINE quad q_scale(quad a, quad n, quad t)
{
    vec least = v_set(-126);
    return (quad){v_scale(a.a, n.a, t.a, least), v_scale(a.b, n.b, t.b, least), v_scale(a.c, n.c, t.c, least),
                  v_scale(a.d, n.d, t.d, least)};
}

/* exp(x scale): 2^n 2^f with n whole. */
INLINE quad exp_of(quad x, const exp_scale *scale)
{
    quad t = q_times(x, scale->high), n = q_round(t);
    quad f = q_fma_vq(x, scale->low, q_fms_vq(x, scale->high, n));
    return q_scale(power_of(f), n, t);
}

/* For sums of many, of which the large ones count: theirs is a small |x|, and the low part of the scale, 2e-8 |x|, is left out. */
INLINE quad exp_of_term(quad x, const exp_scale *scale)
{
    quad t = q_times(x, scale->high), n = q_round(t);
    return q_scale(power_of_term(q_fms_vq(x, scale->high, n)), n, t);
}

#endif
