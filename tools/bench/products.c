#include "bench/products.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/gemm.h"

struct bench_products {
    bench *bench;
    const bench_shape *shape;
    uint64_t chunk; /* tokens */
    bench_gemm *gemm;
    void *logits, *wide_hidden, *wide_weight, *library;
};

/* ---- matrices of a piece --------------------------------------------------------------------------------------------------- */

static bench_matrix matrix(void *data, uint64_t row, bp_dtype dtype, uint64_t columns)
{
    uint64_t bytes = row * columns * bp_dtype_bits(dtype) / 8;
    return (bench_matrix){(uint8_t *)data + bytes, dtype, (int)columns};
}

static bench_matrix hidden_of(const bench_products *p, uint64_t first)
{
    const bench_options *o = p->bench->options;
    if (p->wide_hidden != NULL)
        return matrix(p->wide_hidden, 0, BP_DTYPE_FP32, o->head);
    return matrix(p->shape->at[TENSOR_HIDDEN], first, o->dtype, o->head);
}

static bench_matrix weight_of(const bench_products *p)
{
    const bench_options *o = p->bench->options;
    if (p->wide_weight != NULL)
        return matrix(p->wide_weight, 0, BP_DTYPE_FP32, o->head);
    return matrix(p->shape->at[TENSOR_WEIGHT], 0, o->dtype, o->head);
}

/* Behind the widened hidden states, where there are some. */
static bench_matrix hidden_grad_of(const bench_products *p, uint64_t first)
{
    const bench_options *o = p->bench->options;
    if (p->wide_hidden != NULL)
        return matrix(p->wide_hidden, p->chunk, BP_DTYPE_FP32, o->head);
    return matrix(p->shape->at[TENSOR_HIDDEN_GRAD], first, bench_gradient_dtype(o), o->head);
}

/* Narrowed in place: rows stay where they are. */
static bench_matrix logits_grad_of(const bench_products *p)
{
    bool narrow = p->gemm->gradient != BP_DTYPE_NONE && p->gemm->gradient != BP_DTYPE_FP32;
    return (bench_matrix){p->logits, narrow ? p->gemm->gradient : BP_DTYPE_FP32,
                          (int)p->shape->vocab * (narrow ? 2 : 1)};
}

/* ---- products ---------------------------------------------------------------------------------------------------------------- */

static bp_status multiply_logits(const bench_products *p, uint64_t first, int rows)
{
    int vocab = (int)p->shape->vocab, hidden = (int)p->bench->options->head;
    const bench_gemm_work work = {.m = rows,
                                  .n = vocab,
                                  .k = hidden,
                                  .a = hidden_of(p, first),
                                  .b = weight_of(p),
                                  .b_across = true,
                                  .c = matrix(p->logits, 0, BP_DTYPE_FP32, p->shape->vocab)};
    return p->gemm->ops->run(p->gemm, &work);
}

static bp_status multiply_gradients(const bench_products *p, uint64_t first, int rows)
{
    int vocab = (int)p->shape->vocab, hidden = (int)p->bench->options->head;
    const bench_gemm_work hidden_grad = {
        .m = rows, .n = hidden, .k = vocab, .a = logits_grad_of(p), .b = weight_of(p), .c = hidden_grad_of(p, first)};
    const bench_gemm_work weight_grad = {
        .m = vocab,
        .n = hidden,
        .k = rows,
        .a = logits_grad_of(p),
        .a_across = true,
        .b = hidden_of(p, first),
        .c = matrix(p->shape->at[TENSOR_WEIGHT_GRAD], 0, BP_DTYPE_FP32, p->bench->options->head),
        .adds = first > 0};
    bp_status status = p->gemm->ops->run(p->gemm, &hidden_grad);
    return status == BP_OK ? p->gemm->ops->run(p->gemm, &weight_grad) : status;
}

static bp_status forward(void *user)
{
    const bench_products *p = user;
    bp_status status = BP_OK;
    for (uint64_t first = 0; status == BP_OK && first < p->shape->seq; first += p->chunk) {
        uint64_t left = p->shape->seq - first;
        status = multiply_logits(p, first, (int)(left < p->chunk ? left : p->chunk));
    }
    return status;
}

