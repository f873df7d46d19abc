/* The vector kernels, for one kind of vectors: included once, after the header of those, by avx2.c and avx512.c.
 *
 * A tile's largest element comes first, then, while the tile is still in the first cache and the next is on its way there, the sum.
 * Columns go to lanes by their number alone. */
#include <float.h>
#include <math.h>

#include "logprob/host/values.h"

#include <bucketpool/logprob.h>

#define BLOCK (4u * WIDTH) /* columns of a round */
#define LINE 64u
#define PREFETCH_BYTES 4096u /* ahead of what is differentiated */

INLINE uint64_t size_of(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

INLINE const char *at(int dtype, const void *x, uint64_t column)
{
    return (const char *)x + column * size_of(dtype);
}

INLINE void prefetch(const char *from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += LINE)
        _mm_prefetch(from + i, _MM_HINT_T0);
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

/* exp(d scale): 2^n 2^f with n whole and f in [-1/2, 1/2]. 0 where that is less than the least normal number; NaN stays NaN. The
 * polynomial is Remez's of least relative error with 1 and an fp32 for its first two coefficients, the others rounded to fp32: 6.4e-9 off. */
INLINE vec exp_of(vec d, const exp_scale *scale)
{
    vec t = v_mul(d, scale->high), n = v_round(t);
    vec f = v_fma(d, scale->low, v_fms(d, scale->high, n));
    vec p = v_fma(v_set(0x1.4862e8p-13f), f, v_set(0x1.5fe1a6p-10f));
    p = v_fma(p, f, v_set(0x1.3b2508p-7f));
    p = v_fma(p, f, v_set(0x1.c6ad6ep-5f));
    p = v_fma(p, f, v_set(0x1.ebfbe6p-3f));
    p = v_fma(p, f, v_set(0x1.62e432p-1f));
    p = v_fma(p, f, v_set(1));
    return v_scale(p, n, t, v_set(-126));
}

/* ---- a tile -------------------------------------------------------------------------------------------------------- */

typedef struct quad {
    vec a, b, c, d;
} quad;

INLINE quad quad_set(float value)
{
    return (quad){v_set(value), v_set(value), v_set(value), v_set(value)};
}

INLINE quad load_block(int dtype, const void *x, uint64_t column)
{
    quad block;
    v_load_two(dtype, at(dtype, x, column), &block.a, &block.b);
    v_load_two(dtype, at(dtype, x, column + BLOCK / 2), &block.c, &block.d);
    return block;
}

INLINE vec load_rest(int dtype, const void *x, uint64_t column, uint64_t end)
{
    return end - column < WIDTH ? v_load_part(dtype, at(dtype, x, column), (unsigned)(end - column))
                                : v_load(dtype, at(dtype, x, column));
}

/* NaN is left to the sums. */
INLINE float max_of_tile(int dtype, const void *x, uint32_t columns)
{
    quad max = quad_set(-INFINITY);
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK) {
        quad block = load_block(dtype, x, i);
        max.a = v_max(block.a, max.a);
        max.b = v_max(block.b, max.b);
        max.c = v_max(block.c, max.c);
        max.d = v_max(block.d, max.d);
    }
    for (; i < columns; i += WIDTH)
        max.a = v_max(load_rest(dtype, x, i, columns), max.a);
    return v_max_of(v_max(v_max(max.a, max.b), v_max(max.c, max.d)));
}

/* Adds the terms of one vector. What is -inf is made finite for the product: its e is 0. */
INLINE void add_terms(vec x, vec from, const exp_scale *scale, bool with_entropy, vec *sum, vec *weighted)
{
    vec d = v_sub(x, from), e = exp_of(d, scale);
    *sum = v_add(*sum, e);
    if (with_entropy)
        *weighted = v_fma(e, v_max(d, v_set(-FLT_MAX)), *weighted);
}

INLINE float sum_of(const quad *q)
{
    return v_sum_of(v_add(v_add(q->a, q->b), v_add(q->c, q->d)));
}

INLINE void reduce_tile(int dtype, bool with_entropy, const void *x, uint32_t columns, float scale_of_row,
                        bp_partial *partial)
{
    float max = max_of_tile(dtype, x, columns);
    vec from = v_set(max == -INFINITY ? 0 : max);
    exp_scale scale = exp_scale_of(scale_of_row);
    quad sum = quad_set(0), weighted = quad_set(0);
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK) {
        prefetch(at(dtype, x, (uint64_t)i + BP_TILE_COLUMNS), BLOCK * size_of(dtype));
        quad block = load_block(dtype, x, i);
        add_terms(block.a, from, &scale, with_entropy, &sum.a, &weighted.a);
        add_terms(block.b, from, &scale, with_entropy, &sum.b, &weighted.b);
        add_terms(block.c, from, &scale, with_entropy, &sum.c, &weighted.c);
        add_terms(block.d, from, &scale, with_entropy, &sum.d, &weighted.d);
    }
    for (; i < columns; i += WIDTH)
        add_terms(load_rest(dtype, x, i, columns), from, &scale, with_entropy, &sum.a, &weighted.a);
    partial->max = max;
    partial->sum = sum_of(&sum);
    partial->weighted = sum_of(&weighted) * scale_of_row;
}

