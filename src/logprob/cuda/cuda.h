/* The parts in C of the CUDA side: the image of the kernels, copies of rows for products, and the numbers of cuBLAS. */
#ifndef BP_LOGPROB_CUDA_CUDA_H
#define BP_LOGPROB_CUDA_CUDA_H

#include "logprob/engine.h"

/* The kernels as nvcc compiled them: a fatbin. */
extern const uint64_t bp_cuda_image[];

/* ---- copies of rows ---------------------------------------------------------------------------------------------- */

typedef struct bp_cuda_rows bp_cuda_rows;

/* BP_ERR_UNSUPPORTED: a build without CUDA kernels, or without any for this GPU. */
bp_status bp_cuda_rows_create(bp_device *device, bp_cuda_rows **rows);
void bp_cuda_rows_destroy(bp_cuda_rows **rows);

/* `to` has the dtype of `from`, or is narrower and that is fp32. Rows that `mask` takes out become zeros, and are not read; NULL: all count. */
bp_status bp_cuda_rows_copy(const bp_cuda_rows *rows, const bp_matrix *from, const bp_matrix *to, uint64_t count,
                            uint64_t columns, const bp_row_mask *mask, bp_stream *stream);

/* ---- numbers of cublas_api.h ------------------------------------------------------------------------------------- */

/* cublasStatus_t that are told apart. */
enum { BP_CUBLAS_SUCCESS = 0, BP_CUBLAS_ALLOC_FAILED = 3, BP_CUBLAS_ARCH_MISMATCH = 8, BP_CUBLAS_NOT_SUPPORTED = 15 };

/* cublasOperation_t, cudaDataType, cublasComputeType_t, cublasGemmAlgo_t. */
enum { BP_CUBLAS_N = 0, BP_CUBLAS_T = 1 };
enum { BP_CUBLAS_FP32 = 0, BP_CUBLAS_FP16 = 2, BP_CUBLAS_BF16 = 14 };
enum { BP_CUBLAS_SUMS_FP32 = 68, BP_CUBLAS_SUMS_FP32_PEDANTIC = 69 };
enum { BP_CUBLAS_ANY_ALGORITHM = -1 };

/* cublasMath_t: partial sums are not rounded to a narrower type of the result. */
enum { BP_CUBLAS_NO_NARROW_SUMS = 16 };

#endif
