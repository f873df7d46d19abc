/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on the host, in one of two ways:
 * - sgemm of BLAS: bf16 and fp16 are widened into scratch memory; fp32 is multiplied in place.
 * - a bf16 product, where the processor has one: that of BLAS, or our own (bf16.h). Hidden states, weights and gradients of logits are bf16, in place.
 * Masked hidden states are replaced by zeros in a copy. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "host/bf16.h"
#include "host/rows.h"

/* ---- rows of bf16 and fp16 as fp32 ------------------------------------------------------------------------------- */

#define BLOCK 32 /* elements; loops of constant length vectorize at every optimization level */

/* Branch-free: exponent and fraction in place are the value times 2^-112, subnormals included. */
static float widen_fp16(uint16_t bits)
{
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0;
    const float value = bp_fp32_of_bits(magnitude << 13) * 0x1p112f;
    return bp_fp32_of_bits(bp_bits_of_fp32(value) | special | (uint32_t)(bits & 0x8000u) << 16);
}

#define WIDEN(name, one)                                                                                               \
    static void name(const uint16_t *restrict from, size_t count, float *restrict to)                                  \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; i + BLOCK <= count; i += BLOCK)                                                                         \
            for (size_t k = 0; k < BLOCK; k++)                                                                         \
                to[i + k] = one(from[i + k]);                                                                          \
        for (; i < count; i++)                                                                                         \
            to[i] = one(from[i]);                                                                                      \
    }
WIDEN(widen_bf16_row, bp_fp32_of_bf16)
WIDEN(widen_fp16_row, widen_fp16)

