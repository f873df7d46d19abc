/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 matrices with sums in fp32, on processors with AVX512-BF16: for PyTorch's users, whose BLAS library has none that is faster than
 * sgemm on AMD's processors. */
#ifndef BP_LOGPROB_HOST_BF16_H
#define BP_LOGPROB_HOST_BF16_H

#include <stdbool.h>
#include <stdint.h>

#include "host/blas.h"
#include "host/jobs.h"

/* Operands are copied to panels: lanes (rows of op(a), columns of op(b)) by pairs of consecutive terms. A pair is a 32-bit word, the first term in its
 * low half; pairs of a panel are [pairs][lanes]. */
#define BP_BF16_ROWS 6u     /* lanes of a panel of op(a) */
#define BP_BF16_COLUMNS 64u /* of op(b) */
#define BP_BF16_SQUARE 16u  /* lanes and pairs of a transposition */

/* One instruction set. */
typedef struct bp_bf16_kernels {
    const char *name;
    /* c = panel of a times panel of b, or added to c: its first `rows` and `columns`. */
    void (*tile)(const uint32_t *a, const uint32_t *b, uint64_t pairs, uint32_t rows, uint32_t columns, bool adds,
                 float *c, int64_t stride);
    /* A square of pairs: from rows of lanes, `stride` elements apart, to rows of pairs, `lanes` words apart. */
    void (*transpose)(const uint16_t *from, int64_t stride, uint32_t *to, uint64_t lanes);
    /* BP_BF16_COLUMNS pairs of elements of two rows. */
    void (*interleave)(const uint16_t *first, const uint16_t *second, uint32_t *to);
} bp_bf16_kernels;

extern const bp_bf16_kernels bp_bf16_plain;
extern const bp_bf16_kernels bp_bf16_avx512; /* x86-64 only */

/* NULL: the processor has no instructions for bf16. The plain kernels, for tests, are never chosen. */
const bp_bf16_kernels *bp_bf16_choose(void);

/* Bytes of the panels of a product with these sizes. False: they do not fit 64 bits. */
bool bp_bf16_panel_bytes(uint64_t m, uint64_t n, uint64_t k, uint64_t *bytes);

/* Runs with the threads of `team`; the result does not depend on their number. `panels`: bp_bf16_panel_bytes, aligned to 64. Subnormal numbers count as
 * zeros, in operands and sums (AVX512-BF16). */
void bp_bf16_multiply(const bp_bf16_kernels *kernels, const bp_host_team *team, const bp_gemm *gemm, void *panels);

#endif
