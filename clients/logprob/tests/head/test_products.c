/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of the fused head against plain fp64 loops: BLAS on the host, cuBLAS on a GPU or on the emulated driver. Arguments: on the
 * host with a bf16 product, "bf16" of BLAS, "plain" and "avx512_bf16" our own; "without": a machine without cuBLAS. */
#include "support/harness.h"

#include <bucketpool/cuda.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devices/device.h"
#include "host/bf16.h"
#include "matrices.h"
#include "support/brief.h"
#include "support/driver.h"
#include "support/pools.h"

/* ---- kinds ----------------------------------------------------------------------------------------------------------- */

static void *cublas_symbol(const char *name)
{
    void *symbol = NULL;
    for (int release = 12; symbol == NULL && release <= 13; release++) {
        char library[32];
        (void)snprintf(library, sizeof library, "libcublas.so.%d", release);
        void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
        symbol = handle != NULL ? dlsym(handle, name) : NULL;
    }
    return symbol;
}

static bool is_emulated(void)
{
    return driver_symbol("fake_cuda_broken") != NULL;
}

/* Skips an implementation that this build or machine may lack. */
static void __attribute__((noreturn)) skip_all(const char *reason)
{
    printf("%s\n", reason);
    fflush(stdout);
    _Exit(77);
}

static const char *bf16_product = ""; /* the argument */

static bool is_argument(const char *name)
{
    return strcmp(bf16_product, name) == 0;
}

