/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by BLAS or cuBLAS, and the products of a fused head. */
#ifndef BP_BENCH_COMMAND_GEMM_H
#define BP_BENCH_COMMAND_GEMM_H

#include "bench/device.h"

typedef struct bench_gemm bench_gemm;

/* Uses the library that the head loaded, `name` of bp_lm_head_info. BP_ERR_UNSUPPORTED: it is not loaded. */
bp_status bench_gemm_create_blas(const char *name, bench_gemm **gemm);
/* `workspace`: device memory, exclusive to the library. */
bp_status bench_gemm_create_cublas(const bench_device *device, void *workspace, uint64_t workspace_bytes,
                                   bench_gemm **gemm);
void bench_gemm_destroy(bench_gemm **gemm);

/* Row-major. */
typedef struct bench_matrix {
    void *data;
    bp_dtype dtype;
    int stride; /* between rows, in elements */
} bench_matrix;

/* The products of a head that processes tokens in pieces. */
typedef struct bench_products {
    bench_gemm *gemm;
    uint64_t tokens, hidden_size, vocab, piece;
    bench_matrix hidden, hidden_grad; /* of all tokens; `widened`: of a piece */
    bench_matrix weight, weight_grad;
    bench_matrix logits, logits_grad; /* of a piece */
    bool widened;
} bench_products;

/* One product per piece. */
bp_status bench_products_forward(const bench_products *p);
/* Three products per piece: logits again, and two gradients. */
bp_status bench_products_backward(const bench_products *p);

#endif