static bp_status backward(void *user)
{
    const bench_products *p = user;
    bp_status status = BP_OK;
    for (uint64_t first = 0; status == BP_OK && first < p->shape->seq; first += p->chunk) {
        uint64_t left = p->shape->seq - first;
        int rows = (int)(left < p->chunk ? left : p->chunk);
        status = multiply_logits(p, first, rows);
        if (status == BP_OK)
            status = multiply_gradients(p, first, rows);
    }
    return status;
}

bench_work bench_products_work(bench_products *products)
{
    return (bench_work){forward, backward, products, products->bench->device.stream};
}

/* ---- making them --------------------------------------------------------------------------------------------------------------- */

static bp_status take(bench_products *p, int tensor, void **address)
{
    bench *b = p->bench;
    return bench_memory_take(&b->memory, p->shape->place, (size_t)tensor, b->device.stream, address);
}

static bp_status make_gemm(bench_products *p)
{
    const bench *b = p->bench;
    if (!b->device.cuda)
        return bench_gemm_create_cblas(&p->gemm);
    return bench_gemm_create_cublas(&b->device, b->options->ordinal, b->options->dtype, p->library, BENCH_CUBLAS_BYTES,
                                    &p->gemm);
}

static bp_status widen(bench_products *p)
{
    bench *b = p->bench;
    uint64_t hidden = b->options->head;
    bp_status status = BP_OK;
    if (p->wide_hidden != NULL)
        status = bench_fill(&b->staging, bench_hidden_pattern(), BP_DTYPE_FP32, p->chunk * hidden, p->wide_hidden);
    if (status == BP_OK && p->wide_weight != NULL)
        status = bench_fill(&b->staging, bench_weight_pattern(hidden), BP_DTYPE_FP32, p->shape->vocab * hidden,
                            p->wide_weight);
    return status;
}

static bp_status check_sizes(const bench_products *p)
{
    uint64_t vocab = p->shape->vocab, hidden = p->bench->options->head;
    if (p->chunk <= INT_MAX && vocab <= INT_MAX / 2 && hidden <= INT_MAX)
        return BP_OK;
    return bp_error_record(BP_ERR_UNSUPPORTED, "matrix products of more than 2^30 rows or columns are not compared");
}

bp_status bench_products_create(bench *b, const bench_shape *shape, uint64_t chunk, bench_products **products)
{
    bench_products *p = calloc(1, sizeof *p);
    if (p == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for matrix products");
    *p = (bench_products){.bench = b, .shape = shape, .chunk = bench_chunk_tokens(shape, chunk)};
    *products = p;
    bp_status status = check_sizes(p);
    if (status == BP_OK)
        status = take(p, TENSOR_PRODUCT, &p->logits);
    if (status == BP_OK)
        status = take(p, TENSOR_WIDE_HIDDEN, &p->wide_hidden);
    if (status == BP_OK)
        status = take(p, TENSOR_WIDE_WEIGHT, &p->wide_weight);
    if (status == BP_OK)
        status = take(p, TENSOR_LIBRARY, &p->library);
    if (status == BP_OK)
        status = make_gemm(p);
    return status == BP_OK ? widen(p) : status;
}

static void give(bench_products *p, int tensor, const void *address)
{
    bench *b = p->bench;
    if (address != NULL)
        (void)bench_memory_give(&b->memory, p->shape->place, (size_t)tensor, b->device.stream);
}

void bench_products_destroy(bench_products **products)
{
    bench_products *p = *products;
    if (p == NULL)
        return;
    if (p->gemm != NULL)
        p->gemm->ops->destroy(p->gemm);
    give(p, TENSOR_PRODUCT, p->logits);
    give(p, TENSOR_WIDE_HIDDEN, p->wide_hidden);
    give(p, TENSOR_WIDE_WEIGHT, p->wide_weight);
    give(p, TENSOR_LIBRARY, p->library);
    free(p);
    *products = NULL;
}
