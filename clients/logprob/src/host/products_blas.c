/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on the host by BLAS, in one of two ways:
 * - sgemm: bf16 and fp16 are widened into scratch memory; fp32 is multiplied in place.
 * - a bf16 product, where the processor has one: hidden states and weights in place. The gradient of the logits is split into the sum of two
 *   bf16 numbers, which leaves a relative error of 2^-16 in each element.
 * Masked hidden states are replaced by zeros in a copy. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "host/blas.h"
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

/* ---- fp32 as the sum of two bf16 numbers -------------------------------------------------------------------------- */

/* Bits of the nearest bf16 number, ties to even; NaN stays NaN. Without branches, so that loops vectorize. */
static inline uint32_t round_to_bf16(uint32_t bits)
{
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
    return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) & 0xffff0000u;
}

/* The second number is 0 beside an infinity or NaN. */
static inline void split_one(float value, uint16_t *high, uint16_t *low)
{
    const uint32_t first = round_to_bf16(bp_bits_of_fp32(value));
    const float rest = value - bp_fp32_of_bits(first);
    const uint32_t second = round_to_bf16(bp_bits_of_fp32(rest));
    *high = (uint16_t)(first >> 16);
    *low = (uint16_t)((first & 0x7f800000u) == 0x7f800000u ? 0 : second >> 16);
}

#define SPLIT(name)                                                                                                    \
    static void name(const float *restrict from, size_t count, uint16_t *restrict high, uint16_t *restrict low)        \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; i + BLOCK <= count; i += BLOCK)                                                                         \
            for (size_t k = 0; k < BLOCK; k++)                                                                         \
                split_one(from[i + k], &high[i + k], &low[i + k]);                                                     \
        for (; i < count; i++)                                                                                         \
            split_one(from[i], &high[i], &low[i]);                                                                     \
    }
SPLIT(split_plain_row)
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) SPLIT(split_avx512_row)
#endif

    typedef void split_function(const float *restrict from, size_t count, uint16_t *restrict high,
                                uint16_t *restrict low);

