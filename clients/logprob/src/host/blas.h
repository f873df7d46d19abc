/* SPDX-License-Identifier: Apache-2.0 */
/* The BLAS library of the machine, found at run time. */
#ifndef BP_LOGPROB_HOST_BLAS_H
#define BP_LOGPROB_HOST_BLAS_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine.h"

/* The Fortran interface, which every BLAS has. Integers are passed as the address of 64 bits: libraries with integers of 32 bits read
 * their low half on little-endian machines. The last two arguments are the lengths of the strings. */
typedef void bp_sgemm_function(const char *transpose_a, const char *transpose_b, const int64_t *m, const int64_t *n,
                               const int64_t *k, const float *alpha, const float *a, const int64_t *lda, const float *b,
                               const int64_t *ldb, const float *beta, float *c, const int64_t *ldc, size_t length_a,
                               size_t length_b);
typedef void bp_bf16_gemm_function(const char *transpose_a, const char *transpose_b, const int64_t *m, const int64_t *n,
                                   const int64_t *k, const float *alpha, const uint16_t *a, const int64_t *lda,
                                   const uint16_t *b, const int64_t *ldb, const float *beta, float *c,
                                   const int64_t *ldc, size_t length_a, size_t length_b);

typedef struct bp_blas {
    const char *name; /* file name, "libopenblas.so.0"; lives as long as the process */
    bp_sgemm_function *sgemm;
    /* bf16 operands, sums in fp32. NULL: the library or the processor has none that is faster than sgemm */
    bp_bf16_gemm_function *bf16_gemm;
    const struct bp_bf16_kernels *bf16_kernels; /* of our own bf16 product, instead of that; NULL: none */
    int (*set_threads)(int threads); /* of products on the calling thread; returns the previous number. NULL: none */
} bp_blas;

/* Elements of an operand or result, whose rows are `stride` elements apart. */
typedef struct bp_block {
    void *data;
    int64_t stride;
} bp_block;

/* c = op(a) op(b), or added to c; row-major; op(a) is [m, k], op(b) [k, n]. a and b are fp32 or bf16, c fp32. */
typedef struct bp_gemm {
    bool transposes_a, transposes_b;
    uint64_t m, n, k;
    bool adds;    /* else c is not read */
    bool keeps_b; /* as in the last product with the same panels (bf16.h) */
    bp_block a, b, c;
} bp_gemm;

/* Finds a library, and loads one if the process has none. It is never unloaded, because it starts threads. BP_ERR_UNSUPPORTED: none was
 * found, with the names tried. Any thread. */
bp_status bp_blas_find(bp_blas *found);

/* True if such a library may have a bf16 product that the processor speeds up. */
bool bp_blas_may_multiply_bf16(void);

/* bp_products_create_blas with this library. */
bp_status bp_products_create_with(const bp_blas *library, uint32_t threads, uint64_t rows, uint64_t columns,
                                  uint64_t hidden, bp_dtype dtype, bp_products **products);

#endif
