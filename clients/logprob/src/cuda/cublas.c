/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on cuda devices by cuBLAS. cuBLAS is column-major and these matrices are row-major, so each is passed as its transpose
 * and the products are swapped: c^T = b^T a^T. Masked hidden states are first copied. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/kernels.h>

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* The loaded or installed copy of cuBLAS. */
typedef struct library {
    void *handle;
    const char *name; /* "libcublas.so.13" */
    int (*cublasCreate)(void **handle);
    int (*cublasDestroy)(void *handle);
    int (*cublasSetStream)(void *handle, void *stream);
    int (*cublasSetWorkspace)(void *handle, void *workspace, size_t bytes);
    int (*cublasSetMathMode)(void *handle, int mode);
    int (*cublasGemmEx)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                        const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta,
                        void *c, int c_type, int ldc, int compute_type, int algorithm);
    const char *(*cublasGetStatusString)(int status);
} library;

/* Opens the loaded copy, else the one that the dynamic loader finds: of CUDA 13 if the driver allows, or of CUDA 12. Never unloaded,
 * because it starts threads and registers handlers. BP_ERR_UNSUPPORTED: none found. */
static bp_status open_cublas(int driver_version, library *opened)
{
    static const struct {
        const char *name;
        int driver_version; /* lowest that works with it */
    } releases[] = {{"libcublas.so.13", 13000}, {"libcublas.so.12", 12000}};
    static const int flags[] = {RTLD_NOLOAD, 0};
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
        {"cublasCreate_v2", offsetof(library, cublasCreate)},
        {"cublasDestroy_v2", offsetof(library, cublasDestroy)},
        {"cublasSetStream_v2", offsetof(library, cublasSetStream)},
        {"cublasSetWorkspace_v2", offsetof(library, cublasSetWorkspace)},
        {"cublasSetMathMode", offsetof(library, cublasSetMathMode)},
        {"cublasGemmEx", offsetof(library, cublasGemmEx)},
        {"cublasGetStatusString", offsetof(library, cublasGetStatusString)},
    };
    for (size_t i = 0; i < 4 && opened->handle == NULL; i++) {
        opened->name = releases[i % 2].name;
        if (driver_version >= releases[i % 2].driver_version)
            opened->handle = dlopen(opened->name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags[i / 2]);
    }
    if (opened->handle == NULL) {
        const char *reason = dlerror();
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuBLAS was not found: %slibcublas.so.12 is neither loaded nor in the loader's search path (%s)",
                       driver_version >= releases[0].driver_version ? "libcublas.so.13 or " : "",
                       reason != NULL ? reason : "no reason was given");
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(opened->handle, functions[i].name);
        if (symbol == NULL)
            return bp_fail(BP_ERR_UNSUPPORTED, "cuBLAS (%s) has no function %s", opened->name, functions[i].name);
        memcpy((char *)opened + functions[i].offset, &symbol, sizeof symbol);
    }
    return BP_OK;
}

