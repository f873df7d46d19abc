/* SPDX-License-Identifier: Apache-2.0 */
/* Vector kernels of divergences, over those of vector_kernels.h, which includes this file. */
#include <math.h>

#include "host/kernels.h"

/* `y` where `x` is not 0, which includes NaN; otherwise 0. */
INLINE quad q_unless_zero(quad x, quad y)
{
    return (quad){v_where(x.a != 0, y.a), v_where(x.b != 0, y.b), v_where(x.c != 0, y.c), v_where(x.d != 0, y.d)};
}

/* `more` where `x` > 0, otherwise `less`. */
INLINE quad q_by_sign(quad x, vec more, vec less)
{
    return (quad){v_where(x.a > 0, more) + v_where(~(mask)(x.a > 0), less),
                  v_where(x.b > 0, more) + v_where(~(mask)(x.b > 0), less),
                  v_where(x.c > 0, more) + v_where(~(mask)(x.c > 0), less),
                  v_where(x.d > 0, more) + v_where(~(mask)(x.d > 0), less)};
}

/* log(1 + u) = k log 2 + log m, 1 + u = 2^k m, m in [1/sqrt 2, sqrt 2): log m = 2 s + s^3 q(s^2), s = f / (2 + f), f = m - 1 with the rounding
 * of 1 + u made good; q of minimal relative error, 3.3e-7. For u in (-1, 1]. */
INLINE vec log1p_of(vec u)
{
    const mask min = (mask)v_set(0.70710678f);
    vec a = u + 1, rest = u - (a - 1);
    mask exponent = ((mask)a - min) >> 23;
    vec k = __builtin_convertvector(exponent, vec), f = ((vec)((mask)a - (exponent << 23)) - 1) + rest;
    vec s = f / (f + 2), z = s * s;
    vec q = v_fma(v_fma(z, v_set(0x1.2f0b5cp-2f), v_set(0x1.997b3ap-2f)), z, v_set(0x1.55555cp-1f));
    return v_fma(k, v_set(0x1.62e43p-1f), v_fma(s * z, q, s + s));
}

INLINE quad q_log1p(quad u)
{
    return (quad){log1p_of(u.a), log1p_of(u.b), log1p_of(u.c), log1p_of(u.d)};
}

/* Terms as in plain.c: m relative to the larger of p and q, so one logarithm is enough, and it is 0 where they are equal. */
typedef struct divergence_terms {
    quad p, q, p_to_m, q_to_m;
} divergence_terms;

typedef struct row_constants {
    vec max, log_sum, reference_max, reference_log_sum, scale;
    vec of_p, of_q; /* shares of p and q in m */
    exp_scale one;
} row_constants;

static row_constants constants_of(const bp_row_divergence *row)
{
    return (row_constants){.max = v_set(row->max),
                           .log_sum = v_set(row->log_sum),
                           .reference_max = v_set(row->reference_max),
                           .reference_log_sum = v_set(row->reference_log_sum),
                           .scale = v_set(row->scale),
                           .of_p = v_set(1 - row->beta),
                           .of_q = v_set(row->beta),
                           .one = exp_scale_of(1)};
}

INLINE quad log_of(quad x, vec max, vec scale, vec log_sum)
{
    quad d = q_less(x, max);
    return (quad){v_fms(d.a, scale, log_sum), v_fms(d.b, scale, log_sum), v_fms(d.c, scale, log_sum),
                  v_fms(d.d, scale, log_sum)};
}

/* `kind`: 0 and 1 are the betas of plain divergences, 2 those between. */
INLINE divergence_terms divergence_of(quad x, quad reference, const row_constants *row, int kind)
{
    quad log_p = log_of(x, row->max, row->scale, row->log_sum);
    quad log_q = log_of(reference, row->reference_max, row->scale, row->reference_log_sum);
    quad ratio = q_sub(log_q, log_p);
    divergence_terms t = {exp_of(log_p, &row->one), exp_of(log_q, &row->one), q_sub(log_p, log_q), ratio};
    if (kind != 2)
        return t;
    const quad zero = q_set(0);
    quad above = q_max(ratio, zero), below = q_min(ratio, zero); /* of them, one is 0 */
    quad change = expm1_of(q_sub(below, above), &row->one);
    quad log_m = q_log1p(q_mul(q_by_sign(ratio, row->of_p, row->of_q), change));
    t.p_to_m = q_sub(q_sub(zero, above), log_m);
    t.q_to_m = q_sub(below, log_m);
    return t;
}