static double widened(uint16_t bf16)
{
    const uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Sums in fp64, so that errors are those of the operands. */
static void multiply_bf16(const char *transpose_a, const char *transpose_b, const int64_t *m, const int64_t *n,
                          const int64_t *k, const float *alpha, const uint16_t *a, const int64_t *lda,
                          const uint16_t *b, const int64_t *ldb, const float *beta, float *c, const int64_t *ldc,
                          size_t length_a, size_t length_b)
{
    assert_true(length_a == 1 && length_b == 1);
    for (int64_t column = 0; column < *n; column++)
        for (int64_t row = 0; row < *m; row++) {
            double sum = 0;
            for (int64_t i = 0; i < *k; i++) {
                const int64_t at_a = *transpose_a == 'T' ? i + row * *lda : row + i * *lda;
                const int64_t at_b = *transpose_b == 'T' ? column + i * *ldb : i + column * *ldb;
                sum += widened(a[at_a]) * widened(b[at_b]);
            }
            float *to = &c[row + column * *ldc];
            *to = (float)(*alpha * sum + (*beta != 0 ? *beta * (double)*to : 0));
        }
}

static bp_status new_host_products(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype,
                                   bp_products **products)
{
    bp_blas library;
    bp_status status = bp_blas_find(&library);
    if (status != BP_OK)
        return status;
    library.bf16_gemm = is_argument("bf16") ? multiply_bf16 : NULL;
    library.bf16_kernels = is_argument("plain") ? &bp_bf16_plain : is_argument("avx512_bf16") ? bp_bf16_choose() : NULL;
    return bp_products_create_with(&library, 2, rows, columns, hidden, dtype, products);
}

static bp_products *new_products(bp_device *device, uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype)
{
    bp_products *products = NULL;
    bp_status status = has_driver() ? bp_products_create_cublas(device, rows, hidden, dtype, &products)
                                    : new_host_products(rows, columns, hidden, dtype, &products);
    if (status == BP_ERR_UNSUPPORTED && (!has_driver() || has_real_driver()))
        skip_all(bp_error_detail());
    assert_ok(status);
    return products;
}

/* ---- one product ----------------------------------------------------------------------------------------------------- */

typedef enum product { LOGITS, HIDDEN_GRAD, WEIGHT_GRAD } product;

typedef struct task {
    product which;
    uint64_t rows, columns, hidden;
    bp_dtype dtype, result;
    bool adds;
    int runs; /* each adds, where `adds` is set */
} task;

static bp_status run_product(bp_products *products, product which, const bp_product_work *work, bp_stream *stream)
{
    switch (which) {
    case LOGITS: return products->ops->logits(products, work, stream);
    case HIDDEN_GRAD: return products->ops->hidden_grad(products, work, stream);
    default: return products->ops->weight_grad(products, work, stream);
    }
}

/* Rows and columns of c, and terms per sum. */
static void shape_of(const task *t, uint64_t shape[3])
{
    shape[0] = t->which == WEIGHT_GRAD ? t->columns : t->rows;
    shape[1] = t->which == LOGITS ? t->columns : t->hidden;
    shape[2] = t->which == LOGITS ? t->hidden : t->which == HIDDEN_GRAD ? t->columns : t->rows;
}

static double term(const task *t, const sheet *a, const sheet *b, uint64_t row, uint64_t column, uint64_t i)
{
    switch (t->which) {
    case LOGITS: return element(a, row, i) * element(b, column, i);
    case HIDDEN_GRAD: return element(a, row, i) * element(b, i, column);
    default: return element(a, i, row) * element(b, i, column);
    }
}

static double rounding_of(bp_dtype dtype)
{
    return dtype == BP_DTYPE_BF16 ? 0x1p-8 : dtype == BP_DTYPE_FP16 ? 0x1p-11 : 0x1p-24;
}

static void check_result(const task *t, const sheet *a, const sheet *b, const sheet *c, const uint8_t *after)
{
    uint64_t shape[3];
    const uint64_t size = bytes_of(c->matrix.dtype), stride = (uint64_t)c->matrix.stride;
    shape_of(t, shape);
    for (uint64_t row = 0; row < shape[0]; row++)
        for (uint64_t column = 0; column < shape[1]; column++) {
            double sum = 0, magnitude = 0;
            for (uint64_t i = 0; i < shape[2]; i++) {
                const double part = term(t, a, b, row, column, i);
                sum += part;
                magnitude += fabs(part);
            }
            const double before = t->adds ? element(c, row, column) : 0;
            const double wanted = t->runs * sum + before;
            const double got = value_at(c->matrix.dtype, after, row * stride + column);
            /* fp32 sums in any order, truncated or rounded; then one rounding to the dtype */
            const double allowed = ((double)shape[2] + 4) * 0x1p-23 * (t->runs * magnitude + fabs(before)) +
                                   1.01 * rounding_of(c->matrix.dtype) * fabs(wanted) + 0x1p-24;
            if (!(fabs(got - wanted) <= allowed))
                fail_msg("product %d of %llu, %llu, %llu (%s to %s): element %llu, %llu is %.9g, expected %.9g",
                         t->which, (unsigned long long)t->rows, (unsigned long long)t->columns,
                         (unsigned long long)t->hidden, bp_dtype_name(t->dtype), bp_dtype_name(t->result),
                         (unsigned long long)row, (unsigned long long)column, got, wanted);
        }
    for (uint64_t row = 0; row + 1 < shape[0]; row++) /* gaps between rows */
        assert_memory_equal(after + (row * stride + shape[1]) * size, c->host + (row * stride + shape[1]) * size,
                            (stride - shape[1]) * size);
}

/* Operands and result of a task. */
typedef struct setting {
    sheet a, b, c;
    void *scratch;
    uint64_t scratch_bytes;
    bp_product_work work;
} setting;

/* Gradients of logits are in the memory of fp32 logits, with their row distance. */
static setting set_up(const desk *d, const bp_products *products, const task *t)
{
    uint64_t shape[3];
    setting s = {.scratch_bytes = products->scratch_bytes};
    const bp_dtype gradient = products->gradient;
    const uint64_t apart = gradient == BP_DTYPE_FP32 ? 1 : 2;
    shape_of(t, shape);
    s.a = t->which == LOGITS ? new_sheet(d, t->rows, t->hidden, t->hidden + 3, t->dtype)
                             : new_sheet(d, t->rows, t->columns, t->columns * apart, gradient);
    s.b = t->which == WEIGHT_GRAD ? new_sheet(d, t->rows, t->hidden, t->hidden + 5, t->dtype)
                                  : new_sheet(d, t->columns, t->hidden, t->hidden + 1, t->dtype);
    s.c = new_sheet(d, shape[0], shape[1], shape[1] + 2, t->result);
    if (s.scratch_bytes > 0)
        assert_ok(bp_device_allocate(d->device, s.scratch_bytes, d->stream, &s.scratch));
    s.work = (bp_product_work){.rows = t->rows,
                               .columns = t->columns,
                               .hidden = t->hidden,
                               .a = s.a.matrix,
                               .b = s.b.matrix,
                               .c = s.c.matrix,
                               .adds = t->adds,
                               .scratch = s.scratch};
    return s;
}

static void tear_down(const desk *d, setting *s)
{
    if (s->scratch_bytes > 0)
        assert_ok(bp_device_free(d->device, s->scratch, s->scratch_bytes, d->stream));
    end_sheet(d, &s->a);
    end_sheet(d, &s->b);
    end_sheet(d, &s->c);
}

/* Correct, with equal bits in a second run. */
static void try_task(const desk *d, const task *t)
{
    bp_products *products = new_products(d->device, t->rows, t->columns, t->hidden, t->dtype);
    setting s = set_up(d, products, t);
    uint8_t *first = malloc(s.c.bytes), *second = malloc(s.c.bytes);
    assert_non_null(first);
    assert_non_null(second);
    assert_ok(run_product(products, t->which, &s.work, d->stream));
    download(d, &s.c, first);
    check_result(t, &s.a, &s.b, &s.c, first);
    upload(d, &s.c);
    assert_ok(run_product(products, t->which, &s.work, d->stream));
    download(d, &s.c, second);
    assert_memory_equal(first, second, s.c.bytes);
    free(first);
    free(second);
    tear_down(d, &s);
    products->ops->destroy(products);
}

static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};