static split_function *choose_split(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return split_avx512_row;
#endif
    return split_plain_row;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define WARM 256 /* rows and columns, enough to use all threads */

typedef struct blas {
    bp_products products;
    bp_blas library;
    bp_host_team team; /* its threads only */
    split_function *split;
    bp_ring *ring;
    bool multiplies_bf16;
    uint64_t columns_bytes; /* of the widened weight or split gradient, before those of tokens */
} blas;

/* Elements of an operand or result. */
typedef struct block {
    void *data;
    int64_t stride;
} block;

/* c = op(a) op(b) + beta c, row-major; op(a) is [m, k], op(b) [k, n]. */
typedef struct gemm {
    bool transposes_a, transposes_b;
    uint64_t m, n, k;
    bool adds; /* beta is 1, else 0 */
    bool is_bf16;
    block a, b, c;
} gemm;

/* BLAS is column-major: each matrix is passed as its transpose, and the operands are swapped. */
static void multiply(const blas *l, const gemm *g)
{
    const char *a = g->transposes_a ? "T" : "N", *b = g->transposes_b ? "T" : "N";
    const int64_t m = (int64_t)g->m, n = (int64_t)g->n, k = (int64_t)g->k;
    const float alpha = 1, beta = g->adds ? 1 : 0;
    if (g->is_bf16)
        l->library.bf16_gemm(b, a, &n, &m, &k, &alpha, g->b.data, &g->b.stride, g->a.data, &g->a.stride, &beta,
                             g->c.data, &g->c.stride, 1, 1);
    else
        l->library.sgemm(b, a, &n, &m, &k, &alpha, g->b.data, &g->b.stride, g->a.data, &g->a.stride, &beta, g->c.data,
                         &g->c.stride, 1, 1);
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

/* Rows as an operand in fp32: without a mask fp32 stays in place; otherwise they are widened to `scratch`, with zeros for rows that the mask
 * excludes, unless that is kept from an earlier product. */
static block fp32_rows(const blas *b, const bp_matrix *matrix, const bp_row_mask *mask, bool is_kept, uint64_t rows,
                       uint64_t columns, void *scratch)
{
    if (matrix->dtype == BP_DTYPE_FP32 && mask == NULL)
        return (block){matrix->data, matrix->stride};
    const copying c = {matrix, columns, mask, true, scratch};
    if (!is_kept)
        bp_host_distribute(&b->team, rows, rows_per_thread(columns), copy_rows, &c);
    return (block){scratch, (int64_t)columns};
}

/* The copies of hidden states follow those of columns: fp32, or bf16 twice. */
static void *token_scratch(const blas *b, const bp_product_work *work)
{
    return (uint8_t *)work->scratch + b->columns_bytes + work->row * work->hidden * sizeof(float);
}

static const bp_row_mask *mask_of(const bp_product_work *work)
{
    return work->mask.tokens.mask != NULL || work->mask.tokens.ignores ? &work->mask : NULL;
}

/* fp32 rows to split. */
typedef struct splitting {
    split_function *split;
    const bp_matrix *from;
    uint64_t columns;
    uint16_t *high, *low;
} splitting;

static void split_rows(const void *job, uint64_t begin, uint64_t end)
{
    const splitting *s = job;
    for (uint64_t row = begin; row < end; row++)
        s->split(bp_matrix_row(s->from, row), s->columns, s->high + row * s->columns, s->low + row * s->columns);
}

/* The higher numbers of the gradient, followed by the lower ones. */
static block split_gradient(const blas *b, const bp_product_work *w)
{
    uint16_t *high = w->scratch;
    const splitting s = {b->split, &w->a, w->columns, high, high + w->rows * w->columns};
    if (!w->keeps_gradient)
        bp_host_distribute(&b->team, w->rows, rows_per_thread(w->columns), split_rows, &s);
    return (block){high, (int64_t)w->columns};
}

/* ---- products, on the stream's thread --------------------------------------------------------------------------------- */

static void multiply_logits(const blas *b, const bp_product_work *w)
{
    gemm g = {.transposes_b = true,
              .m = w->rows,
              .n = w->columns,
              .k = w->hidden,
              .adds = w->adds,
              .is_bf16 = b->multiplies_bf16,
              .a = {w->a.data, w->a.stride},
              .b = {w->b.data, w->b.stride},
              .c = {w->c.data, w->c.stride}};
    if (!b->multiplies_bf16) {
        g.a = fp32_rows(b, &w->a, mask_of(w), w->keeps_hidden, w->rows, w->hidden, token_scratch(b, w));
        g.b = fp32_rows(b, &w->b, NULL, w->keeps_weight, w->columns, w->hidden, w->scratch);
    }
    multiply(b, &g);
}

static void multiply_hidden_grad(const blas *b, const bp_product_work *w)
{
    gemm g = {.m = w->rows,
              .n = w->hidden,
              .k = w->columns,
              .adds = w->adds,
              .is_bf16 = b->multiplies_bf16,
              .a = {w->a.data, w->a.stride},
              .b = {w->b.data, w->b.stride},
              .c = {w->c.data, w->c.stride}};
    if (b->multiplies_bf16) {
        g.a = split_gradient(b, w);
        multiply(b, &g);
        g.a.data = (uint16_t *)g.a.data + w->rows * w->columns;
        g.adds = true;
    } else {
        g.b = fp32_rows(b, &w->b, NULL, w->keeps_weight, w->columns, w->hidden, w->scratch);
    }
    multiply(b, &g);
}

/* Hidden states twice, for both parts of the gradient. */
static block doubled_rows(const blas *b, const bp_product_work *w)
{
    uint16_t *states = token_scratch(b, w);
    const copying c = {&w->b, w->hidden, mask_of(w), false, states};
    if (!w->keeps_hidden) {
        bp_host_distribute(&b->team, w->rows, rows_per_thread(w->hidden), copy_rows, &c);
        memcpy(states + w->rows * w->hidden, states, w->rows * w->hidden * sizeof *states);
    }
    return (block){states, (int64_t)w->hidden};
}

/* In bf16 as one product of twice the terms: higher numbers, then lower ones. */
static void multiply_weight_grad(const blas *b, const bp_product_work *w)
{
    gemm g = {.transposes_a = true,
              .m = w->columns,
              .n = w->hidden,
              .k = w->rows,
              .adds = w->adds,
              .is_bf16 = b->multiplies_bf16,
              .a = {w->a.data, w->a.stride},
              .c = {w->c.data, w->c.stride}};
    if (b->multiplies_bf16) {
        g.k = 2 * w->rows;
        g.a = split_gradient(b, w);
        g.b = doubled_rows(b, w);
    } else {
        g.b = fp32_rows(b, &w->b, mask_of(w), w->keeps_hidden, w->rows, w->hidden, token_scratch(b, w));
    }
    multiply(b, &g);
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

/* Bytes of scratch memory: the widened weight or split gradient, then rows of tokens (widened, or doubled in bf16). */
static bp_status blas_scratch(blas *b, uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype)
{
    const uint64_t numel = dtype == BP_DTYPE_FP32 ? 0 : columns * (b->multiplies_bf16 ? rows : hidden); /* fits */
    uint64_t bytes;
    if (!bp_mul_u64(numel, sizeof(float), &b->columns_bytes) || !bp_mul_u64(rows * sizeof(float), hidden, &bytes) ||
        !bp_add_u64(b->columns_bytes, bytes, &b->products.scratch_bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%llu rows of %llu elements, widened, do not fit 64 bits",
                       (unsigned long long)rows, (unsigned long long)hidden);
    return BP_OK;
}

/* Runs a warm-up product, in which BLAS allocates its buffers and starts its threads. */
static bp_status blas_warm(blas *b)
{
    const size_t numel = (size_t)WARM * WARM;
    float *memory = calloc(3 * numel, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory(3 * numel * sizeof *memory);
    const gemm g = {.m = WARM,
                    .n = WARM,
                    .k = WARM,
                    .is_bf16 = b->multiplies_bf16,
                    .a = {memory, WARM},
                    .b = {memory + numel, WARM},
                    .c = {memory + 2 * numel, WARM}};
    multiply(b, &g);
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
    b->products = (bp_products){.ops = &ops, .name = library->name, .gradient = BP_DTYPE_FP32};
    b->library = *library;
    b->team.threads = bp_host_threads(threads);
    b->split = choose_split();
    b->multiplies_bf16 = dtype == BP_DTYPE_BF16 && library->bf16_gemm != NULL;
    bp_status status = blas_scratch(b, rows, columns, hidden, dtype);
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
    bp_blas library;
    BP_TRY(bp_blas_find(&library));
    return bp_products_create_with(&library, threads, rows, columns, hidden, dtype, products);
}
