/* Products on the host. bf16 and fp16 are widened block by block into the scratch memory of the work: each element of a block is
 * multiplied a thousand times, so that widening it, on one thread, hardly counts beside them; and it is of fixed size. Hidden states
 * in fp32 go through it where a mask takes some out. */
#include <bucketpool/dtype.h>

#include <cblas.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "logprob/host/ring.h"
#include "logprob/host/values.h"
#include "logprob/engine.h"

/* ---- rows of bf16 and fp16 as fp32 ------------------------------------------------------------------------------- */

#define BLOCK 32 /* elements; loops of known length become vector code at every level of optimisation */

/* Without branches: exponent and fraction in place are the value times 2^-112, subnormals included. */
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
static void bp_widen(bp_dtype dtype, const void *from, size_t count, float *to)
{
    if (dtype == BP_DTYPE_BF16)
        widen_bf16_row(from, count, to);
    else if (dtype == BP_DTYPE_FP16)
        widen_fp16_row(from, count, to);
    else
        memcpy(to, from, count * sizeof *to);
}

/* Rounded to nearest, ties to even; NaN stays NaN. */
static void bp_narrow(bp_dtype dtype, const float *from, size_t count, void *to)
{
    uint16_t *halves = to;
    if (dtype == BP_DTYPE_FP32)
        memcpy(to, from, count * sizeof *from);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = dtype == BP_DTYPE_BF16 ? bp_bf16_of_fp32(from[i]) : bp_fp16_of_fp32(from[i]);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define WEIGHT_ROWS 2048u /* in one block */
#define TOKEN_ROWS 1024u
#define WARM 256 /* rows and columns of a product that all threads share */

typedef struct blas {
    bp_products products;
    bp_ring *ring;
    uint64_t weight_rows, token_rows; /* in one block */
    uint64_t weight_numel;            /* of the first block in the scratch memory: 0 where weights are not widened */
} blas;

/* ---- blocks --------------------------------------------------------------------------------------------------------- */

/* Rows of fp32, as the products take them. */
typedef struct block {
    float *data;
    int stride;
} block;

static uint64_t element_bytes(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t);
}

static void *host_products_blas_row_of(const bp_matrix *matrix, uint64_t row)
{
    return (uint8_t *)matrix->data + (int64_t)row * matrix->stride * (int64_t)element_bytes(matrix->dtype);
}

static block widened(const bp_matrix *matrix, uint64_t first, uint64_t count, uint64_t columns, float *scratch)
{
    if (matrix->dtype == BP_DTYPE_FP32)
        return (block){host_products_blas_row_of(matrix, first), (int)matrix->stride};
    for (uint64_t r = 0; r < count; r++)
        bp_widen(matrix->dtype, host_products_blas_row_of(matrix, first + r), columns, scratch + r * columns);
    return (block){scratch, (int)columns};
}

static float *token_block(const blas *b, const bp_product_work *work)
{
    return (float *)work->scratch + b->weight_numel;
}

static bool counts(const bp_row_mask *mask, uint64_t row)
{
    const uint64_t at = mask->first + row;
    return mask->data[(int64_t)(at / mask->count) * mask->batch_stride + (int64_t)(at % mask->count) * mask->stride] !=
           0;
}

/* As widened, with zeros in rows that do not count. */
static block masked(const bp_matrix *matrix, const bp_row_mask *mask, uint64_t first, uint64_t count, uint64_t columns,
                    float *scratch)
{
    if (mask->data == NULL)
        return widened(matrix, first, count, columns, scratch);
    for (uint64_t r = 0; r < count; r++) {
        if (counts(mask, first + r))
            bp_widen(matrix->dtype, host_products_blas_row_of(matrix, first + r), columns, scratch + r * columns);
        else
            memset(scratch + r * columns, 0, columns * sizeof *scratch);
    }
    return (block){scratch, (int)columns};
}

/* ---- products, on the stream's thread --------------------------------------------------------------------------------- */

static void run_logits(void *owner, void *job)
{
    const blas *b = owner;
    const bp_product_work *w = job;
    const int hidden = (int)w->hidden;
    for (uint64_t row = 0; row < w->rows; row += b->token_rows) {
        const uint64_t rows = bp_least_u64(b->token_rows, w->rows - row);
        const block states = widened(&w->a, row, rows, w->hidden, token_block(b, w));
        for (uint64_t column = 0; column < w->columns; column += b->weight_rows) {
            const uint64_t columns = bp_least_u64(b->weight_rows, w->columns - column);
            const block weight = widened(&w->b, column, columns, w->hidden, w->scratch);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns, hidden, w->alpha, states.data,
                        states.stride, weight.data, weight.stride, 0,
                        (float *)host_products_blas_row_of(&w->c, row) + column, (int)w->c.stride);
        }
    }
}

static void narrow_rows(const block *from, uint64_t rows, uint64_t columns, const bp_matrix *to, uint64_t first)
{
    for (uint64_t r = 0; r < rows; r++)
        bp_narrow(to->dtype, from->data + r * (uint64_t)from->stride, columns,
                  host_products_blas_row_of(to, first + r));
}