INLINE void add_divergence(quad x, quad reference, const row_constants *row, int kind, quad *of_p, quad *of_q)
{
    divergence_terms t = divergence_of(x, reference, row, kind);
    if (kind != 0)
        *of_p = q_add(*of_p, q_unless_zero(t.p, q_mul(t.p, t.p_to_m)));
    if (kind != 1)
        *of_q = q_add(*of_q, q_unless_zero(t.q, q_mul(t.q, t.q_to_m)));
}

INLINE void reduce_divergence(int kind, const float *x, const float *reference, uint32_t columns,
                              const bp_row_divergence *values, bp_divergence_sums *sums)
{
    const row_constants row = constants_of(values);
    quad of_p = q_set(0), of_q = q_set(0);
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK)
        add_divergence(q_load_ordered(BP_ROW_FP32, x, i), q_load_ordered(BP_ROW_FP32, reference, i), &row, kind, &of_p,
                       &of_q);
    if (i < columns)
        add_divergence(q_load_part(BP_ROW_FP32, x, i, columns - i), q_load_part(BP_ROW_FP32, reference, i, columns - i),
                       &row, kind, &of_p, &of_q);
    *sums = (bp_divergence_sums){.reference = q_sum_of(of_q), .logits = q_sum_of(of_p)};
}

INLINE int divergence_kind(float beta)
{
    return beta == 0 ? 0 : beta == 1 ? 1 : 2;
}

static void vector_divergence(const float *x, const float *reference, uint32_t columns, const bp_row_divergence *row,
                              bp_divergence_sums *sums)
{
    switch (divergence_kind(row->beta)) {
    case 0: reduce_divergence(0, x, reference, columns, row, sums); break;
    case 1: reduce_divergence(1, x, reference, columns, row, sums); break;
    default: reduce_divergence(2, x, reference, columns, row, sums); break;
    }
}

INLINE quad gradient_of_divergence(quad x, quad reference, const row_constants *row, int kind, vec upstream, vec kept)
{
    divergence_terms t = divergence_of(x, reference, row, kind);
    if (kind == 0)
        return q_times(q_sub(t.p, t.q), upstream);
    return q_times(q_unless_zero(t.p, q_mul(t.p, q_less(t.p_to_m, kept))), upstream);
}

INLINE void differentiate_divergence(int kind, const float *x, const float *reference, uint32_t columns,
                                     const bp_row_divergence *values, float *out)
{
    const row_constants row = constants_of(values);
    const vec upstream = v_set(kind == 2 ? (1 - values->beta) * values->upstream : values->upstream);
    const vec kept = v_set(values->kept);
    uint32_t i = 0;
    for (; i + BLOCK <= columns; i += BLOCK)
        q_store(BP_ROW_FP32, false, out, i,
                gradient_of_divergence(q_load_ordered(BP_ROW_FP32, x, i), q_load_ordered(BP_ROW_FP32, reference, i),
                                       &row, kind, upstream, kept));
    if (i < columns)
        q_store_part(BP_ROW_FP32, out, i, columns - i,
                     gradient_of_divergence(q_load_part(BP_ROW_FP32, x, i, columns - i),
                                            q_load_part(BP_ROW_FP32, reference, i, columns - i), &row, kind, upstream,
                                            kept));
}

static void vector_divergence_gradient(const float *x, const float *reference, uint32_t columns,
                                       const bp_row_divergence *row, float *out)
{
    switch (divergence_kind(row->beta)) {
    case 0: differentiate_divergence(0, x, reference, columns, row, out); break;
    case 1: differentiate_divergence(1, x, reference, columns, row, out); break;
    default: differentiate_divergence(2, x, reference, columns, row, out); break;
    }
}
