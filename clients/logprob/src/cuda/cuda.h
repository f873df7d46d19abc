/* SPDX-License-Identifier: Apache-2.0 */
/* C interface of the CUDA side: the kernel image, copies of rows for products, and the constants of cuBLAS. */
#ifndef BP_LOGPROB_CUDA_CUDA_H
#define BP_LOGPROB_CUDA_CUDA_H

#include "engine.h"

/* Fatbin of the kernels. */
extern const uint64_t bp_cuda_image[];

/* ---- copies of rows ---------------------------------------------------------------------------------------------- */

typedef struct bp_cuda_rows bp_cuda_rows;

/* BP_ERR_UNSUPPORTED: a build without CUDA kernels, or no kernels for this GPU. */
bp_status bp_cuda_rows_create(bp_device *device, bp_cuda_rows **rows);
void bp_cuda_rows_destroy(bp_cuda_rows **rows);

/* Copies to the dtype of `from`, or narrows fp32. Rows that `mask` excludes become zeros and are not read; NULL: no mask. */
bp_status bp_cuda_rows_copy(const bp_cuda_rows *rows, const bp_matrix *from, const bp_matrix *to, uint64_t count,
                            uint64_t columns, const bp_row_mask *mask, bp_stream *stream);

/* ---- constants of cublas_api.h ------------------------------------------------------------------------------------------ */

/* cublasStatus_t values with messages. */
enum { BP_CUBLAS_SUCCESS = 0, BP_CUBLAS_ALLOC_FAILED = 3, BP_CUBLAS_ARCH_MISMATCH = 8, BP_CUBLAS_NOT_SUPPORTED = 15 };

/* cublasOperation_t, cudaDataType, cublasComputeType_t, cublasGemmAlgo_t. */
enum { BP_CUBLAS_N = 0, BP_CUBLAS_T = 1 };
enum { BP_CUBLAS_FP32 = 0, BP_CUBLAS_FP16 = 2, BP_CUBLAS_BF16 = 14 };
enum { BP_CUBLAS_SUMS_FP32 = 68, BP_CUBLAS_SUMS_FP32_PEDANTIC = 69 };
enum { BP_CUBLAS_ANY_ALGORITHM = -1 };

/* cublasMath_t: partial sums stay in fp32. */
enum { BP_CUBLAS_NO_NARROW_SUMS = 16 };

#endif
