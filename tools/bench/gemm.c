/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by the head's BLAS or cuBLAS. */
#include "bench/gemm.h"

#include <bucketpool/core/fail.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "devices/cuda_driver.h"

/* Fortran interface; integers of 32 or 64 bits, the former read the low half. */
typedef void sgemm_function(const char *transpose_a, const char *transpose_b, const int64_t *m, const int64_t *n,
                            const int64_t *k, const float *alpha, const float *a, const int64_t *a_stride,
                            const float *b, const int64_t *b_stride, const float *beta, float *c,
                            const int64_t *c_stride, size_t length_a, size_t length_b);

/* cublas_api.h and library_types.h: CUBLAS_OP_N, CUBLAS_OP_T, CUDA_R_*, CUBLAS_COMPUTE_32F and its variant without TF32,
 * CUBLAS_GEMM_DEFAULT. */
enum {
    AS_IS = 0,
    ACROSS = 1,
    R_32F = 0,
    R_16F = 2,
    R_16BF = 14,
    COMPUTE_32F = 68,
    COMPUTE_32F_PEDANTIC = 69,
    ANY_ALGORITHM = -1
};

typedef struct cublas_functions {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*gemm)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                int a_type, int a_stride, const void *b, int b_type, int b_stride, const void *beta, void *c,
                int c_type, int c_stride, int compute, int algorithm);
} cublas_functions;

struct bench_gemm {
    sgemm_function *sgemm;   /* NULL: cuBLAS */
    cublas_functions cublas; /* require the device's context to be current */
    bp_cuda_driver driver;
    int device;
    void *context, *handle, *library;
};

/* ---- one product ------------------------------------------------------------------------------------------------- */

/* `a` is [m, k], or [k, m] where a_across; `b` is [k, n], or [n, k] where b_across; `c` is [m, n]. */
typedef struct product {
    int m, n, k;
    bench_matrix a, b, c;
    bool a_across, b_across, adds;
} product;

static bp_status enter(const bench_gemm *g)
{
    return g->driver.cuCtxPushCurrent(g->context) == 0
               ? BP_OK
               : bp_fail(BP_ERR_DEVICE, "the device's context could not be made current");
}

/* Pops the context and converts the result of the call in it. */
static bp_status leave(const bench_gemm *g, const char *call, int code)
{
    void *context;
    (void)g->driver.cuCtxPopCurrent(&context);
    return code == 0 ? BP_OK : bp_fail(BP_ERR_DEVICE, "%s answers %d", call, code);
}

static int type_of(bp_dtype dtype)
{
    return dtype == BP_DTYPE_BF16 ? R_16BF : dtype == BP_DTYPE_FP16 ? R_16F : R_32F;
}

static bp_status multiply(const bench_gemm *g, const product *w)
{
    const float alpha = 1, beta = w->adds ? 1 : 0;
    if (g->sgemm != NULL) {
        const int64_t m = w->m, n = w->n, k = w->k, a = w->a.stride, b = w->b.stride, c = w->c.stride;
        /* row-major product: operands swapped */
        g->sgemm(w->b_across ? "T" : "N", w->a_across ? "T" : "N", &n, &m, &k, &alpha, w->b.data, &b, w->a.data, &a,
                 &beta, w->c.data, &c, 1, 1);
        return BP_OK;
    }
    BP_TRY(enter(g));
    /* row-major product: operands swapped */
    int code = g->cublas.gemm(g->handle, w->b_across ? ACROSS : AS_IS, w->a_across ? ACROSS : AS_IS, w->n, w->m, w->k,
                              &alpha, w->b.data, type_of(w->b.dtype), w->b.stride, w->a.data, type_of(w->a.dtype),
                              w->a.stride, &beta, w->c.data, type_of(w->c.dtype), w->c.stride,
                              w->a.dtype == BP_DTYPE_FP32 ? COMPUTE_32F_PEDANTIC : COMPUTE_32F, ANY_ALGORITHM);
    return leave(g, "cublasGemmEx", code);
}

/* ---- products of a head ------------------------------------------------------------------------------------------ */

static bench_matrix rows_from(const bench_products *p, bench_matrix all, uint64_t first)
{
    uint64_t row_bytes = (uint64_t)all.stride * bp_dtype_bits(all.dtype) / 8;
    return (bench_matrix){(uint8_t *)all.data + (p->widened ? 0 : first) * row_bytes, all.dtype, all.stride};
}

