/* SPDX-License-Identifier: Apache-2.0 */
/* Table of the host kernels of one instruction set, chosen once. Kernels work on one row; jobs.c distributes rows to threads. */
#ifndef BP_LOGPROB_HOST_KERNELS_H
#define BP_LOGPROB_HOST_KERNELS_H

#include <bucketpool/core/halves.h>

#include <stdbool.h>

#include "work.h"

/* Statistics and upstream gradients of a row: g of the targets with the sum G, h, z and m of bp_gradient_work. */
typedef struct bp_row_gradient {
    float max, log_sum, energy;
    float scale;
    double factor;      /* z - m - G */
    float entropy_grad; /* h */
    float everywhere;   /* m / vocab */
    bool streams;       /* non-temporal stores, for outputs larger than the caches */
} bp_row_gradient;

/* Statistics of a row and its reference. */
typedef struct bp_row_divergence {
    float max, log_sum, reference_max, reference_log_sum;
    float scale, beta;
    float upstream, kept; /* for the gradient: times scale; KL(p || m) */
} bp_row_divergence;

/* Columns are those of one tile, at most BP_TILE_COLUMNS, where `begin` and `end` are not given. Indexed by bp_row_dtype. */
typedef struct bp_host_kernels {
    const char *name;
    uint32_t bit; /* BP_KERNELS_PLAIN, ... */
    /* `level`: BP_SUMS_...; sums above it are 0. */
    void (*tile[3])(const void *x, uint32_t columns, float scale, int level, bp_partial *partial);
    /* Without the term of the targets. Indexed by the dtypes of x and out. In place (out == x) with equal dtypes or a narrower out. */
    void (*gradient[3][3])(const void *x, uint64_t begin, uint64_t end, const bp_row_gradient *row, void *out);
    /* Rounded to the dtype `rounding`, then capped (cap 0: not). */
    void (*widen[3])(const void *x, uint32_t columns, int rounding, float cap, float *to);
    /* gradient (1 - (x / cap)^2), x capped; cap 0: the gradient. */
    void (*narrow[3])(const float *gradient, const float *x, uint32_t columns, float cap, void *to);
    void (*divergence)(const float *x, const float *reference, uint32_t columns, const bp_row_divergence *row,
                       bp_divergence_sums *sums);
    /* In place: out == x. */
    void (*divergence_gradient)(const float *x, const float *reference, uint32_t columns, const bp_row_divergence *row,
                                float *out);
} bp_host_kernels;

/* Index into the tables: fp32, bf16, fp16. */
enum { BP_ROW_FP32 = 0, BP_ROW_BF16 = 1, BP_ROW_FP16 = 2 };

extern const bp_host_kernels bp_kernels_plain;
extern const bp_host_kernels bp_kernels_avx2, bp_kernels_avx512; /* x86-64 only */
extern const bp_host_kernels bp_kernels_neon;                    /* AArch64 only */

/* The fastest of `allowed` (BP_KERNELS bits) that build and machine support; plain if none. */
const bp_host_kernels *bp_kernels_choose(uint32_t allowed);

/* A row's gradient at the column of targets with the upstream gradient `g`, from its logit x: 1 - p without cancellation. */
double bp_gradient_at_target(const bp_row_gradient *row, float x, double g);

/* ---- elements of rows as fp32 and back, in portable C ------------------------------------------------------------ */

static inline float bp_row_value(int row_dtype, const void *row, uint64_t column)
{
    switch (row_dtype) {
    case BP_ROW_BF16: return bp_fp32_of_bf16(((const uint16_t *)row)[column]);
    case BP_ROW_FP16: return bp_fp32_of_fp16(((const uint16_t *)row)[column]);
    default: return ((const float *)row)[column];
    }
}

static inline void bp_row_set(int row_dtype, void *row, uint64_t column, float value)
{
    switch (row_dtype) {
    case BP_ROW_BF16: ((uint16_t *)row)[column] = bp_bf16_of_fp32(value); break;
    case BP_ROW_FP16: ((uint16_t *)row)[column] = bp_fp16_of_fp32(value); break;
    default: ((float *)row)[column] = value; break;
    }
}

#endif