TEST(test_products)
{
    static const uint64_t shapes[][3] = {{1, 1, 1},     {1, 17, 5},    {7, 5, 3},      {2, 1, 9},
                                         {33, 130, 64}, {40, 211, 96}, {1030, 2100, 2}};
    desk d = new_desk();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < 3; j++)
            for (int which = LOGITS; which <= WEIGHT_GRAD; which++)
                for (int variant = 0; variant < 3; variant++) {
                    task t = {(product)which, shapes[i][0],  shapes[i][1], shapes[i][2],
                              dtypes[j],      BP_DTYPE_FP32, false,        1};
                    if (variant == 1 && which != LOGITS)
                        t.adds = true;
                    if (variant == 2 && which == HIDDEN_GRAD && has_driver())
                        t.result = dtypes[j];
                    if (shapes[i][0] < 1000 || (variant == 2 && !in_brief()))
                        try_task(&d, &t);
                }
    end_desk(&d);
}

/* The result's previous contents matter only when accumulating. */
TEST(test_result_is_not_read)
{
    desk d = new_desk();
    const task t = {WEIGHT_GRAD, 5, 6, 7, BP_DTYPE_BF16, BP_DTYPE_FP32, false, 1};
    bp_products *products = new_products(d.device, t.rows, t.columns, t.hidden, t.dtype);
    setting s = set_up(&d, products, &t);
    memset(s.c.host, 0xff, s.c.bytes); /* NaN */
    upload(&d, &s.c);
    uint8_t *after = malloc(s.c.bytes);
    assert_non_null(after);
    assert_ok(run_product(products, t.which, &s.work, d.stream));
    download(&d, &s.c, after);
    check_result(&t, &s.a, &s.b, &s.c, after);
    free(after);
    tear_down(&d, &s);
    products->ops->destroy(products);
    end_desk(&d);
}

/* A mask over batches of COUNT rows, starting in the middle of one. */
#define COUNT 100u
#define MASK_STRIDE 2
#define MASK_BATCH (COUNT * MASK_STRIDE + 7)
#define FIRST 95u

static bool counts(uint64_t row)
{
    return (row * 7 + row / 9) % 3 != 0;
}

