/* Products on cuda devices, by cuBLAS. It has columns next to each other where these matrices have rows, so that each matrix is its own
 * transpose there, and products are made the other way round: c^T = b^T a^T. Hidden states of which a mask takes some out are copied first,
 * block by block. */
#include "logprob/cuda/cublas.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "devices/clients.h"
#include "logprob/cuda/rows.h"
#include "logprob/products.h"

/* ---- the library ------------------------------------------------------------------------------------------------- */

typedef struct release {
    const char *name;
    int driver_version; /* of the oldest driver that it works with */
} release;

static const release releases[] = {{"libcublas.so.13", 13000}, {"libcublas.so.12", 12000}};

#define RELEASES (sizeof releases / sizeof *releases)

/* Stays in memory once it is loaded: it has threads and handlers of its own. */
static bool open_release(const release *wanted, int driver_version, int flags, bp_cublas *cublas)
{
    if (driver_version < wanted->driver_version)
        return false;
    cublas->name = wanted->name;
    cublas->library = dlopen(wanted->name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);
    return cublas->library != NULL;
}

static bool open_any(int driver_version, int flags, bp_cublas *cublas)
{
    for (size_t i = 0; i < RELEASES; i++)
        if (open_release(&releases[i], driver_version, flags, cublas))
            return true;
    return false;
}

static bp_status cublas_look_up(bp_cublas *cublas)
{
    const struct {
        const char *name;
        size_t offset;
    } functions[] = {
        {"cublasCreate_v2", offsetof(bp_cublas, cublasCreate)},
        {"cublasDestroy_v2", offsetof(bp_cublas, cublasDestroy)},
        {"cublasSetStream_v2", offsetof(bp_cublas, cublasSetStream)},
        {"cublasSetWorkspace_v2", offsetof(bp_cublas, cublasSetWorkspace)},
        {"cublasSetMathMode", offsetof(bp_cublas, cublasSetMathMode)},
        {"cublasGemmEx", offsetof(bp_cublas, cublasGemmEx)},
        {"cublasGetStatusString", offsetof(bp_cublas, cublasGetStatusString)},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(cublas->library, functions[i].name);
        if (symbol == NULL)
            return bp_fail(BP_ERR_UNSUPPORTED, "cuBLAS (%s) has no function %s", cublas->name, functions[i].name);
        memcpy((char *)cublas + functions[i].offset, &symbol, sizeof symbol);
    }
    return BP_OK;
}

bp_status bp_cublas_open(int driver_version, bp_cublas *cublas)
{
    bp_cublas found = {0};
    if (!open_any(driver_version, RTLD_NOLOAD, &found) && !open_any(driver_version, 0, &found)) {
        const char *reason = dlerror();
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuBLAS was not found: %slibcublas.so.12 is neither loaded nor where the loader looks (%s)",
                       driver_version >= releases[0].driver_version ? "libcublas.so.13 or " : "",
                       reason != NULL ? reason : "no reason was given");
    }
    bp_status status = cublas_look_up(&found);
    if (status != BP_OK) {
        bp_cublas_close(&found);
        return status;
    }
    *cublas = found;
    return BP_OK;
}