#define TILE(dtype)                                                                                                    \
    static void tile_##dtype(const void *x, uint32_t columns, float scale, bool with_entropy, bp_partial *partial)     \
    {                                                                                                                  \
        if (with_entropy)                                                                                              \
            reduce_tile(BP_ROW_##dtype, true, x, columns, scale, partial);                                             \
        else                                                                                                           \
            reduce_tile(BP_ROW_##dtype, false, x, columns, scale, partial);                                            \
    }
TILE(FP32)
TILE(BF16)
TILE(FP16)

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

/* e (factor + inner (energy - d scale)): scale and the whole vocabulary's sum are in `factor` and `inner`. */
typedef struct row_factors {
    vec max, scale, energy, factor, inner;
    exp_scale exp;
} row_factors;

static row_factors factors_of(const bp_row_gradient *row)
{
    double share = row->scale * exp(-(double)row->log_sum);
    return (row_factors){
        .max = v_set(row->max),
        .scale = v_set(row->scale),
        .energy = v_set(row->energy),
        .factor = v_set((float)(-row->logprob_grad * share)),
        .inner = v_set((float)(row->entropy_grad * share)),
        .exp = exp_scale_of(row->scale),
    };
}

INLINE vec gradient_of(vec x, const row_factors *row, bool with_entropy)
{
    vec d = v_sub(x, row->max), e = exp_of(d, &row->exp);
    if (!with_entropy)
        return v_mul(e, row->factor);
    /* where d is less, e is 0, and must meet nothing infinite */
    vec bounded = v_max(v_mul(d, row->scale), v_set(-200));
    return v_mul(e, v_fma(row->inner, v_sub(row->energy, bounded), row->factor));
}

INLINE void store_rest(int dtype, void *out, uint64_t column, uint64_t count, vec values)
{
    v_store_part(dtype, (char *)out + column * size_of(dtype), values, (unsigned)count);
}

INLINE void store(int dtype, bool streams, void *out, uint64_t column, vec values)
{
    void *to = (char *)out + column * size_of(dtype);
    if (streams)
        v_stream(dtype, to, values);
    else
        v_store(dtype, to, values);
}

/* Columns from `begin` to the first whose place a vector may be streamed to. */
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
    uint64_t i = begin, head = streams ? head_of(out_dtype, out, begin, end) : 0;
    if (head > 0) {
        vec values = gradient_of(v_load_part(dtype, at(dtype, x, i), (unsigned)head), &row, with_entropy);
        store_rest(out_dtype, out, i, head, values);
        i += head;
    }
    for (; i + 2 * WIDTH <= end; i += 2 * WIDTH) {
        prefetch(at(dtype, x, i) + PREFETCH_BYTES, 2 * WIDTH * size_of(dtype));
        vec a = v_load(dtype, at(dtype, x, i)), b = v_load(dtype, at(dtype, x, i + WIDTH));
        store(out_dtype, streams, out, i, gradient_of(a, &row, with_entropy));
        store(out_dtype, streams, out, i + WIDTH, gradient_of(b, &row, with_entropy));
    }
    for (; i < end; i += WIDTH) {
        uint64_t count = end - i < WIDTH ? end - i : WIDTH;
        store_rest(out_dtype, out, i, count, gradient_of(load_rest(dtype, x, i, end), &row, with_entropy));
    }
    if (streams)
        _mm_sfence();
}

/* In place, x of the target is gone once its vector was written. */
#define GRADIENT(dtype, out_dtype)                                                                                     \
    static void gradient_##dtype##_##out_dtype(const void *x, uint64_t begin, uint64_t end,                            \
                                               const bp_row_gradient *row, void *out)                                  \
    {                                                                                                                  \
        const bool has_target = row->target >= (int64_t)begin && row->target < (int64_t)end;                           \
        float at_target = has_target ? bp_row_value(BP_ROW_##dtype, x, (uint64_t)row->target) : 0;                     \
        if (row->entropy_grad != 0)                                                                                    \
            differentiate(BP_ROW_##dtype, BP_ROW_##out_dtype, true, x, begin, end, row, out);                          \
        else                                                                                                           \
            differentiate(BP_ROW_##dtype, BP_ROW_##out_dtype, false, x, begin, end, row, out);                         \
        if (has_target)                                                                                                \
            bp_row_set(BP_ROW_##out_dtype, out, (uint64_t)row->target, bp_gradient_at_target(row, at_target));         \
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

#define KERNELS(its_name, its_bit)                                                                                     \
    {                                                                                                                  \
        .name = (its_name), .bit = (its_bit), .tile = {tile_FP32, tile_BF16, tile_FP16},                               \
        .gradient = {                                                                                                  \
            {gradient_FP32_FP32, gradient_FP32_BF16, gradient_FP32_FP16},                                              \
            {gradient_BF16_FP32, gradient_BF16_BF16, gradient_BF16_FP16},                                              \
            {gradient_FP16_FP32, gradient_FP16_BF16, gradient_FP16_FP16},                                              \
        },                                                                                                             \
    }