static void fill_mask(uint8_t *mask, uint64_t bytes, uint64_t rows)
{
    memset(mask, 0x55, bytes); /* between the mask's bytes */
    for (uint64_t row = 0; row < rows; row++)
        mask[(row + FIRST) / COUNT * MASK_BATCH + (row + FIRST) % COUNT * MASK_STRIDE] = counts(row);
}

/* Masked hidden states are NaN, and their gradients zero. */
static void take_out(const desk *d, setting *s)
{
    for (uint64_t row = 0; row < s->b.rows; row++) {
        if (counts(row))
            continue;
        memset(s->b.host + row * (uint64_t)s->b.matrix.stride * bytes_of(s->b.matrix.dtype), 0xff,
               s->b.columns * bytes_of(s->b.matrix.dtype));
        memset(s->a.host + row * (uint64_t)s->a.matrix.stride * bytes_of(s->a.matrix.dtype), 0,
               s->a.columns * bytes_of(s->a.matrix.dtype));
    }
    upload(d, &s->a);
    upload(d, &s->b);
}

/* Operands of the reference: zeros in masked rows. */
static void zero_out(const setting *s)
{
    for (uint64_t row = 0; row < s->b.rows; row++)
        if (!counts(row))
            memset(s->b.host + row * (uint64_t)s->b.matrix.stride * bytes_of(s->b.matrix.dtype), 0,
                   s->b.columns * bytes_of(s->b.matrix.dtype));
}

static void try_mask(const desk *d, const task *t)
{
    bp_products *products = new_products(d->device, t->rows, t->columns, t->hidden, t->dtype);
    setting s = set_up(d, products, t);
    const uint64_t bytes = ((t->rows + FIRST) / COUNT + 1) * MASK_BATCH;
    uint8_t *mask = malloc(bytes), *after = malloc(s.c.bytes);
    void *address;
    assert_non_null(mask);
    assert_non_null(after);
    fill_mask(mask, bytes, t->rows);
    take_out(d, &s);
    assert_ok(bp_device_allocate(d->device, bytes, d->stream, &address));
    assert_ok(bp_stream_copy(d->stream, address, mask, bytes));
    assert_ok(bp_stream_synchronize(d->stream));
    s.work.mask = (bp_row_mask){
        .tokens = {.sequence = COUNT, .mask = address, .mask_batch_stride = MASK_BATCH, .mask_stride = MASK_STRIDE},
        .first = FIRST};
    bp_status status = run_product(products, t->which, &s.work, d->stream);
    if (products->ops->place == NULL) {
        assert_int_equal(status, BP_ERR_UNSUPPORTED);
        assert_non_null(strstr(bp_error_detail(), "CUDA kernels"));
    } else {
        assert_ok(status);
        download(d, &s.c, after);
        zero_out(&s);
        check_result(t, &s.a, &s.b, &s.c, after);
    }
    assert_ok(bp_device_free(d->device, address, bytes, d->stream));
    free(mask);
    free(after);
    tear_down(d, &s);
    products->ops->destroy(products);
}

TEST(test_masked_rows)
{
    desk d = new_desk();
    for (size_t j = 0; j < 3; j++)
        for (int adds = 0; adds < 2; adds++) {
            try_mask(&d, &(task){WEIGHT_GRAD, 7, 5, 3, dtypes[j], BP_DTYPE_FP32, adds != 0, 1});
            try_mask(&d, &(task){WEIGHT_GRAD, 1030, 9, 140, dtypes[j], BP_DTYPE_FP32, adds != 0, 1});
        }
    end_desk(&d);
}