void bp_cublas_close(bp_cublas *cublas)
{
    if (cublas->library != NULL)
        dlclose(cublas->library);
    cublas->library = NULL;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* What NVIDIA advises for Hopper; with less cuBLAS chooses other kernels. Blocks of copied rows are behind it. */
#define CUBLAS_BYTES (UINT64_C(32) << 20)
#define BLOCK_ROWS 1024u

typedef struct cublas {
    bp_products products;
    bp_device *device;
    bp_cublas library;
    void *handle;
    bp_cuda_rows *rows; /* NULL: a build, or a GPU, without kernels */
    uint64_t block_rows;
} cublas;

/* C = A B, in cuBLAS's terms: A is m x k, B is k x n. Sizes and strides fit 31 bits (products.h). */
typedef struct gemm {
    int transpose_a, transpose_b;
    uint64_t m, n, k;
    const bp_matrix *a, *b, *c;
} gemm;

/* ---- errors --------------------------------------------------------------------------------------------------------- */

static bp_status cuda_products_cublas_status_of(int error)
{
    switch (error) {
    case BP_CUBLAS_ALLOC_FAILED: return BP_ERR_NO_DEVICE_MEMORY;
    case BP_CUBLAS_ARCH_MISMATCH:
    case BP_CUBLAS_NOT_SUPPORTED: return BP_ERR_UNSUPPORTED;
    default: return BP_ERR_DEVICE;
    }
}

static bp_status cuda_products_cublas_fail(const bp_cublas *library, int error, const char *what)
{
    const char *text = library->cublasGetStatusString(error);
    return bp_fail(cuda_products_cublas_status_of(error), "cuBLAS (%s): %s: %s (%d)", library->name, what,
                   text != NULL ? text : "unknown status", error);
}

static bp_status fail_product(const cublas *c, const gemm *g, int error)
{
    char what[160];
    (void)snprintf(what, sizeof what, "a product of %llu x %llu by %llu x %llu (%s, %s)", (unsigned long long)g->n,
                   (unsigned long long)g->k, (unsigned long long)g->k, (unsigned long long)g->m,
                   bp_dtype_name(g->a->dtype), bp_dtype_name(g->c->dtype));
    return cuda_products_cublas_fail(&c->library, error, what);
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

static int cuda_products_cublas_type_of(bp_dtype dtype)
{
    switch (dtype) {
    case BP_DTYPE_FP16: return BP_CUBLAS_FP16;
    case BP_DTYPE_BF16: return BP_CUBLAS_BF16;
    default: return BP_CUBLAS_FP32;
    }
}

static int cuda_products_cublas_call(const cublas *c, const gemm *g, float alpha, float beta)
{
    const bp_cublas *library = &c->library;
    const int a = cuda_products_cublas_type_of(g->a->dtype), b = cuda_products_cublas_type_of(g->b->dtype),
              result = cuda_products_cublas_type_of(g->c->dtype);
    /* fp32 without rounding to TF32 first */
    const int sums = a == BP_CUBLAS_FP32 ? BP_CUBLAS_SUMS_FP32_PEDANTIC : BP_CUBLAS_SUMS_FP32;
    return library->cublasGemmEx(c->handle, g->transpose_a, g->transpose_b, (int)g->m, (int)g->n, (int)g->k, &alpha,
                                 g->a->data, a, (int)g->a->stride, g->b->data, b, (int)g->b->stride, &beta, g->c->data,
                                 result, (int)g->c->stride, sums, BP_CUBLAS_ANY_ALGORITHM);
}

/* The stream first: setting it takes the workspace away. With one of its own, work on other streams does not share cuBLAS's, whose use
 * would change bits from run to run, and nothing is allocated. */
static bp_status cuda_products_cublas_run(const cublas *c, const gemm *g, const bp_product_work *work, void *stream)
{
    int error = c->library.cublasSetStream(c->handle, stream);
    if (error != BP_CUBLAS_SUCCESS)
        return cuda_products_cublas_fail(&c->library, error, "choosing a stream");
    error = c->library.cublasSetWorkspace(c->handle, work->scratch, CUBLAS_BYTES);
    if (error != BP_CUBLAS_SUCCESS)
        return cuda_products_cublas_fail(&c->library, error, "giving it scratch memory");
    error = cuda_products_cublas_call(c, g, work->alpha, work->adds ? 1 : 0);
    return error == BP_CUBLAS_SUCCESS ? BP_OK : fail_product(c, g, error);
}

static bp_status cuda_products_cublas_enqueue(const cublas *c, const gemm *g, const bp_product_work *work,
                                              bp_stream *stream)
{
    bp_cuda_scope scope;
    uint64_t native;
    BP_TRY(bp_stream_native(stream, &native));
    BP_TRY(bp_cuda_enter(c->device, &scope));
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): a handle, as the driver gave it */
    bp_status status = cuda_products_cublas_run(c, g, work, (void *)(uintptr_t)native);
    bp_cuda_leave(&scope);
    return status;
}

static bp_status cuda_products_cublas_logits(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    const gemm g = {BP_CUBLAS_T, BP_CUBLAS_N, w->columns, w->rows, w->hidden, &w->b, &w->a, &w->c};
    return cuda_products_cublas_enqueue((cublas *)products, &g, w, stream);
}

static bp_status cuda_products_cublas_hidden_grad(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    const gemm g = {BP_CUBLAS_N, BP_CUBLAS_N, w->hidden, w->rows, w->columns, &w->b, &w->a, &w->c};
    return cuda_products_cublas_enqueue((cublas *)products, &g, w, stream);
}

static bp_status cuda_products_cublas_add_weight_grad(const cublas *c, const bp_product_work *w, bp_stream *stream)
{
    const gemm g = {BP_CUBLAS_N, BP_CUBLAS_T, w->hidden, w->columns, w->rows, &w->b, &w->a, &w->c};
    return cuda_products_cublas_enqueue(c, &g, w, stream);
}

static void *cuda_products_cublas_row_of(const bp_matrix *matrix, uint64_t row)
{
    return (uint8_t *)matrix->data + (int64_t)row * matrix->stride * (int64_t)(bp_dtype_bits(matrix->dtype) / 8);
}

/* NaN times 0 is NaN: rows that do not count must be zeros for cuBLAS. */
static bp_status masked_weight_grad(const cublas *c, const bp_product_work *w, bp_stream *stream)
{
    bp_product_work block = *w;
    if (c->rows == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "the gradient of a weight with a mask of tokens needs CUDA kernels, which this "
                       "build or this GPU is without");
    for (uint64_t row = 0; row < w->rows; row += block.rows) {
        const bp_matrix states = {cuda_products_cublas_row_of(&w->b, row), w->b.dtype, w->b.stride};
        block.rows = w->rows - row < c->block_rows ? w->rows - row : c->block_rows;
        block.a.data = cuda_products_cublas_row_of(&w->a, row);
        block.b = (bp_matrix){(uint8_t *)w->scratch + CUBLAS_BYTES, w->b.dtype, (int64_t)w->hidden};
        block.mask.first = w->mask.first + row;
        block.adds = w->adds || row > 0;
        BP_TRY(bp_cuda_rows_copy(c->rows, &states, &block.b, block.rows, w->hidden, &block.mask, stream));
        BP_TRY(cuda_products_cublas_add_weight_grad(c, &block, stream));
    }
    return BP_OK;
}

static bp_status cuda_products_cublas_weight_grad(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    const cublas *c = (cublas *)products;
    return w->mask.data != NULL ? masked_weight_grad(c, w, stream) : cuda_products_cublas_add_weight_grad(c, w, stream);
}

static bp_status cuda_products_cublas_place(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    return bp_cuda_rows_copy(((cublas *)products)->rows, &w->a, &w->c, w->rows, w->hidden, NULL, stream);
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static void end_handle(const cublas *c)
{
    bp_cuda_scope scope;
    if (c->handle == NULL || bp_cuda_enter(c->device, &scope) != BP_OK)
        return;
    (void)c->library.cublasDestroy(c->handle);
    bp_cuda_leave(&scope);
}

static void cuda_products_cublas_destroy(bp_products *products)
{
    cublas *c = (cublas *)products;
    bp_cuda_rows_destroy(&c->rows);
    end_handle(c);
    bp_cublas_close(&c->library);
    free(c);
}

static bp_status start_handle(cublas *c)
{
    bp_cuda_scope scope;
    BP_TRY(bp_cuda_enter(c->device, &scope));
    const char *what = "it does not start";
    int error = c->library.cublasCreate(&c->handle);
    if (error == BP_CUBLAS_SUCCESS) {
        what = "asking for sums in fp32";
        error = c->library.cublasSetMathMode(c->handle, BP_CUBLAS_NO_NARROW_SUMS);
    }
    bp_status status = error == BP_CUBLAS_SUCCESS ? BP_OK : cuda_products_cublas_fail(&c->library, error, what);
    bp_cuda_leave(&scope);
    return status;
}

static bp_status start_rows(cublas *c)
{
    bp_status status = bp_cuda_rows_create(c->device, &c->rows);
    return status == BP_ERR_UNSUPPORTED ? BP_OK : status;
}

static bp_status choose_scratch(cublas *c, uint64_t rows, uint64_t hidden, bp_dtype dtype)
{
    uint64_t numel, bytes;
    c->block_rows = rows < BLOCK_ROWS ? rows : BLOCK_ROWS;
    if (!bp_mul_u64(c->block_rows, hidden, &numel) || !bp_mul_u64(numel, bp_dtype_bits(dtype) / 8, &bytes) ||
        !bp_add_u64(bytes, CUBLAS_BYTES, &c->products.scratch_bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%llu rows of %llu elements do not fit 64 bits",
                       (unsigned long long)c->block_rows, (unsigned long long)hidden);
    return BP_OK;
}

static bp_status cuda_products_cublas_start(cublas *c, uint64_t rows, uint64_t hidden, bp_dtype dtype)
{
    static const bp_products_ops with_kernels = {.destroy = cuda_products_cublas_destroy,
                                                 .logits = cuda_products_cublas_logits,
                                                 .hidden_grad = cuda_products_cublas_hidden_grad,
                                                 .weight_grad = cuda_products_cublas_weight_grad,
                                                 .place = cuda_products_cublas_place};
    static const bp_products_ops without = {.destroy = cuda_products_cublas_destroy,
                                            .logits = cuda_products_cublas_logits,
                                            .hidden_grad = cuda_products_cublas_hidden_grad,
                                            .weight_grad = cuda_products_cublas_weight_grad};
    const bp_cuda_info *info = bp_cuda_get_info(c->device);
    if (info == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuBLAS needs a cuda device, not %s", bp_device_name(c->device));
    BP_TRY(choose_scratch(c, rows, hidden, dtype));
    BP_TRY(bp_cublas_open(info->driver_version, &c->library));
    BP_TRY(start_handle(c));
    BP_TRY(start_rows(c));
    c->products.ops = c->rows != NULL ? &with_kernels : &without;
    return BP_OK;
}

bp_status bp_products_create_cublas(bp_device *device, uint64_t rows, uint64_t hidden, bp_dtype dtype,
                                    bp_products **products)
{
    if (dtype != BP_DTYPE_FP32 && dtype != BP_DTYPE_FP16 && dtype != BP_DTYPE_BF16)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "products of dtype %s, which should be fp32, bf16 or fp16",
                       bp_dtype_name(dtype));
    cublas *c = calloc(1, sizeof *c);
    if (c == NULL)
        return bp_fail_memory(sizeof *c);
    c->products = (bp_products){.name = "cublas", .gradient = dtype};
    c->device = device;
    bp_status status = cuda_products_cublas_start(c, rows, hidden, dtype);
    if (status != BP_OK) {
        cuda_products_cublas_destroy(&c->products);
        return status;
    }
    *products = &c->products;
    return BP_OK;
}
