/* Rows copied on a cuda device, for products. */
#ifndef BP_LOGPROB_CUDA_ROWS_H
#define BP_LOGPROB_CUDA_ROWS_H

#include "logprob/products.h"

typedef struct bp_cuda_rows bp_cuda_rows;

/* BP_ERR_UNSUPPORTED: a build without CUDA kernels, or without any for this GPU. */
bp_status bp_cuda_rows_create(bp_device *device, bp_cuda_rows **rows);
void bp_cuda_rows_destroy(bp_cuda_rows **rows);

/* `to` has the dtype of `from`, or is narrower and that is fp32. Rows that `mask` takes out become zeros, and are not read; NULL: all count. */
bp_status bp_cuda_rows_copy(const bp_cuda_rows *rows, const bp_matrix *from, const bp_matrix *to, uint64_t count,
                            uint64_t columns, const bp_row_mask *mask, bp_stream *stream);

#endif