/* fp32 unchanged, or rounded once to a narrower dtype. */
TEST(test_place)
{
    desk d = new_desk();
    const char *emulated = getenv("FAKE_CUDA");
    const bool has_kernels = emulated != NULL && strstr(emulated, "kernels=") != NULL;
    for (size_t j = 0; j < 3; j++) {
        bp_products *products = new_products(d.device, 9, 4, 213, dtypes[j]);
        sheet a = new_sheet(&d, 9, 213, 214, BP_DTYPE_FP32), c = new_sheet(&d, 9, 213, 217, dtypes[j]);
        const bp_product_work work = {.rows = 9, .hidden = 213, .a = a.matrix, .c = c.matrix};
        assert_true(products->ops->place != NULL || (has_driver() && (!has_kernels || !is_emulated())));
        if (products->ops->place != NULL) {
            assert_ok(products->ops->place(products, &work, d.stream));
            download(&d, &c, c.host);
            for (uint64_t r = 0; r < 9; r++)
                for (uint64_t i = 0; i < 213; i++)
                    assert_true(fabs(element(&a, r, i) - element(&c, r, i)) <=
                                (j == 0 ? 0 : rounding_of(dtypes[j])) * fabs(element(&a, r, i)));
        }
        end_sheet(&d, &a);
        end_sheet(&d, &c);
        products->ops->destroy(products);
    }
    end_desk(&d);
}

/* Sizes around those of panels and blocks, with tokens in two parts: the second one keeps the weight. */
TEST(test_random_shapes)
{
    if (has_driver())
        return;
    srand(7);
    desk d = new_desk();
    for (int i = 0; i < (in_brief() ? 3 : 10); i++) {
        const uint64_t rows = 1 + (uint64_t)rand() % 190, columns = 1 + (uint64_t)rand() % 330;
        const task all = {LOGITS,        rows,          columns,    1 + (uint64_t)rand() % 700,
                          BP_DTYPE_BF16, BP_DTYPE_FP32, i % 2 != 0, 1};
        for (int which = HIDDEN_GRAD; which <= WEIGHT_GRAD; which++) {
            task t = all;
            t.which = (product)which;
            try_task(&d, &t);
        }
        bp_products *products = new_products(d.device, rows, columns, all.hidden, all.dtype);
        setting s = set_up(&d, products, &all);
        uint8_t *after = malloc(s.c.bytes);
        assert_non_null(after);
        for (uint64_t row = 0; row < rows; row += s.work.rows) {
            s.work.rows = row == 0 ? rows - rows / 2 : rows / 2;
            s.work.a.data = bp_matrix_row(&s.a.matrix, row);
            s.work.c.data = bp_matrix_row(&s.c.matrix, row);
            s.work.row = row;
            s.work.keeps_weight = row > 0;
            assert_ok(run_product(products, LOGITS, &s.work, d.stream));
        }
        download(&d, &s.c, after);
        check_result(&all, &s.a, &s.b, &s.c, after);
        free(after);
        tear_down(&d, &s);
        products->ops->destroy(products);
    }
    end_desk(&d);
}

/* Infinities and NaN stay in their rows, also beside the zeros that fill panels. */
TEST(test_special_numbers)
{
    static const float values[] = {1, -1.5f, 0x1p-100f, -0x1p100f, 0x1.8p127f, INFINITY, -INFINITY, NAN, 0};
    enum { ROWS = sizeof values / sizeof *values, COLUMNS = 41 };
    if (has_driver())
        return;
    desk d = new_desk();
    bp_products *products = new_products(d.device, ROWS, COLUMNS, 1, BP_DTYPE_BF16);
    const bp_dtype dtype = products->gradient;
    const sheet a = {ROWS, COLUMNS, 0, {calloc(ROWS * COLUMNS, sizeof(float)), dtype, COLUMNS}, NULL};
    uint16_t weight[COLUMNS] = {0};
    float sums[ROWS];
    void *scratch;
    assert_non_null(a.matrix.data);
    assert_ok(bp_device_allocate(d.device, products->scratch_bytes, d.stream, &scratch));
    weight[COLUMNS - 1] = 0x3f80; /* 1 */
    for (size_t row = 0; row < ROWS; row++) {
        if (dtype == BP_DTYPE_BF16)
            ((uint16_t *)bp_matrix_row(&a.matrix, row))[COLUMNS - 1] = bp_bf16_of_fp32(values[row]);
        else
            ((float *)bp_matrix_row(&a.matrix, row))[COLUMNS - 1] = values[row];
    }
    const bp_product_work work = {.rows = ROWS,
                                  .columns = COLUMNS,
                                  .hidden = 1,
                                  .a = a.matrix,
                                  .b = {weight, BP_DTYPE_BF16, 1},
                                  .c = {sums, BP_DTYPE_FP32, 1},
                                  .scratch = scratch};
    assert_ok(run_product(products, HIDDEN_GRAD, &work, d.stream));
    assert_ok(bp_stream_synchronize(d.stream));
    for (size_t row = 0; row < ROWS; row++)
        assert_true(isnan(values[row]) ? isnan(sums[row]) : sums[row] == values[row]);
    free(a.matrix.data);
    assert_ok(bp_device_free(d.device, scratch, products->scratch_bytes, d.stream));
    products->ops->destroy(products);
    end_desk(&d);
}