static bp_status run_pieces(const bench_products *p, bool backward)
{
    const int size = (int)p->hidden_size, vocab = (int)p->vocab;
    for (uint64_t first = 0; first < p->tokens; first += p->piece) {
        const int rows = (int)(p->tokens - first < p->piece ? p->tokens - first : p->piece);
        const bench_matrix hidden = rows_from(p, p->hidden, first);
        const product logits = {
            .m = rows, .n = vocab, .k = size, .a = hidden, .b = p->weight, .b_across = true, .c = p->logits};
        const product hidden_grad = {.m = rows,
                                     .n = size,
                                     .k = vocab,
                                     .a = p->logits_grad,
                                     .b = p->weight,
                                     .c = rows_from(p, p->hidden_grad, first)};
        const product weight_grad = {.m = vocab,
                                     .n = size,
                                     .k = rows,
                                     .a = p->logits_grad,
                                     .a_across = true,
                                     .b = hidden,
                                     .c = p->weight_grad,
                                     .adds = first > 0};
        BP_TRY(multiply(p->gemm, &logits));
        if (!backward)
            continue;
        BP_TRY(multiply(p->gemm, &hidden_grad));
        BP_TRY(multiply(p->gemm, &weight_grad));
    }
    return BP_OK;
}

bp_status bench_products_forward(const bench_products *p)
{
    return run_pieces(p, false);
}

bp_status bench_products_backward(const bench_products *p)
{
    return run_pieces(p, true);
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */

static bp_status create(bench_gemm **gemm)
{
    *gemm = calloc(1, sizeof **gemm);
    return *gemm != NULL ? BP_OK : bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for matrix products");
}

bp_status bench_gemm_create_blas(const char *name, bench_gemm **gemm)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    void *found = dlsym(library != NULL ? library : RTLD_DEFAULT, "sgemm_");
    if (found == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "this process has no sgemm_ of %s as a baseline of the head", name);
    BP_TRY(create(gemm));
    *(void **)&(*gemm)->sgemm = found;
    return BP_OK;
}

/* The copy of cuBLAS that the head loaded. */
static bp_status find_cublas(bench_gemm *g)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
    const struct {
        const char *name;
        void **place;
    } functions[] = {{"cublasCreate_v2", (void **)&g->cublas.create},
                     {"cublasDestroy_v2", (void **)&g->cublas.destroy},
                     {"cublasSetStream_v2", (void **)&g->cublas.set_stream},
                     {"cublasSetWorkspace_v2", (void **)&g->cublas.set_workspace},
                     {"cublasGemmEx", (void **)&g->cublas.gemm}};
    for (size_t i = 0; g->library == NULL && i < sizeof names / sizeof *names; i++)
        g->library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    bool complete = g->library != NULL;
    for (size_t i = 0; complete && i < sizeof functions / sizeof *functions; i++) {
        *functions[i].place = dlsym(g->library, functions[i].name);
        complete = *functions[i].place != NULL;
    }
    return complete ? BP_OK : bp_fail(BP_ERR_UNSUPPORTED, "this process has no cuBLAS as a baseline of the head");
}

static bp_status open_cublas(bench_gemm *g, const bench_device *device, void *workspace, uint64_t workspace_bytes)
{
    uint64_t native = 0;
    void *stream; /* pointer representation */
    BP_TRY(find_cublas(g));
    BP_TRY(bp_cuda_driver_load(NULL, &g->driver));
    BP_TRY(bp_stream_native(device->stream, &native));
    memcpy(&stream, &native, sizeof stream);
    if (g->driver.cuDeviceGet(&g->device, device->ordinal) != 0 ||
        g->driver.cuDevicePrimaryCtxRetain(&g->context, g->device) != 0)
        return bp_fail(BP_ERR_DEVICE, "the device's context could not be retained");
    BP_TRY(enter(g));
    const char *call = "cublasCreate";
    int code = g->cublas.create(&g->handle);
    if (code == 0) {
        call = "cublasSetStream";
        code = g->cublas.set_stream(g->handle, stream);
    }
    if (code == 0) { /* after setting the stream, which resets the workspace */
        call = "cublasSetWorkspace";
        code = g->cublas.set_workspace(g->handle, workspace, workspace_bytes);
    }
    return leave(g, call, code);
}

bp_status bench_gemm_create_cublas(const bench_device *device, void *workspace, uint64_t workspace_bytes,
                                   bench_gemm **gemm)
{
    BP_TRY(create(gemm));
    bp_status status = open_cublas(*gemm, device, workspace, workspace_bytes);
    if (status != BP_OK)
        bench_gemm_destroy(gemm);
    return status;
}

void bench_gemm_destroy(bench_gemm **gemm)
{
    bench_gemm *g = *gemm;
    if (g == NULL)
        return;
    if (g->handle != NULL && enter(g) == BP_OK)
        (void)leave(g, "cublasDestroy", g->cublas.destroy(g->handle));
    if (g->context != NULL)
        (void)g->driver.cuDevicePrimaryCtxRelease(g->device);
    if (g->library != NULL)
        (void)dlclose(g->library);
    free(g);
    *gemm = NULL;
}