static void run_hidden_grad(void *owner, void *job)
{
    const blas *b = owner;
    const bp_product_work *w = job;
    const int hidden = (int)w->hidden;
    for (uint64_t row = 0; row < w->rows; row += b->token_rows) {
        const uint64_t rows = bp_least_u64(b->token_rows, w->rows - row);
        const block sum = w->c.dtype == BP_DTYPE_FP32 ? (block){host_products_blas_row_of(&w->c, row), (int)w->c.stride}
                                                      : (block){token_block(b, w), hidden};
        for (uint64_t column = 0; column < w->columns; column += b->weight_rows) {
            const uint64_t columns = bp_least_u64(b->weight_rows, w->columns - column);
            const block weight = widened(&w->b, column, columns, w->hidden, w->scratch);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, hidden, (int)columns, w->alpha,
                        (float *)host_products_blas_row_of(&w->a, row) + column, (int)w->a.stride, weight.data,
                        weight.stride, column > 0 || w->adds ? 1 : 0, sum.data, sum.stride);
        }
        if (w->c.dtype != BP_DTYPE_FP32)
            narrow_rows(&sum, rows, w->hidden, &w->c, row);
    }
}

static void run_weight_grad(void *owner, void *job)
{
    const blas *b = owner;
    const bp_product_work *w = job;
    const int hidden = (int)w->hidden;
    for (uint64_t row = 0; row < w->rows; row += b->token_rows) {
        const uint64_t rows = bp_least_u64(b->token_rows, w->rows - row);
        const block states = masked(&w->b, &w->mask, row, rows, w->hidden, token_block(b, w));
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)w->columns, hidden, (int)rows, w->alpha,
                    host_products_blas_row_of(&w->a, row), (int)w->a.stride, states.data, states.stride,
                    row > 0 || w->adds ? 1 : 0, w->c.data, (int)w->c.stride);
    }
}

static void run_place(void *owner, void *job)
{
    (void)owner;
    const bp_product_work *w = job;
    const block from = {w->a.data, (int)w->a.stride};
    narrow_rows(&from, w->rows, w->hidden, &w->c, 0);
}

/* ---- in stream order -------------------------------------------------------------------------------------------------- */

static bp_status host_products_blas_enqueue(bp_products *products, bp_job_function *function,
                                            const bp_product_work *work, bp_stream *stream)
{
    blas *b = (blas *)products;
    return bp_ring_enqueue(b->ring, stream, function, b, work, sizeof *work);
}

static bp_status host_products_blas_logits(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return host_products_blas_enqueue(products, run_logits, work, stream);
}

static bp_status host_products_blas_hidden_grad(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return host_products_blas_enqueue(products, run_hidden_grad, work, stream);
}

static bp_status host_products_blas_weight_grad(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return host_products_blas_enqueue(products, run_weight_grad, work, stream);
}

static bp_status host_products_blas_place(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return host_products_blas_enqueue(products, run_place, work, stream);
}

static void host_products_blas_destroy(bp_products *products)
{
    blas *b = (blas *)products;
    bp_ring_destroy(&b->ring);
    free(b);
}

/* ---- creation --------------------------------------------------------------------------------------------------------- */

/* BLAS makes its buffers and wakes its threads at the first product. */
static bp_status warm_up(void)
{
    float *memory = calloc((size_t)3 * WARM * WARM, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory((size_t)3 * WARM * WARM * sizeof *memory);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, WARM, WARM, WARM, 1, memory, WARM,
                memory + (size_t)WARM * WARM, WARM, 0, memory + (size_t)2 * WARM * WARM, WARM);
    free(memory);
    return BP_OK;
}

static bp_status choose_blocks(blas *b, uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype)
{
    uint64_t both, bytes;
    b->token_rows = bp_least_u64(rows, TOKEN_ROWS);
    b->weight_rows = dtype == BP_DTYPE_FP32 ? columns : bp_least_u64(columns, WEIGHT_ROWS);
    const uint64_t widened_rows = b->token_rows + (dtype == BP_DTYPE_FP32 ? 0 : b->weight_rows);
    if (!bp_mul_u64(widened_rows, hidden, &both) || !bp_mul_u64(both, sizeof(float), &bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%llu rows of %llu elements, widened, do not fit 64 bits",
                       (unsigned long long)widened_rows, (unsigned long long)hidden);
    b->weight_numel = dtype == BP_DTYPE_FP32 ? 0 : b->weight_rows * hidden;
    b->products.scratch_bytes = bytes;
    return BP_OK;
}

bp_status bp_products_create_blas(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype,
                                  bp_products **products)
{
    static const bp_products_ops ops = {.destroy = host_products_blas_destroy,
                                        .logits = host_products_blas_logits,
                                        .hidden_grad = host_products_blas_hidden_grad,
                                        .weight_grad = host_products_blas_weight_grad,
                                        .place = host_products_blas_place};
    blas *b = calloc(1, sizeof *b);
    if (b == NULL)
        return bp_fail_memory(sizeof *b);
    b->products = (bp_products){.ops = &ops, .name = "cblas", .gradient = BP_DTYPE_FP32};
    bp_status status = choose_blocks(b, rows, columns, hidden, dtype);
    if (status == BP_OK)
        status = warm_up();
    if (status == BP_OK)
        status = bp_ring_create(sizeof(bp_product_work), &b->ring);
    if (status != BP_OK) {
        free(b);
        return status;
    }
    *products = &b->products;
    return BP_OK;
}