/* ---- streams and captures -------------------------------------------------------------------------------------------- */

#define STREAMS 3

/* Concurrent products on several streams, each with its own scratch memory. */
TEST(test_concurrent_streams)
{
    desk d[STREAMS] = {new_desk()};
    const task t = {HIDDEN_GRAD, 30, 120, 50, BP_DTYPE_BF16, has_driver() ? BP_DTYPE_BF16 : BP_DTYPE_FP32, false, 1};
    bp_products *products = new_products(d[0].device, t.rows, t.columns, t.hidden, t.dtype);
    setting s[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        d[i].device = d[0].device;
        if (i > 0)
            assert_ok(bp_stream_create(d[0].device, NULL, &d[i].stream));
        s[i] = set_up(&d[i], products, &t);
    }
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < STREAMS; i++)
            assert_ok(run_product(products, t.which, &s[i].work, d[i].stream));
    for (int i = STREAMS - 1; i >= 0; i--) {
        uint8_t *after = malloc(s[i].c.bytes);
        assert_non_null(after);
        download(&d[i], &s[i].c, after);
        check_result(&t, &s[i].a, &s[i].b, &s[i].c, after);
        free(after);
        tear_down(&d[i], &s[i]);
        if (i > 0)
            bp_stream_destroy(&d[i].stream);
    }
    products->ops->destroy(products);
    end_desk(&d[0]);
}