static bp_status cublas_fail(const library *used, int error, const char *function, const char *what)
{
    const char *text = used->cublasGetStatusString(error);
    bp_status status = BP_ERR_DEVICE;
    if (error == BP_CUBLAS_ALLOC_FAILED)
        status = BP_ERR_NO_DEVICE_MEMORY;
    else if (error == BP_CUBLAS_ARCH_MISMATCH || error == BP_CUBLAS_NOT_SUPPORTED)
        status = BP_ERR_UNSUPPORTED;
    return bp_fail(status, "cuBLAS (%s): %s: %s: %s (%d)", used->name, what, function,
                   text != NULL ? text : "unknown status", error);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct cublas {
    bp_products products;
    bp_device *device;
    library library;
    void *handle;
    bp_cuda_rows *rows; /* NULL: no kernels in this build or for this GPU */
} cublas;

/* C = A B in cuBLAS's terms: A is m x k, B is k x n. Sizes and strides fit 31 bits (engine.h). */
typedef struct gemm {
    int transpose_a, transpose_b;
    uint64_t m, n, k;
    const bp_matrix *a, *b, *c;
} gemm;

static int cublas_type_of(bp_dtype dtype)
{
    switch (dtype) {
    case BP_DTYPE_FP16: return BP_CUBLAS_FP16;
    case BP_DTYPE_BF16: return BP_CUBLAS_BF16;
    default: return BP_CUBLAS_FP32;
    }
}

/* Sets the stream first, because that resets the workspace. A private workspace keeps streams from sharing cuBLAS's own, which would make
 * results vary between runs, and avoids allocations. */
static bp_status cublas_run(const cublas *c, const gemm *g, const bp_product_work *work, void *stream)
{
    const library *used = &c->library;
    const int a = cublas_type_of(g->a->dtype), b = cublas_type_of(g->b->dtype), result = cublas_type_of(g->c->dtype);
    /* pedantic: fp32 is not rounded to TF32 */
    const int sums = a == BP_CUBLAS_FP32 ? BP_CUBLAS_SUMS_FP32_PEDANTIC : BP_CUBLAS_SUMS_FP32;
    const float alpha = 1, beta = work->adds ? 1 : 0;
    int error = used->cublasSetStream(c->handle, stream);
    if (error != BP_CUBLAS_SUCCESS)
        return cublas_fail(used, error, "cublasSetStream", "choosing a stream");
    error = used->cublasSetWorkspace(c->handle, work->scratch, BP_CUBLAS_BYTES);
    if (error != BP_CUBLAS_SUCCESS)
        return cublas_fail(used, error, "cublasSetWorkspace", "giving it scratch memory");
    error = used->cublasGemmEx(c->handle, g->transpose_a, g->transpose_b, (int)g->m, (int)g->n, (int)g->k, &alpha,
                               g->a->data, a, (int)g->a->stride, g->b->data, b, (int)g->b->stride, &beta, g->c->data,
                               result, (int)g->c->stride, sums, BP_CUBLAS_ANY_ALGORITHM);
    if (error == BP_CUBLAS_SUCCESS)
        return BP_OK;
    char what[160];
    (void)snprintf(what, sizeof what, "a product of %llu x %llu by %llu x %llu (%s, %s)", (unsigned long long)g->n,
                   (unsigned long long)g->k, (unsigned long long)g->k, (unsigned long long)g->m,
                   bp_dtype_name(g->a->dtype), bp_dtype_name(g->c->dtype));
    return cublas_fail(used, error, "cublasGemmEx", what);
}

static bp_status cublas_enqueue(const cublas *c, const gemm *g, const bp_product_work *work, bp_stream *stream)
{
    bp_cuda_scope scope;
    uint64_t native;
    BP_TRY(bp_stream_native(stream, &native));
    BP_TRY(bp_cuda_enter(c->device, &scope));
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): a handle, as the driver gave it */
    bp_status status = cublas_run(c, g, work, (void *)(uintptr_t)native);
    bp_cuda_leave(&scope);
    return status;
}

static bp_status cublas_logits(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    const gemm g = {BP_CUBLAS_T, BP_CUBLAS_N, w->columns, w->rows, w->hidden, &w->b, &w->a, &w->c};
    return cublas_enqueue((cublas *)products, &g, w, stream);
}

static bp_status cublas_hidden_grad(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    const gemm g = {BP_CUBLAS_N, BP_CUBLAS_N, w->hidden, w->rows, w->columns, &w->b, &w->a, &w->c};
    return cublas_enqueue((cublas *)products, &g, w, stream);
}

static bp_status cublas_add_weight_grad(const cublas *c, const bp_product_work *w, bp_stream *stream)
{
    const gemm g = {BP_CUBLAS_N, BP_CUBLAS_T, w->hidden, w->columns, w->rows, &w->b, &w->a, &w->c};
    return cublas_enqueue(c, &g, w, stream);
}

/* NaN times 0 is NaN, so masked rows must be zeros for cuBLAS; and rows of several matrices become one, so that the gradient is written once.
 * Both are copies in the scratch memory. */
static bp_status cublas_weight_grad(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    const cublas *c = (cublas *)products;
    if (w->mask.tokens.mask == NULL && !w->joins && (w->row == 0 || !products->joins))
        return cublas_add_weight_grad(c, w, stream); /* the states of ignored tokens are finite (lm_head.h) */
    if (c->rows == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "a weight gradient with a token mask needs CUDA kernels, which this "
                                           "build does not have for this GPU");
    const bool has_mask = w->mask.tokens.mask != NULL;
    bp_product_work all = *w;
    all.b = (bp_matrix){(uint8_t *)w->scratch + BP_CUBLAS_BYTES, w->b.dtype, (int64_t)w->hidden};
    const bp_matrix copies = {bp_matrix_row(&all.b, w->row), w->b.dtype, (int64_t)w->hidden};
    if (!w->keeps_hidden)
        BP_TRY(bp_cuda_rows_copy(c->rows, &w->b, &copies, w->rows, w->hidden, has_mask ? &w->mask : NULL, stream));
    if (w->joins)
        return BP_OK;
    all.rows = w->row + w->rows;
    all.a.data = bp_matrix_row(&w->a, 0 - w->row);
    return cublas_add_weight_grad(c, &all, stream);
}

