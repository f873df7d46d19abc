/* Matrix products by the CBLAS that the library was built with. */
#include <dlfcn.h>
#include <stdlib.h>

#include "bench/command/gemm.h"

/* cblas.h: CblasRowMajor, CblasNoTrans, CblasTrans. */
enum { ROW_MAJOR = 101, AS_IS = 111, ACROSS = 112 };

typedef void sgemm_function(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                            const float *a, int a_stride, const float *b, int b_stride, float beta, float *c,
                            int c_stride);

typedef struct cblas_gemm {
    bench_gemm base;
    sgemm_function *sgemm;
} cblas_gemm;

static void destroy(bench_gemm *gemm)
{
    free(gemm);
}

static bp_status run(bench_gemm *gemm, const bench_gemm_work *w)
{
    ((const cblas_gemm *)gemm)
        ->sgemm(ROW_MAJOR, w->a_across ? ACROSS : AS_IS, w->b_across ? ACROSS : AS_IS, w->m, w->n, w->k, 1, w->a.data,
                w->a.stride, w->b.data, w->b.stride, w->adds ? 1 : 0, w->c.data, w->c.stride);
    return BP_OK;
}

static const bench_gemm_ops cblas_ops = {destroy, run};

bp_status bench_gemm_create_cblas(bench_gemm **gemm)
{
    void *found = dlsym(RTLD_DEFAULT, "cblas_sgemm"); /* the copy that bucketpool-logprob needs */
    if (found == NULL)
        return bp_error_record(BP_ERR_UNSUPPORTED, "this process has no cblas_sgemm to compare the head with");
    cblas_gemm *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for matrix products");
    made->base.ops = &cblas_ops;
    *(void **)&made->sgemm = found;
    *gemm = &made->base;
    return BP_OK;
}
