/* Table of the host kernels of one instruction set, chosen once. Kernels work on one row; jobs.c distributes rows to threads. */
#ifndef BP_LOGPROB_HOST_KERNELS_H
#define BP_LOGPROB_HOST_KERNELS_H

#include <stdbool.h>

#include "core/halves.h"
#include "logprob/work.h"

/* Statistics and upstream gradients of a row. */
typedef struct bp_row_gradient {
    float max, log_sum, energy;
    float scale;
    float logprob_grad, entropy_grad; /* g, h */
    int64_t target;                   /* column; outside [0, columns): not in this shard */
    bool streams;                     /* non-temporal stores, for outputs larger than the caches */
} bp_row_gradient;

typedef struct bp_host_kernels {
    const char *name;
    uint32_t bit; /* BP_KERNELS_PLAIN, ... */
    /* One tile of a row: [columns] elements at `x`, at most BP_TILE_COLUMNS. Writes max, sum and weighted, not target. Indexed by
     * bp_row_dtype. */
    void (*tile[3])(const void *x, uint32_t columns, float scale, bool with_entropy, bp_partial *partial);
    /* Columns [begin, end) of a row. Indexed by the dtypes of x and out. In place (out == x) with equal dtypes or a narrower out. */
    void (*gradient[3][3])(const void *x, uint64_t begin, uint64_t end, const bp_row_gradient *row, void *out);
} bp_host_kernels;

/* Index into the tables: fp32, bf16, fp16. */
enum { BP_ROW_FP32 = 0, BP_ROW_BF16 = 1, BP_ROW_FP16 = 2 };

extern const bp_host_kernels bp_kernels_plain;
extern const bp_host_kernels bp_kernels_avx2, bp_kernels_avx512; /* x86-64 only */

/* The fastest of `allowed` (BP_KERNELS bits) that build and machine support; plain if none. */
const bp_host_kernels *bp_kernels_choose(uint32_t allowed);

/* Element `target` of a row's gradient, from its logit x. */
float bp_gradient_at_target(const bp_row_gradient *row, float x);

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
