/* SPDX-License-Identifier: Apache-2.0 */
/* Vector kernels over the vector functions of avx2.c, avx512.c or neon.c, which include this file after defining them. A tile's maximum is found
 * first; the sum follows while the tile is in L1 and the one after next is prefetched. Columns map to lanes by their index alone. */
#include <float.h>
#include <math.h>

#include "host/kernels.h"

#include <bucketpool/logprob.h>

#define LINE 64u
#define AHEAD (2 * BP_TILE_COLUMNS) /* columns to prefetch in reductions; one tile ahead is too late for fp32 */
#define PREFETCH_BYTES 4096u        /* in the gradient */

#define BLOCK (4u * WIDTH) /* columns per round */

INLINE uint64_t size_of(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

INLINE const char *at(int dtype, const void *x, uint64_t column)
{
    return (const char *)x + column * size_of(dtype);
}

/* ---- four vectors -------------------------------------------------------------------------------------------------- */

/* Four independent dependency chains: out-of-order windows are too short to overlap successive vectors. */
typedef struct quad {
    vec a, b, c, d;
} quad;

INLINE quad q_set(float value)
{
    return (quad){v_set(value), v_set(value), v_set(value), v_set(value)};
}

INLINE quad q_add(quad x, quad y)
{
    return (quad){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}

INLINE quad q_less(quad x, vec y)
{
    return (quad){x.a - y, x.b - y, x.c - y, x.d - y};
}

INLINE quad q_from(vec x, quad y)
{
    return (quad){x - y.a, x - y.b, x - y.c, x - y.d};
}

INLINE quad q_times(quad x, vec y)
{
    return (quad){x.a * y, x.b * y, x.c * y, x.d * y};
}

INLINE quad q_mul(quad x, quad y)
{
    return (quad){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}

INLINE quad q_div(quad x, quad y)
{
    return (quad){x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}

INLINE quad q_sub(quad x, quad y)
{
    return (quad){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}

INLINE quad q_round(quad x)
{
    return (quad){v_round(x.a), v_round(x.b), v_round(x.c), v_round(x.d)};
}

/* x y + z and x y - z; vec operands are broadcast to all four. */
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

INLINE quad q_min(quad x, quad y)
{
    return (quad){v_min(x.a, y.a), v_min(x.b, y.b), v_min(x.c, y.c), v_min(x.d, y.d)};
}

/* Bits as signed integers. */
typedef int32_t mask __attribute__((vector_size(sizeof(vec))));

/* `x` where the bits of `chosen` are ones, 0 where they are zeros. */
INLINE vec v_where(mask chosen, vec x)
{
    return (vec)(chosen & (mask)x);
}

INLINE float q_sum_of(quad x)
{
    return v_sum_of((x.a + x.b) + (x.c + x.d));
}

/* Loads in a permuted order. */
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

/* Valid columns of a vector that starts `before` columns into the last `count`. */
INLINE unsigned share_of(uint64_t count, uint64_t before)
{
    return count <= before ? 0 : count - before < WIDTH ? (unsigned)(count - before) : WIDTH;
}

/* The last `count` columns, less than a block, in order and padded with -inf. */
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

/* 2^f for f in [-1/2, 1/2]: Remez polynomial of minimal relative error, its first two coefficients fixed to 1 and an fp32, the others
 * rounded to fp32; error 6.4e-9. */
INLINE quad power_of(quad f)
{
    quad p = q_fma_vv(f, v_set(0x1.4862e8p-13f), v_set(0x1.5fe1a6p-10f));
    p = q_fma_qv(p, f, v_set(0x1.3b2508p-7f));
    p = q_fma_qv(p, f, v_set(0x1.c6ad6ep-5f));
    p = q_fma_qv(p, f, v_set(0x1.ebfbe6p-3f));
    p = q_fma_qv(p, f, v_set(0x1.62e432p-1f));
    return q_fma_qv(p, f, v_set(1));
}

/* The same for terms of a sum, one degree lower, first coefficient 1: error 1.5e-7, mean error -7e-8. */
INLINE quad power_of_term(quad f)
{
    quad p = q_fma_vv(f, v_set(0x1.5c08e6p-10f), v_set(0x1.3d0c52p-7f));
    p = q_fma_qv(p, f, v_set(0x1.c6b6e4p-5f));
    p = q_fma_qv(p, f, v_set(0x1.ebf918p-3f));
    p = q_fma_qv(p, f, v_set(0x1.62e428p-1f));
    return q_fma_qv(p, f, v_set(1));
}

/* 2^n a; 0 where t, whose integer part is n, is below the smallest normal exponent; NaN stays NaN. */
INLINE quad q_scale(quad a, quad n, quad t)
{
    vec min = v_set(-126);
    return (quad){v_scale(a.a, n.a, t.a, min), v_scale(a.b, n.b, t.b, min), v_scale(a.c, n.c, t.c, min),
                  v_scale(a.d, n.d, t.d, min)};
}

/* exp(x scale) as 2^n 2^f with integer n. */
INLINE quad exp_of(quad x, const exp_scale *scale)
{
    quad t = q_times(x, scale->high), n = q_round(t);
    quad f = q_fma_vq(x, scale->low, q_fms_vq(x, scale->high, n));
    return q_scale(power_of(f), n, t);
}

/* For terms of long sums, dominated by those with small |x|: omits the low part of the scale, 2e-8 |x|. */
INLINE quad exp_of_term(quad x, const exp_scale *scale)
{
    quad t = q_times(x, scale->high), n = q_round(t);
    return q_scale(power_of_term(q_fms_vq(x, scale->high, n)), n, t);
}

/* exp(x) - 1 for x up to 80, without cancellation: 2^n - 1 + 2^n (2^f - 1). Polynomial of (2^f - 1) / f of minimal relative error, its first
 * coefficient an fp32: error 1.3e-8. NaN becomes -1. */
INLINE quad expm1_of(quad x, const exp_scale *scale)
{
    quad bounded = q_max(x, q_set(-80)), t = q_times(bounded, scale->high), n = q_round(t);
    quad f = q_fma_vq(bounded, scale->low, q_fms_vq(bounded, scale->high, n));
    quad p = q_fma_vv(f, v_set(0x1.429e5ep-13f), v_set(0x1.5ef14p-10f));
    p = q_fma_qv(p, f, v_set(0x1.3b2c36p-7f));
    p = q_fma_qv(p, f, v_set(0x1.c6afa4p-5f));
    p = q_fma_qv(p, f, v_set(0x1.ebfbdep-3f));
    p = q_fma_qv(p, f, v_set(0x1.62e43p-1f));
    quad power = q_scale(q_set(1), n, t);
    return q_fma(power, q_mul(f, p), q_less(power, v_set(1)));
}

/* tanh(x) = E / (E + 2), E = exp(2 x) - 1; beyond 10 it is 1. NaN stays NaN. */
INLINE quad tanh_of(quad x, const exp_scale *twice)
{
    quad bounded = q_max(q_set(-10), q_min(q_set(10), x)), e = expm1_of(bounded, twice);
    return q_add(q_div(e, q_less(e, v_set(-2))), q_sub(bounded, bounded)); /* adds 0, or NaN */
}

/* ---- a tile -------------------------------------------------------------------------------------------------------- */

INLINE void prefetch(const char *from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch(from + i);
}

/* NaN propagates through the sums. */
INLINE float max_of_vectors(int dtype, const void *x, uint32_t columns)
{
    quad max = q_set(-INFINITY);
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK)
        max = q_max(q_load(dtype, x, i), max);
    if (i < columns)
        max = q_max(q_load_part(dtype, x, i, columns - i), max);
    return v_max_of(v_max(v_max(max.a, max.b), v_max(max.c, max.d)));
}

/* Horizontal reduction. */
INLINE int16_t extreme_of(halves a, bool largest)
{
    int16_t values[8], extreme;
    h_eight(a, largest, values);
    extreme = values[0];
    for (int i = 1; i < 8; i++)
        extreme = (largest ? values[i] > extreme : values[i] < extreme) ? values[i] : extreme;
    return extreme;
}

INLINE halves h_pick(halves a, halves b, bool largest)
{
    return largest ? h_max(a, b) : h_min(a, b);
}

/* The largest or smallest of a tile's bits as signed integers. */
INLINE int16_t extreme_bits(int dtype, const void *x, uint32_t columns, bool largest)
{
    const int16_t lowest = (int16_t)(dtype == BP_ROW_BF16 ? 0xff80 : 0xfc00); /* -inf, neutral among negative numbers */
    halves a = h_set(largest ? INT16_MIN : INT16_MAX), b = a;
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK) {
        a = h_pick(a, h_load(at(dtype, x, i)), largest);
        b = h_pick(b, h_load(at(dtype, x, i + BLOCK / 2)), largest);
    }
    if (i < columns) {
        unsigned rest = columns - i, first = rest < BLOCK / 2 ? rest : BLOCK / 2;
        a = h_pick(a, h_load_part(at(dtype, x, i), first, lowest), largest);
        b = h_pick(b, h_load_part(at(dtype, x, i + first), rest - first, lowest), largest);
    }
    return extreme_of(h_pick(a, b, largest), largest);
}

/* 16-bit numbers order like their bits if one is non-negative, in reverse if all are negative; half the work of fp32 vectors. NaN would
 * appear as the largest; then the tile is read again. */
INLINE float max_of_tile(int dtype, const void *x, uint32_t columns)
{
    if (dtype == BP_ROW_FP32)
        return max_of_vectors(dtype, x, columns);
    int16_t bits = extreme_bits(dtype, x, columns, true);
    bits = bits < 0 ? extreme_bits(dtype, x, columns, false) : bits;
    float max = bp_row_value(dtype, &bits, 0);
    return max != max ? max_of_vectors(dtype, x, columns) : max;
}

typedef struct tile_sums {
    quad sum, weighted, total;
} tile_sums;

/* Replaces -inf by a finite number for the product; its e is 0. */
INLINE void add_terms(quad x, vec from, const exp_scale *scale, int level, tile_sums *sums)
{
    quad d = q_less(x, from), e = exp_of_term(d, scale);
    sums->sum = q_add(sums->sum, e);
    if (level >= BP_SUMS_WEIGHTED)
        sums->weighted = q_fma(e, q_max(d, q_set(-FLT_MAX)), sums->weighted);
}

INLINE void reduce_tile(int dtype, int level, const void *x, uint32_t columns, float scale_of_row, bp_partial *partial)
{
    float max = max_of_tile(dtype, x, columns);
    vec from = v_set(max == -INFINITY ? 0 : max);
    exp_scale scale = exp_scale_of(scale_of_row);
    tile_sums sums = {q_set(0), q_set(0), q_set(0)};
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK) {
        prefetch(at(dtype, x, (uint64_t)i + AHEAD), BLOCK * size_of(dtype));
        quad block = q_load(dtype, x, i);
        add_terms(block, from, &scale, level, &sums);
        if (level >= BP_SUMS_TOTAL)
            sums.total = q_add(sums.total, block);
    }
    if (i < columns)
        add_terms(q_load_part(dtype, x, i, columns - i), from, &scale, level, &sums);
    float total = q_sum_of(sums.total);
    for (; level >= BP_SUMS_TOTAL && i < columns; i++) /* without the padding */
        total += bp_row_value(dtype, x, i);
    const float weighted = q_sum_of(sums.weighted);
    *partial = (bp_partial){max, q_sum_of(sums.sum), weighted * scale_of_row, total};
    if (isinf(weighted)) /* logits above 1e34 and such a temperature: scale before summing */
        bp_kernels_plain.tile[dtype](x, columns, scale_of_row, level, partial);
}

#define TILE(dtype)                                                                                                    \
    static void tile_##dtype(const void *x, uint32_t columns, float scale, int level, bp_partial *partial)             \
    {                                                                                                                  \
        if (level >= BP_SUMS_TOTAL)                                                                                    \
            reduce_tile(BP_ROW_##dtype, BP_SUMS_TOTAL, x, columns, scale, partial);                                    \
        else if (level >= BP_SUMS_WEIGHTED)                                                                            \
            reduce_tile(BP_ROW_##dtype, BP_SUMS_WEIGHTED, x, columns, scale, partial);                                 \
        else                                                                                                           \
            reduce_tile(BP_ROW_##dtype, BP_SUMS_PLAIN, x, columns, scale, partial);                                    \
    }
TILE(FP32)
TILE(BF16)
TILE(FP16)

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

/* e (factor + inner (energy - d scale)) + everywhere; `factor` and `inner` include scale and the vocabulary's sum. */
typedef struct row_factors {
    vec max, scale, energy, factor, inner, everywhere;
    exp_scale exp;
} row_factors;

static row_factors factors_of(const bp_row_gradient *row)
{
    double share = row->scale * exp(-(double)row->log_sum);
    return (row_factors){
        .max = v_set(row->max),
        .scale = v_set(row->scale),
        .energy = v_set(row->energy),
        .factor = v_set((float)(row->factor * share)),
        .inner = v_set((float)(row->entropy_grad * share)),
        .everywhere = v_set(row->everywhere * row->scale),
        .exp = exp_scale_of(row->scale),
    };
}

INLINE quad gradient_of(quad x, const row_factors *row, bool with_entropy)
{
    quad d = q_less(x, row->max), e = exp_of(d, &row->exp);
    if (!with_entropy)
        return q_fma_vv(e, row->factor, row->everywhere);
    /* below this e is 0, and must not be multiplied by infinity */
    quad bounded = q_max(q_times(d, row->scale), q_set(-200));
    return q_fma_qv(e, q_fma_vv(q_from(row->energy, bounded), row->inner, row->factor), row->everywhere);
}

INLINE void store(int dtype, bool streams, void *out, vec values)
{
    if (streams)
        v_stream(dtype, out, values);
    else
        v_store(dtype, out, values);
}

INLINE void q_store(int dtype, bool streams, void *out, uint64_t column, quad values)
{
    char *to = (char *)out + column * size_of(dtype);
    store(dtype, streams, to, values.a);
    store(dtype, streams, to + WIDTH * size_of(dtype), values.b);
    store(dtype, streams, to + 2 * WIDTH * size_of(dtype), values.c);
    store(dtype, streams, to + 3 * WIDTH * size_of(dtype), values.d);
}

INLINE void q_store_part(int dtype, void *out, uint64_t column, uint64_t count, quad values)
{
    char *to = (char *)out + column * size_of(dtype);
    v_store_part(dtype, to, values.a, share_of(count, 0));
    v_store_part(dtype, to + WIDTH * size_of(dtype), values.b, share_of(count, WIDTH));
    v_store_part(dtype, to + 2 * WIDTH * size_of(dtype), values.c, share_of(count, 2 * WIDTH));
    v_store_part(dtype, to + 3 * WIDTH * size_of(dtype), values.d, share_of(count, 3 * WIDTH));
}

/* Columns from `begin` to the first address that is aligned for streaming. */
INLINE uint64_t head_of(int out_dtype, const void *out, uint64_t begin, uint64_t end)
{
    uint64_t bytes = WIDTH * size_of(out_dtype), past = (uintptr_t)at(out_dtype, out, begin) % bytes;
    uint64_t head = past == 0 ? 0 : (bytes - past) / size_of(out_dtype);
    return head < end - begin ? head : end - begin;
}

INLINE void differentiate(int dtype, int out_dtype, bool with_entropy, const void *x, uint64_t begin, uint64_t end,
                          const bp_row_gradient *gradient, void *out)
{
    const row_factors row = factors_of(gradient);
    const bool streams = gradient->streams;
    uint64_t i = begin + (streams ? head_of(out_dtype, out, begin, end) : 0);
    if (i > begin)
        q_store_part(out_dtype, out, begin, i - begin,
                     gradient_of(q_load_part(dtype, x, begin, i - begin), &row, with_entropy));
    for (; i + BLOCK <= end; i += BLOCK) {
        prefetch(at(dtype, x, i) + PREFETCH_BYTES, BLOCK * size_of(dtype));
        q_store(out_dtype, streams, out, i, gradient_of(q_load_ordered(dtype, x, i), &row, with_entropy));
    }
    if (i < end)
        q_store_part(out_dtype, out, i, end - i, gradient_of(q_load_part(dtype, x, i, end - i), &row, with_entropy));
    if (streams)
        v_end_stream();
}

#define GRADIENT(dtype, out_dtype)                                                                                     \
    static void gradient_##dtype##_##out_dtype(const void *x, uint64_t begin, uint64_t end,                            \
                                               const bp_row_gradient *row, void *out)                                  \
    {                                                                                                                  \
        if (row->entropy_grad != 0)                                                                                    \
            differentiate(BP_ROW_##dtype, BP_ROW_##out_dtype, true, x, begin, end, row, out);                          \
        else                                                                                                           \
            differentiate(BP_ROW_##dtype, BP_ROW_##out_dtype, false, x, begin, end, row, out);                         \
    }
GRADIENT(FP32, FP32)
GRADIENT(FP32, BF16)
GRADIENT(FP32, FP16)
GRADIENT(BF16, FP32)
GRADIENT(BF16, BF16)
GRADIENT(BF16, FP16)
GRADIENT(FP16, FP32)
GRADIENT(FP16, BF16)
GRADIENT(FP16, FP16)

/* ---- rounding and soft cap -------------------------------------------------------------------------------------------- */

INLINE vec v_rounded(int dtype, vec x)
{
    return dtype == BP_ROW_FP32 ? x : v_of_16(dtype, v_to_16(dtype, x));
}

INLINE quad prepared(quad x, int rounding, float cap, const exp_scale *twice)
{
    x = (quad){v_rounded(rounding, x.a), v_rounded(rounding, x.b), v_rounded(rounding, x.c), v_rounded(rounding, x.d)};
    if (cap == 0)
        return x;
    const vec to = v_set(cap);
    return q_times(tanh_of((quad){x.a / to, x.b / to, x.c / to, x.d / to}, twice), to);
}

INLINE quad capped_gradient(quad gradient, quad x, float cap)
{
    const vec to = v_set(cap);
    quad u = {x.a / to, x.b / to, x.c / to, x.d / to};
    return q_mul(gradient, q_mul(q_from(v_set(1), u), q_less(u, v_set(-1))));
}

INLINE void widen_tile(int dtype, const void *x, uint32_t columns, int rounding, float cap, float *to)
{
    const exp_scale twice = exp_scale_of(2);
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK)
        q_store(BP_ROW_FP32, false, to, i, prepared(q_load_ordered(dtype, x, i), rounding, cap, &twice));
    if (i < columns)
        q_store_part(BP_ROW_FP32, to, i, columns - i,
                     prepared(q_load_part(dtype, x, i, columns - i), rounding, cap, &twice));
}

INLINE void narrow_tile(int dtype, const float *gradient, const float *x, uint32_t columns, float cap, void *to)
{
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK) {
        quad block = q_load_ordered(BP_ROW_FP32, gradient, i);
        if (cap != 0)
            block = capped_gradient(block, q_load_ordered(BP_ROW_FP32, x, i), cap);
        q_store(dtype, false, to, i, block);
    }
    if (i < columns) {
        quad block = q_load_part(BP_ROW_FP32, gradient, i, columns - i);
        if (cap != 0)
            block = capped_gradient(block, q_load_part(BP_ROW_FP32, x, i, columns - i), cap);
        q_store_part(dtype, to, i, columns - i, block);
    }
}

/* Constant arguments in the usual case, so that its loop has no branches. */
#define WIDEN(dtype)                                                                                                   \
    static void widen_##dtype(const void *x, uint32_t columns, int rounding, float cap, float *to)                     \
    {                                                                                                                  \
        if (rounding == BP_ROW_FP32 && cap == 0)                                                                       \
            widen_tile(BP_ROW_##dtype, x, columns, BP_ROW_FP32, 0, to);                                                \
        else                                                                                                           \
            widen_tile(BP_ROW_##dtype, x, columns, rounding, cap, to);                                                 \
    }                                                                                                                  \
    static void narrow_##dtype(const float *gradient, const float *x, uint32_t columns, float cap, void *to)           \
    {                                                                                                                  \
        if (cap == 0)                                                                                                  \
            narrow_tile(BP_ROW_##dtype, gradient, x, columns, 0, to);                                                  \
        else                                                                                                           \
            narrow_tile(BP_ROW_##dtype, gradient, x, columns, cap, to);                                                \
    }
WIDEN(FP32)
WIDEN(BF16)
WIDEN(FP16)

#include "host/vector_divergence.h"

#define KERNELS(its_name, its_bit)                                                                                     \
    {                                                                                                                  \
        .name = (its_name), .bit = (its_bit), .tile = {tile_FP32, tile_BF16, tile_FP16},                               \
        .gradient =                                                                                                    \
            {                                                                                                          \
                {gradient_FP32_FP32, gradient_FP32_BF16, gradient_FP32_FP16},                                          \
                {gradient_BF16_FP32, gradient_BF16_BF16, gradient_BF16_FP16},                                          \
                {gradient_FP16_FP32, gradient_FP16_BF16, gradient_FP16_FP16},                                          \
            },                                                                                                         \
        .widen = {widen_FP32, widen_BF16, widen_FP16}, .narrow = {narrow_FP32, narrow_BF16, narrow_FP16},              \
        .divergence = vector_divergence, .divergence_gradient = vector_divergence_gradient,                            \
    }