/* Exact. `dtype`: fp32, bf16 or fp16. */
static void widen(bp_dtype dtype, const void *from, size_t count, float *to)
{
    if (dtype == BP_DTYPE_BF16)
        widen_bf16_row(from, count, to);
    else if (dtype == BP_DTYPE_FP16)
        widen_fp16_row(from, count, to);
    else
        memcpy(to, from, count * sizeof *to);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define WARM 256 /* rows and columns, enough to use all threads */

typedef struct blas {
    bp_products products;
    bp_blas library;
    bp_host_team team; /* its threads only */
    bp_ring *ring;
    bool multiplies_bf16;
    uint64_t columns_bytes; /* of the widened weight or panels, before the copies of tokens */
} blas;

/* BLAS is column-major: each matrix is passed as its transpose, and the operands are swapped. */
static void multiply(const blas *l, const bp_gemm *g, void *panels)
{
    const char *a = g->transposes_a ? "T" : "N", *b = g->transposes_b ? "T" : "N";
    const int64_t m = (int64_t)g->m, n = (int64_t)g->n, k = (int64_t)g->k;
    const float alpha = 1, beta = g->adds ? 1 : 0;
    if (!l->multiplies_bf16)
        l->library.sgemm(b, a, &n, &m, &k, &alpha, g->b.data, &g->b.stride, g->a.data, &g->a.stride, &beta, g->c.data,
                         &g->c.stride, 1, 1);
    else if (l->library.bf16_gemm != NULL)
        l->library.bf16_gemm(b, a, &n, &m, &k, &alpha, g->b.data, &g->b.stride, g->a.data, &g->a.stride, &beta,
                             g->c.data, &g->c.stride, 1, 1);
    else
        bp_bf16_multiply(l->library.bf16_kernels, &l->team, g, panels);
}

/* ---- operands in scratch memory ---------------------------------------------------------------------------------- */

/* Rows to copy into scratch memory, by all threads. */
typedef struct copying {
    const bp_matrix *from;
    uint64_t columns;
    const bp_row_mask *mask; /* NULL: no mask */
    bool widens;
    void *to;
} copying;

#define COPY_ELEMENTS 65536u /* per piece of a thread */

static void copy_rows(const void *job, uint64_t begin, uint64_t end)
{
    const copying *c = job;
    const uint64_t bytes = c->widens ? sizeof(float) : bp_dtype_bits(c->from->dtype) / 8;
    for (uint64_t row = begin; row < end; row++) {
        const void *from = bp_matrix_row(c->from, row);
        void *to = (uint8_t *)c->to + row * c->columns * bytes;
        if (c->mask != NULL && bp_token_is_masked(&c->mask->tokens, c->mask->first + row))
            memset(to, 0, c->columns * bytes);
        else if (c->widens)
            widen(c->from->dtype, from, c->columns, to);
        else
            memcpy(to, from, c->columns * bytes);
    }
}

static uint64_t rows_per_thread(uint64_t columns)
{
    return COPY_ELEMENTS / (columns + 1) + 1;
}

/* Rows as an operand: in place where their dtype is that of the product and no mask is given; otherwise copied to `scratch`, with zeros for rows
 * that the mask excludes, unless that is kept from an earlier product. */
static bp_block rows_of(const blas *b, const bp_matrix *matrix, const bp_row_mask *mask, bool is_kept, uint64_t rows,
                        uint64_t columns, void *scratch)
{
    const copying c = {matrix, columns, mask, !b->multiplies_bf16, scratch};
    if (mask == NULL && (b->multiplies_bf16 || matrix->dtype == BP_DTYPE_FP32))
        return (bp_block){matrix->data, matrix->stride};
    if (!is_kept)
        bp_host_distribute(&b->team, rows, rows_per_thread(columns), copy_rows, &c);
    return (bp_block){scratch, (int64_t)columns};
}

/* The copies of hidden states follow the weight or panels. */
static void *token_scratch(const blas *b, const bp_product_work *work)
{
    return (uint8_t *)work->scratch + b->columns_bytes +
           work->row * work->hidden * (b->multiplies_bf16 ? sizeof(uint16_t) : sizeof(float));
}

static const bp_row_mask *mask_of(const bp_product_work *work)
{
    return work->mask.tokens.mask != NULL || work->mask.tokens.ignores ? &work->mask : NULL;
}

/* ---- products, on the stream's thread --------------------------------------------------------------------------------- */

static void multiply_logits(const blas *b, const bp_product_work *w)
{
    const bp_row_mask *mask = b->multiplies_bf16 ? NULL : mask_of(w); /* the copy serves weight_grad, too */
    const bp_gemm g = {.transposes_b = true,
                       .m = w->rows,
                       .n = w->columns,
                       .k = w->hidden,
                       .adds = w->adds,
                       .keeps_b = w->keeps_weight && w->row > 0,
                       .a = rows_of(b, &w->a, mask, w->keeps_hidden, w->rows, w->hidden, token_scratch(b, w)),
                       .b = rows_of(b, &w->b, NULL, w->keeps_weight, w->columns, w->hidden, w->scratch),
                       .c = {w->c.data, w->c.stride}};
    multiply(b, &g, w->scratch);
}

static void multiply_hidden_grad(const blas *b, const bp_product_work *w)
{
    const bp_gemm g = {.m = w->rows,
                       .n = w->hidden,
                       .k = w->columns,
                       .adds = w->adds,
                       .a = {w->a.data, w->a.stride},
                       .b = rows_of(b, &w->b, NULL, w->keeps_weight, w->columns, w->hidden, w->scratch),
                       .c = {w->c.data, w->c.stride}};
    multiply(b, &g, w->scratch);
}

static void multiply_weight_grad(const blas *b, const bp_product_work *w)
{
    const bp_gemm g = {.transposes_a = true,
                       .m = w->columns,
                       .n = w->hidden,
                       .k = w->rows,
                       .adds = w->adds,
                       .a = {w->a.data, w->a.stride},
                       .b = rows_of(b, &w->b, mask_of(w), w->keeps_hidden, w->rows, w->hidden, token_scratch(b, w)),
                       .c = {w->c.data, w->c.stride}};
    multiply(b, &g, w->scratch);
}

/* Rows to round, by all threads. */
static void round_rows(const void *job, uint64_t begin, uint64_t end)
{
    const bp_product_work *w = job;
    for (uint64_t row = begin; row < end; row++) {
        const float *values = bp_matrix_row(&w->a, row);
        uint16_t *narrow = bp_matrix_row(&w->c, row);
        if (w->c.dtype == BP_DTYPE_FP32)
            memcpy(narrow, values, w->hidden * sizeof *values);
        else if (w->c.dtype == BP_DTYPE_BF16)
            for (uint64_t i = 0; i < w->hidden; i++)
                narrow[i] = bp_bf16_of_fp32(values[i]);
        else
            for (uint64_t i = 0; i < w->hidden; i++)
                narrow[i] = bp_fp16_of_fp32(values[i]);
    }
}

static void place_rows(const blas *b, const bp_product_work *w)
{
    bp_host_distribute(&b->team, w->rows, rows_per_thread(w->hidden), round_rows, w);
}

/* Runs with the head's threads, and leaves the library's setting as it was. */
static void run_with_threads(const blas *b, const bp_product_work *w,
                             void (*run)(const blas *b, const bp_product_work *w))
{
    const int before = b->library.set_threads != NULL ? b->library.set_threads((int)b->team.threads) : 0;
    run(b, w);
    if (b->library.set_threads != NULL)
        (void)b->library.set_threads(before);
}

static void run_logits(void *owner, const void *job)
{
    run_with_threads(owner, job, multiply_logits);
}

static void run_hidden_grad(void *owner, const void *job)
{
    run_with_threads(owner, job, multiply_hidden_grad);
}

static void run_weight_grad(void *owner, const void *job)
{
    run_with_threads(owner, job, multiply_weight_grad);
}

static void run_place(void *owner, const void *job)
{
    place_rows(owner, job);
}

/* ---- in stream order -------------------------------------------------------------------------------------------------- */

static bp_status blas_enqueue(bp_products *products, bp_job_function *function, const bp_product_work *work,
                              bp_stream *stream)
{
    blas *b = (blas *)products;
    return bp_ring_enqueue(b->ring, products->own, stream, function, b, work, sizeof *work);
}

static bp_status blas_logits(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return blas_enqueue(products, run_logits, work, stream);
}

static bp_status blas_hidden_grad(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return blas_enqueue(products, run_hidden_grad, work, stream);
}

static bp_status blas_weight_grad(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return blas_enqueue(products, run_weight_grad, work, stream);
}

static bp_status blas_place(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return blas_enqueue(products, run_place, work, stream);
}

static void blas_destroy(bp_products *products)
{
    blas *b = (blas *)products;
    bp_ring_destroy(&b->ring);
    free(b);
}

/* ---- creation --------------------------------------------------------------------------------------------------------- */

/* Bytes of the widened weight and of panels; then follow copies of the hidden states. */
static bool columns_bytes_of(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype, uint64_t *bytes)
{
    const uint64_t sizes[][3] = {{rows, columns, hidden}, {rows, hidden, columns}, {columns, hidden, rows}};
    uint64_t all = 0, panels;
    if (dtype != BP_DTYPE_FP32 && !bp_mul_u64(columns * sizeof(float), hidden, &all))
        return false;
    for (size_t i = 0; dtype == BP_DTYPE_BF16 && i < 3; i++) {
        if (!bp_bf16_panel_bytes(sizes[i][0], sizes[i][1], sizes[i][2], &panels))
            return false;
        all = panels > all ? panels : all;
    }
    *bytes = all;
    return true;
}

bp_status bp_products_blas_scratch(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype, uint64_t *bytes)
{
    uint64_t of_columns, of_rows;
    if (!columns_bytes_of(rows, columns, hidden, dtype, &of_columns) ||
        !bp_mul_u64(rows * sizeof(float), hidden, &of_rows) || !bp_add_u64(of_columns, of_rows, bytes))
        return bp_fail(BP_ERR_OVERFLOW, "scratch memory for %llu rows of %llu elements does not fit 64 bits",
                       (unsigned long long)rows, (unsigned long long)hidden);
    return BP_OK;
}

/* Runs a warm-up product, in which BLAS allocates its buffers and starts its threads. */
static bp_status blas_warm(blas *b)
{
    const size_t numel = (size_t)WARM * WARM;
    if (b->library.bf16_kernels != NULL)
        return BP_OK;
    float *memory = calloc(3 * numel, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory(3 * numel * sizeof *memory);
    const bp_gemm g = {.m = WARM,
                       .n = WARM,
                       .k = WARM,
                       .a = {memory, WARM},
                       .b = {memory + numel, WARM},
                       .c = {memory + 2 * numel, WARM}};
    multiply(b, &g, NULL);
    free(memory);
    return BP_OK;
}

bp_status bp_products_create_with(const bp_blas *library, uint32_t threads, uint64_t rows, uint64_t columns,
                                  uint64_t hidden, bp_dtype dtype, bp_products **products)
{
    static const bp_products_ops ops = {.destroy = blas_destroy,
                                        .logits = blas_logits,
                                        .hidden_grad = blas_hidden_grad,
                                        .weight_grad = blas_weight_grad,
                                        .place = blas_place};
    blas *b = calloc(1, sizeof *b);
    if (b == NULL)
        return bp_fail_memory(sizeof *b);
    b->library = *library;
    b->team.threads = bp_host_threads(threads);
    b->multiplies_bf16 = dtype == BP_DTYPE_BF16 && (library->bf16_gemm != NULL || library->bf16_kernels != NULL);
    b->products = (bp_products){
        .ops = &ops, .name = library->name, .gradient = b->multiplies_bf16 ? BP_DTYPE_BF16 : BP_DTYPE_FP32};
    bp_status status = bp_products_blas_scratch(rows, columns, hidden, dtype, &b->products.scratch_bytes);
    (void)columns_bytes_of(rows, columns, hidden, dtype, &b->columns_bytes);
    if (status == BP_OK)
        status = blas_warm(b);
    if (status == BP_OK)
        status = bp_ring_create(sizeof(bp_product_work), &b->ring);
    if (status != BP_OK) {
        free(b);
        return status;
    }
    *products = &b->products;
    return BP_OK;
}

bp_status bp_products_create_blas(uint32_t threads, uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype,
                                  bp_products **products)
{
    bp_blas library = {0};
    const bp_bf16_kernels *own = dtype == BP_DTYPE_BF16 ? bp_bf16_choose() : NULL;
    if (own == NULL)
        BP_TRY(bp_blas_find(&library));
    else if (!bp_blas_may_multiply_bf16() || bp_blas_find(&library) != BP_OK || library.bf16_gemm == NULL)
        library = (bp_blas){.name = own->name, .bf16_kernels = own};
    return bp_products_create_with(&library, threads, rows, columns, hidden, dtype, products);
}
