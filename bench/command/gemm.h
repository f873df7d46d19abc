/* One matrix product of any library: c = a b (or with one of them transposed), row-major, with or without adding to c. */
#ifndef BP_BENCH_COMMAND_GEMM_H
#define BP_BENCH_COMMAND_GEMM_H

#include "bench/command/device.h"

typedef struct bench_matrix {
    void *data;
    bp_dtype dtype;
    int stride; /* between rows, in elements */
} bench_matrix;

/* `a` is [m, k], or [k, m] where a_across; `b` is [k, n], or [n, k] where b_across; `c` is [m, n]. */
typedef struct bench_gemm_work {
    int m, n, k;
    bench_matrix a, b, c;
    bool a_across, b_across, adds;
} bench_gemm_work;

typedef struct bench_gemm bench_gemm;

typedef struct bench_gemm_ops {
    void (*destroy)(bench_gemm *gemm);
    bp_status (*run)(bench_gemm *gemm, const bench_gemm_work *work);
} bench_gemm_ops;

struct bench_gemm {
    const bench_gemm_ops *ops;
    bp_dtype gradient; /* what the gradient of logits is narrowed to before its products; NONE: it is not */
};

/* Of what the process has loaded for the head. Errors: BP_ERR_UNSUPPORTED. */
bp_status bench_gemm_create_cblas(bench_gemm **gemm);
/* `workspace`: of the device, for the library alone. */
bp_status bench_gemm_create_cublas(const bench_device *device, int32_t ordinal, bp_dtype dtype, void *workspace,
                                   uint64_t workspace_bytes, bench_gemm **gemm);

#endif