static bp_status cublas_place(bp_products *products, const bp_product_work *w, bp_stream *stream)
{
    return bp_cuda_rows_copy(((cublas *)products)->rows, &w->a, &w->c, w->rows, w->hidden, NULL, stream);
}

/* ---- creation and destruction ---------------------------------------------------------------------------------------- */

static void cublas_destroy(bp_products *products)
{
    BP_KEEP_ERROR;
    cublas *c = (cublas *)products;
    bp_cuda_scope scope;
    bp_cuda_rows_destroy(&c->rows);
    if (c->handle != NULL && bp_cuda_enter(c->device, &scope) == BP_OK) {
        (void)c->library.cublasDestroy(c->handle);
        bp_cuda_leave(&scope);
    }
    if (c->library.handle != NULL)
        dlclose(c->library.handle);
    free(c);
}

static bp_status cublas_start_handle(cublas *c)
{
    bp_cuda_scope scope;
    BP_TRY(bp_cuda_enter(c->device, &scope));
    const char *function = "cublasCreate", *what = "it does not start";
    int error = c->library.cublasCreate(&c->handle);
    if (error == BP_CUBLAS_SUCCESS) {
        function = "cublasSetMathMode";
        what = "asking for sums in fp32";
        error = c->library.cublasSetMathMode(c->handle, BP_CUBLAS_NO_NARROW_SUMS);
    }
    bp_status status = error == BP_CUBLAS_SUCCESS ? BP_OK : cublas_fail(&c->library, error, function, what);
    bp_cuda_leave(&scope);
    return status;
}

static bp_status cublas_start(cublas *c, uint64_t rows, uint64_t hidden, bp_dtype dtype)
{
    static const bp_products_ops ops[] = {/* [has_kernels] */
                                          {.destroy = cublas_destroy,
                                           .logits = cublas_logits,
                                           .hidden_grad = cublas_hidden_grad,
                                           .weight_grad = cublas_weight_grad},
                                          {.destroy = cublas_destroy,
                                           .logits = cublas_logits,
                                           .hidden_grad = cublas_hidden_grad,
                                           .weight_grad = cublas_weight_grad,
                                           .place = cublas_place}};
    const bp_cuda_info *info = bp_cuda_get_info(c->device);
    uint64_t numel, bytes;
    if (info == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuBLAS needs a cuda device, not %s", bp_device_name(c->device));
    if (!bp_mul_u64(rows, hidden, &numel) || !bp_mul_u64(numel, bp_dtype_bits(dtype) / 8, &bytes) ||
        !bp_add_u64(bytes, BP_CUBLAS_BYTES, &c->products.scratch_bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%llu rows of %llu elements do not fit 64 bits", (unsigned long long)rows,
                       (unsigned long long)hidden);
    BP_TRY(open_cublas(info->driver_version, &c->library));
    BP_TRY(cublas_start_handle(c));
    bp_status status = bp_cuda_rows_create(c->device, &c->rows);
    if (status != BP_OK && status != BP_ERR_UNSUPPORTED)
        return status;
    c->products.ops = &ops[c->rows != NULL];
    c->products.joins = c->rows != NULL;
    return BP_OK;
}

bp_status bp_products_create_cublas(bp_device *device, uint64_t rows, uint64_t hidden, bp_dtype dtype,
                                    bp_products **products)
{
    if (dtype != BP_DTYPE_FP32 && dtype != BP_DTYPE_FP16 && dtype != BP_DTYPE_BF16)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "products of dtype %s are not possible; use fp32, bf16 or fp16",
                       bp_dtype_name(dtype));
    cublas *c = calloc(1, sizeof *c);
    if (c == NULL)
        return bp_fail_memory(sizeof *c);
    c->products = (bp_products){.name = "cublas", .gradient = dtype};
    c->device = device;
    bp_status status = cublas_start(c, rows, hidden, dtype);
    if (status != BP_OK) {
        cublas_destroy(&c->products);
        return status;
    }
    *products = &c->products;
    return BP_OK;
}
