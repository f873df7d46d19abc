/* Matrix products on the host by BLAS. bf16 and fp16 are widened in blocks of fixed size into scratch memory; each element is then
 * multiplied about a thousand times, so one thread is enough. fp32 hidden states are copied only if a mask excludes some. */
#include <cblas.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "logprob/engine.h"
#include "logprob/host/jobs.h"

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

#define WEIGHT_ROWS 2048u /* per block */
#define TOKEN_ROWS 1024u
#define WARM 256 /* rows and columns, enough to use all threads */

typedef struct blas {
    bp_products products;
    bp_ring *ring;
    uint64_t weight_rows, token_rows; /* per block */
    uint64_t weight_numel;            /* of the first block in the scratch memory; 0: weights are fp32 */
} blas;

/* fp32 rows, operand of a product. */
typedef struct block {
    float *data;
    int stride;
} block;

/* Uses fp32 rows without a mask in place; otherwise widens them, with zeros for rows that `mask` excludes. NULL: no mask. */
static block rows_block(const bp_matrix *matrix, const bp_row_mask *mask, uint64_t first, uint64_t count,
                        uint64_t columns, float *scratch)
{
    if (matrix->dtype == BP_DTYPE_FP32 && mask == NULL)
        return (block){bp_matrix_row(matrix, first), (int)matrix->stride};
    for (uint64_t row = first; row < first + count; row++) {
        float *to = scratch + (row - first) * columns;
        bool counts = true;
        if (mask != NULL) {
            const uint64_t at = mask->first + row;
            const int64_t batch = (int64_t)(at / mask->count), token = (int64_t)(at % mask->count);
            counts = mask->data[batch * mask->batch_stride + token * mask->stride] != 0;
        }
        if (counts)
            widen(matrix->dtype, bp_matrix_row(matrix, row), columns, to);
        else
            memset(to, 0, columns * sizeof *to);
    }
    return (block){scratch, (int)columns};
}

static float *token_block(const blas *b, const bp_product_work *work)
{
    return (float *)work->scratch + b->weight_numel;
}

/* ---- products, on the stream's thread --------------------------------------------------------------------------------- */

static void run_logits(void *owner, void *job)
{
    const blas *b = owner;
    const bp_product_work *w = job;
    const int hidden = (int)w->hidden;
    for (uint64_t row = 0; row < w->rows; row += b->token_rows) {
        const uint64_t rows = bp_least_u64(b->token_rows, w->rows - row);
        const block states = rows_block(&w->a, NULL, row, rows, w->hidden, token_block(b, w));
        for (uint64_t column = 0; column < w->columns; column += b->weight_rows) {
            const uint64_t columns = bp_least_u64(b->weight_rows, w->columns - column);
            const block weight = rows_block(&w->b, NULL, column, columns, w->hidden, w->scratch);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns, hidden, w->alpha, states.data,
                        states.stride, weight.data, weight.stride, w->adds ? 1 : 0,
                        (float *)bp_matrix_row(&w->c, row) + column, (int)w->c.stride);
        }
    }
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static void narrow_rows(const block *from, uint64_t rows, uint64_t columns, const bp_matrix *to, uint64_t first)
{
    for (uint64_t r = 0; r < rows; r++) {
        const float *values = from->data + r * (uint64_t)from->stride;
        void *row = bp_matrix_row(to, first + r);
        uint16_t *narrow = row;
        if (to->dtype == BP_DTYPE_FP32)
            memcpy(row, values, columns * sizeof *values);
        else
            for (size_t i = 0; i < columns; i++)
                narrow[i] = to->dtype == BP_DTYPE_BF16 ? bp_bf16_of_fp32(values[i]) : bp_fp16_of_fp32(values[i]);
    }
}

static void run_hidden_grad(void *owner, void *job)
{
    const blas *b = owner;
    const bp_product_work *w = job;
    const int hidden = (int)w->hidden;
    for (uint64_t row = 0; row < w->rows; row += b->token_rows) {
        const uint64_t rows = bp_least_u64(b->token_rows, w->rows - row);
        const block sum = w->c.dtype == BP_DTYPE_FP32 ? (block){bp_matrix_row(&w->c, row), (int)w->c.stride}
                                                      : (block){token_block(b, w), hidden};
        for (uint64_t column = 0; column < w->columns; column += b->weight_rows) {
            const uint64_t columns = bp_least_u64(b->weight_rows, w->columns - column);
            const block weight = rows_block(&w->b, NULL, column, columns, w->hidden, w->scratch);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, hidden, (int)columns, w->alpha,
                        (float *)bp_matrix_row(&w->a, row) + column, (int)w->a.stride, weight.data, weight.stride,
                        column > 0 || w->adds ? 1 : 0, sum.data, sum.stride);
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
        const block states =
            rows_block(&w->b, w->mask.data != NULL ? &w->mask : NULL, row, rows, w->hidden, token_block(b, w));
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)w->columns, hidden, (int)rows, w->alpha,
                    bp_matrix_row(&w->a, row), (int)w->a.stride, states.data, states.stride, row > 0 || w->adds ? 1 : 0,
                    w->c.data, (int)w->c.stride);
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

static bp_status blas_enqueue(bp_products *products, bp_job_function *function, const bp_product_work *work,
                              bp_stream *stream)
{
    blas *b = (blas *)products;
    return bp_ring_enqueue(b->ring, stream, function, b, work, sizeof *work);
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

/* Chooses block sizes and runs a warm-up product, in which BLAS allocates its buffers and starts its threads. */
static bp_status blas_start(blas *b, uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype)
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

    const size_t numel = (size_t)WARM * WARM;
    float *memory = calloc(3 * numel, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory(3 * numel * sizeof *memory);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, WARM, WARM, WARM, 1, memory, WARM, memory + numel, WARM, 0,
                memory + 2 * numel, WARM);
    free(memory);
    return bp_ring_create(sizeof(bp_product_work), &b->ring);
}

bp_status bp_products_create_blas(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype,
                                  bp_products **products)
{
    static const bp_products_ops ops = {.destroy = blas_destroy,
                                        .logits = blas_logits,
                                        .hidden_grad = blas_hidden_grad,
                                        .weight_grad = blas_weight_grad,
                                        .place = blas_place};
    blas *b = calloc(1, sizeof *b);
    if (b == NULL)
        return bp_fail_memory(sizeof *b);
    b->products = (bp_products){.ops = &ops, .name = "cblas", .gradient = BP_DTYPE_FP32};
    bp_status status = blas_start(b, rows, columns, hidden, dtype);
    if (status != BP_OK) {
        free(b);
        return status;
    }
    *products = &b->products;
    return BP_OK;
}
