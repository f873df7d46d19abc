/* Matrix products by the cuBLAS of this process or machine. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command/gemm.h"
#include "devices/cuda_driver.h"

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

typedef struct cublas_gemm {
    bench_gemm base;
    cublas_functions cublas;
    bp_cuda_driver driver;
    int device;
    void *context, *handle, *library;
} cublas_gemm;

/* ---- the device's context is current while cuBLAS is called ---------------------------------------------------------------- */

static bp_status enter(const cublas_gemm *g)
{
    return g->driver.cuCtxPushCurrent(g->context) == 0
               ? BP_OK
               : bp_error_record(BP_ERR_DEVICE, "the device's context does not become current");
}

static void leave(const cublas_gemm *g)
{
    void *context;
    (void)g->driver.cuCtxPopCurrent(&context);
}

static bp_status result(const char *call, int code)
{
    char text[96];
    if (code == 0)
        return BP_OK;
    snprintf(text, sizeof text, "%s answers %d", call, code);
    return bp_error_record(BP_ERR_DEVICE, text);
}

/* ---- products ---------------------------------------------------------------------------------------------------------------- */

static int type_of(bp_dtype dtype)
{
    return dtype == BP_DTYPE_BF16 ? R_16BF : dtype == BP_DTYPE_FP16 ? R_16F : R_32F;
}

/* Column-major is row-major with the operands changed over. */
static bp_status run(bench_gemm *gemm, const bench_gemm_work *w)
{
    const cublas_gemm *g = (const cublas_gemm *)gemm;
    const float alpha = 1, beta = w->adds ? 1 : 0;
    bp_status status = enter(g);
    if (status != BP_OK)
        return status;
    status = result("cublasGemmEx",
                    g->cublas.gemm(g->handle, w->b_across ? ACROSS : AS_IS, w->a_across ? ACROSS : AS_IS, w->n, w->m,
                                   w->k, &alpha, w->b.data, type_of(w->b.dtype), w->b.stride, w->a.data,
                                   type_of(w->a.dtype), w->a.stride, &beta, w->c.data, type_of(w->c.dtype), w->c.stride,
                                   w->a.dtype == BP_DTYPE_FP32 ? COMPUTE_32F_PEDANTIC : COMPUTE_32F, ANY_ALGORITHM));
    leave(g);
    return status;
}

static void destroy(bench_gemm *gemm)
{
    cublas_gemm *g = (cublas_gemm *)gemm;
    if (g->handle != NULL && enter(g) == BP_OK) {
        (void)g->cublas.destroy(g->handle);
        leave(g);
    }
    if (g->context != NULL)
        (void)g->driver.cuDevicePrimaryCtxRelease(g->device);
    if (g->library != NULL)
        (void)dlclose(g->library);
    free(g);
}

static const bench_gemm_ops cublas_ops = {destroy, run};

/* ---- what there is ------------------------------------------------------------------------------------------------------------- */

/* The copy that the head has loaded, whichever it is. */
static bp_status find_library(cublas_gemm *g)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
    static const char *const functions[] = {"cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2",
                                            "cublasSetWorkspace_v2", "cublasGemmEx"};
    void **const places[] = {(void **)&g->cublas.create, (void **)&g->cublas.destroy, (void **)&g->cublas.set_stream,
                             (void **)&g->cublas.set_workspace, (void **)&g->cublas.gemm};
    for (size_t i = 0; g->library == NULL && i < sizeof names / sizeof *names; i++)
        g->library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    bool complete = g->library != NULL;
    for (size_t i = 0; complete && i < sizeof places / sizeof *places; i++) {
        *places[i] = dlsym(g->library, functions[i]);
        complete = *places[i] != NULL;
    }
    return complete ? BP_OK
                    : bp_error_record(BP_ERR_UNSUPPORTED, "this process has no cuBLAS to compare the head with");
}

static bp_status make_handle(cublas_gemm *g, const bench_device *device, int32_t ordinal)
{
    uint64_t native = 0;
    void *stream; /* the same bits */
    bp_status status = bp_cuda_driver_load(NULL, &g->driver);
    if (status == BP_OK)
        status = bp_stream_native(device->stream, &native);
    if (status == BP_OK && (g->driver.cuDeviceGet(&g->device, ordinal) != 0 ||
                            g->driver.cuDevicePrimaryCtxRetain(&g->context, g->device) != 0))
        status = bp_error_record(BP_ERR_DEVICE, "the device's context is not to be had");
    if (status == BP_OK)
        status = enter(g);
    if (status != BP_OK)
        return status;
    memcpy(&stream, &native, sizeof stream);
    status = result("cublasCreate", g->cublas.create(&g->handle));
    if (status == BP_OK)
        status = result("cublasSetStream", g->cublas.set_stream(g->handle, stream));
    leave(g);
    return status;
}

/* After the stream: setting that takes the workspace away. */
static bp_status lend(cublas_gemm *g, void *workspace, uint64_t bytes)
{
    bp_status status = enter(g);
    if (status != BP_OK)
        return status;
    status = result("cublasSetWorkspace", g->cublas.set_workspace(g->handle, workspace, bytes));
    leave(g);
    return status;
}

bp_status bench_gemm_create_cublas(const bench_device *device, int32_t ordinal, bp_dtype dtype, void *workspace,
                                   uint64_t workspace_bytes, bench_gemm **gemm)
{
    cublas_gemm *g = calloc(1, sizeof *g);
    if (g == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for matrix products");
    g->base = (bench_gemm){&cublas_ops, dtype};
    bp_status status = find_library(g);
    if (status == BP_OK)
        status = make_handle(g, device, ordinal);
    if (status == BP_OK)
        status = lend(g, workspace, workspace_bytes);
    if (status == BP_OK)
        *gemm = &g->base;
    else
        destroy(&g->base);
    return status;
}
