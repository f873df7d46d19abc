/* The copy of cuBLAS that this process has, or that the machine has. Names and numbers are those of cublas_api.h. */
#ifndef BP_LOGPROB_CUBLAS_H
#define BP_LOGPROB_CUBLAS_H

#include <bucketpool/status.h>

/* cublasStatus_t that are told apart. */
enum { BP_CUBLAS_SUCCESS = 0, BP_CUBLAS_ALLOC_FAILED = 3, BP_CUBLAS_ARCH_MISMATCH = 8, BP_CUBLAS_NOT_SUPPORTED = 15 };

/* cublasOperation_t, cudaDataType, cublasComputeType_t, cublasGemmAlgo_t. */
enum { BP_CUBLAS_N = 0, BP_CUBLAS_T = 1 };
enum { BP_CUBLAS_FP32 = 0, BP_CUBLAS_FP16 = 2, BP_CUBLAS_BF16 = 14 };
enum { BP_CUBLAS_SUMS_FP32 = 68, BP_CUBLAS_SUMS_FP32_PEDANTIC = 69 };
enum { BP_CUBLAS_ANY_ALGORITHM = -1 };

/* cublasMath_t: partial sums are not rounded to a narrower type of the result. */
enum { BP_CUBLAS_NO_NARROW_SUMS = 16 };

typedef struct bp_cublas {
    void *library;
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
} bp_cublas;

/* A copy that is loaded already, else one that the loader finds: of CUDA 13, where the driver is, or of CUDA 12. BP_ERR_UNSUPPORTED:
 * there is none. */
bp_status bp_cublas_open(int driver_version, bp_cublas *cublas);
void bp_cublas_close(bp_cublas *cublas);

#endif
