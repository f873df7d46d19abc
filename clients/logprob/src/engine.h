/* SPDX-License-Identifier: Apache-2.0 */
/* Device engine of the clients, in stream order: kernels, and matrix products for the fused head. Arguments are already checked. */
#ifndef BP_LOGPROB_ENGINE_H
#define BP_LOGPROB_ENGINE_H

#include <bucketpool/device.h>

#include <stdbool.h>

#include "work.h"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct bp_engine bp_engine;

typedef struct bp_engine_ops {
    void (*destroy)(bp_engine *engine); /* after all its work is done */
    bp_status (*forward)(bp_engine *engine, const bp_forward_work *work, bp_stream *stream);
    bp_status (*finish)(bp_engine *engine, const bp_finish_work *work, bp_stream *stream);
    bp_status (*gradient)(bp_engine *engine, const bp_gradient_work *work, bp_stream *stream);
    bp_status (*fused)(bp_engine *engine, const bp_fused_work *work, bp_stream *stream);
    bp_status (*divergence)(bp_engine *engine, const bp_divergence_work *work, bp_stream *stream);
    bp_status (*divergence_finish)(bp_engine *engine, const bp_divergence_finish_work *work, bp_stream *stream);
    bp_status (*divergence_gradient)(bp_engine *engine, const bp_divergence_gradient_work *work, bp_stream *stream);
    bp_status (*columns)(bp_engine *engine, const bp_columns_work *work, bp_stream *stream);
    bp_status (*range)(bp_engine *engine, const bp_range_work *work, bp_stream *stream);
    bp_status (*rearrange)(bp_engine *engine, const bp_rearrange_work *work, bp_stream *stream);
    bp_status (*sums)(bp_engine *engine, const bp_sums_work *work, bp_stream *stream);
    bp_status (*seed)(bp_engine *engine, const bp_seed_work *work, bp_stream *stream);
} bp_engine_ops;

struct bp_engine {
    const bp_engine_ops *ops;
    const char *kernels; /* "plain", "avx2", "avx512", "neon", "cuda" */
    uint32_t threads;
    bp_stream *own; /* for calls that wait for their work: on the host it runs on the caller's thread. NULL: none */
};

/* `columns`: maximum of a row. `threads`, `kernels`: as in bp_logprob_config. */
bp_status bp_engine_create_host(uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine);
/* BP_ERR_UNSUPPORTED: a build without CUDA kernels, or an unsupported GPU architecture. */
bp_status bp_engine_create_cuda(bp_device *device, bp_engine **engine);

/* ---- matrix products --------------------------------------------------------------------------------------------- */

/* Row-major, with sums in fp32. `rows` are the tokens of a piece, contiguous or with a stride. */

/* A matrix whose rows are `stride` elements apart. */
typedef struct bp_matrix {
    void *data;
    bp_dtype dtype;
    int64_t stride;
} bp_matrix;

static inline void *bp_matrix_row(const bp_matrix *of, uint64_t row)
{
    return (uint8_t *)of->data + (int64_t)row * of->stride * (int64_t)(bp_dtype_bits(of->dtype) / 8);
}

/* Mask of a piece's rows: rows where it is 0 are excluded and may hold anything. */
typedef struct bp_row_mask {
    bp_tokens_work tokens; /* of the piece; without mask and ignored targets all rows count */
    uint64_t first;        /* the token of row 0 */
} bp_row_mask;

/* One product of a piece. Hidden states are [rows, hidden], the weight [columns, hidden], logits and their gradient [rows, columns]. */
typedef struct bp_product_work {
    uint64_t rows, columns, hidden;
    bp_matrix a, b, c; /* strides fit 31 bits
                               logits = a b^T: a hidden, b weight, c logits (fp32)
                               hidden_grad = d b: a the gradient of logits, b weight, c hidden_grad (host: fp32)
                               weight_grad = d^T b: a the gradient of logits, b hidden, c weight_grad (BLAS: fp32) */
    bool adds;         /* accumulates into c; c must be fp32 */
    void *scratch;     /* scratch_bytes, aligned to 256; exclusive to this work until it is done */
    bp_row_mask
        mask; /* of the hidden states. weight_grad: NaN times 0 is NaN; logits: of masked rows they are not read */
    /* Operands equal to those of an earlier product with this scratch memory, where the host left copies: the weight of the logits; hidden states
     * and mask of the same product. `row`: of the piece, first of the copy. */
    bool keeps_weight, keeps_hidden;
    uint64_t row;
    bool joins; /* weight_grad, of products that join: more rows of the piece follow, and the last ones multiply all */
} bp_product_work;

typedef struct bp_products bp_products;

typedef struct bp_products_ops {
    void (*destroy)(bp_products *products); /* after all its work is done */
    bp_status (*logits)(bp_products *products, const bp_product_work *work, bp_stream *stream);
    bp_status (*hidden_grad)(bp_products *products, const bp_product_work *work, bp_stream *stream);
    bp_status (*weight_grad)(bp_products *products, const bp_product_work *work, bp_stream *stream);
    /* c = a, rounded once if narrower: a fp32, [rows, hidden]. NULL: unsupported */
    bp_status (*place)(bp_products *products, const bp_product_work *work, bp_stream *stream);
} bp_products_ops;

struct bp_products {
    const bp_products_ops *ops;
    const char *name;       /* file name of the library, "avx512_bf16" or "cublas" */
    bp_dtype gradient;      /* dtype of `a` in the gradient products: fp32, or the weight's dtype, narrowed in place */
    bool joins;             /* weight_grad copies rows of several matrices, or with a mask, into one */
    uint64_t scratch_bytes; /* per product */
    bp_stream *own;         /* as in bp_engine */
};

/* Products of at most `rows` tokens and `columns` of the vocabulary; all three sizes fit 31 bits. `threads`: as in bp_lm_head_config. BP_ERR_UNSUPPORTED: BLAS or cuBLAS
 * was not found, with the places searched. */
bp_status bp_products_create_blas(uint32_t threads, uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype,
                                  bp_products **products);
/* Bytes of their scratch memory, the same on every machine. */
bp_status bp_products_blas_scratch(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype, uint64_t *bytes);
/* `rows`: tokens of a weight gradient, at most; the scratch memory has copies of them after cuBLAS's own. */
#define BP_CUBLAS_BYTES                                                                                                \
    (UINT64_C(32) << 20) /* NVIDIA's recommendation for Hopper; with less, cuBLAS chooses other kernels */
bp_status bp_products_create_cublas(bp_device *device, uint64_t rows, uint64_t hidden, bp_dtype dtype,
                                    bp_products **products);

#endif
