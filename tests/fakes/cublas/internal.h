/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_CUBLAS_INTERNAL_H
#define FAKE_CUBLAS_INTERNAL_H

#include "fake_cublas.h"

#include <stddef.h>

/* cublasStatus_t. */
enum { OK = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

/* cudaDataType, cublasComputeType_t. */
enum { FP32 = 0, FP16 = 2, BF16 = 14 };
enum { SUMS_FP32 = 68, SUMS_FP32_PEDANTIC = 69 };

typedef struct matrix {
    void *data;
    int type;
    int64_t leading;
} matrix;

typedef struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    float alpha, beta;
    matrix a, b, c;
    void *workspace;
    size_t workspace_bytes;
} product;

/* In stream order. Returns a status. */
int enqueue_product(const product *p, void *stream);

#endif