static uint64_t allocations(void)
{
    static const char *const names[] = {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"};
    uint64_t (*calls)(const char *);
    uint64_t sum = 0;
    *(void **)&calls = driver_symbol("fake_cuda_calls");
    for (size_t i = 0; calls != NULL && i < 3; i++)
        sum += calls(names[i]);
    return sum;
}

/* Captured once, launched three times: each launch accumulates. */
TEST(test_captured)
{
    if (!has_driver())
        return;
    desk d = new_desk();
    task t = {WEIGHT_GRAD, 20, 31, 17, BP_DTYPE_FP16, BP_DTYPE_FP32, true, 1};
    bp_products *products = new_products(d.device, t.rows, t.columns, t.hidden, t.dtype);
    setting s = set_up(&d, products, &t);
    assert_ok(run_product(products, t.which, &s.work, d.stream)); /* cuBLAS initializes lazily */
    upload(&d, &s.c);
    bp_graph *graph = NULL;
    const uint64_t before = allocations();
    assert_ok(bp_graph_begin(d.stream));
    assert_ok(run_product(products, t.which, &s.work, d.stream));
    assert_ok(bp_graph_end(d.stream, &graph));
    for (int i = 0; i < 3; i++)
        assert_ok(bp_graph_launch(graph, d.stream));
    assert_int_equal(allocations(), before);
    uint8_t *after = malloc(s.c.bytes);
    assert_non_null(after);
    download(&d, &s.c, after);
    t.runs = 3;
    check_result(&t, &s.a, &s.b, &s.c, after);
    free(after);
    bp_graph_destroy(&graph);
    tear_down(&d, &s);
    products->ops->destroy(products);
    end_desk(&d);
}

/* ---- errors ------------------------------------------------------------------------------------------------------------ */

TEST(test_refused)
{
    bp_device *host = new_host();
    bp_products *products = NULL;
    assert_fails(bp_products_create_cublas(host, 4, 4, BP_DTYPE_BF16, &products), BP_ERR_INVALID_ARGUMENT,
                 "cuda device");
    assert_fails(bp_products_create_cublas(host, 4, 4, BP_DTYPE_FP64, &products), BP_ERR_INVALID_ARGUMENT, "fp64");
    assert_null(products);
    bp_device_destroy(&host);
}

TEST(test_each_call_fails)
{
    static const struct {
        const char *function;
        int error;
        bp_status status;
        const char *words;
    } cases[] = {
        {"cublasCreate", 1, BP_ERR_DEVICE, "does not start"},
        {"cublasCreate", 3, BP_ERR_NO_DEVICE_MEMORY, "CUBLAS_STATUS_ALLOC_FAILED"},
        {"cublasSetMathMode", 7, BP_ERR_DEVICE, "sums in fp32"},
        {"cublasSetStream", 1, BP_ERR_DEVICE, "stream"},
        {"cublasSetWorkspace", 7, BP_ERR_DEVICE, "scratch"},
        {"cublasGemmEx", 15, BP_ERR_UNSUPPORTED, "a product of 4 x 6 by 6 x 5 (bf16, fp32)"},
        {"cublasGemmEx", 13, BP_ERR_DEVICE, "CUBLAS_STATUS_EXECUTION_FAILED (13)"},
    };
    bool (*fail_call)(const char *, uint64_t, int);
    uint64_t (*handles)(void);
    *(void **)&fail_call = cublas_symbol("fake_cublas_fail");
    *(void **)&handles = cublas_symbol("fake_cublas_handles");
    if (fail_call == NULL || handles == NULL)
        return;
    desk d = new_desk();
    const task t = {LOGITS, 4, 5, 6, BP_DTYPE_BF16, BP_DTYPE_FP32, false, 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bp_products *products = new_products(d.device, t.rows, t.columns, t.hidden, t.dtype), *second = NULL;
        setting s = set_up(&d, products, &t);
        assert_int_equal(handles(), 1);
        assert_true(fail_call(cases[i].function, 1, cases[i].error));
        bp_status status = bp_products_create_cublas(d.device, t.rows, t.hidden, t.dtype, &second);
        if (status == BP_OK)
            status = run_product(second, t.which, &s.work, d.stream);
        assert_int_equal(status, cases[i].status);
        if (strstr(bp_error_detail(), cases[i].words) == NULL)
            fail_msg("\"%s\" does not contain \"%s\"", bp_error_detail(), cases[i].words);
        if (second != NULL) {
            assert_ok(run_product(second, t.which, &s.work, d.stream));
            assert_ok(bp_stream_synchronize(d.stream));
            second->ops->destroy(second);
        }
        assert_int_equal(handles(), 1);
        tear_down(&d, &s);
        products->ops->destroy(products);
    }
    end_desk(&d);
}

/* A driver of CUDA 12 must not get a cuBLAS of CUDA 13. */
static void test_without_cublas(void **state)
{
    (void)state;
    if (dlopen("libcublas.so.12", RTLD_LAZY) != NULL)
        skip_all("this machine has a cuBLAS of CUDA 12");
    desk d = new_desk();
    bp_products *products = NULL;
    assert_fails(bp_products_create_cublas(d.device, 4, 4, BP_DTYPE_BF16, &products), BP_ERR_UNSUPPORTED,
                 "cuBLAS was not found", "libcublas.so.12");
    assert_null(strstr(bp_error_detail(), "so.13"));
    assert_null(products);
    end_desk(&d);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest without[] = {cmocka_unit_test(test_without_cublas)};
    if (count > 1)
        bf16_product = arguments[1];
    if (is_argument("avx512_bf16") && bp_bf16_choose() == NULL)
        skip_all("the processor has no AVX512-BF16");
    if (count > 1 && strcmp(arguments[1], "without") == 0)
        return cmocka_run_group_tests(without, NULL, NULL);
    return run_registered(NULL, NULL, NULL, NULL);
}
