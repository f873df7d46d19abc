/* Copies rows on a cuda device, for the products of the fused head. */
#include "logprob/cuda/rows.h"

#include <stdlib.h>

#include "core/fail.h"
#include "logprob/cuda/image.h"
#include "logprob/cuda/launch.h"
#include "logprob/work.h"

#define MOST_BLOCKS UINT64_C(65535) /* kernels loop over more rows */

struct bp_cuda_rows {
    bp_cuda_module *module;
    const bp_cuda_kernel *same_32, *same_16, *to_bf16, *to_fp16;
};

static bp_status cuda_rows_find_kernels(bp_cuda_rows *rows)
{
    BP_TRY(bp_cuda_find(rows->module, "bp_rows_32", &rows->same_32));
    BP_TRY(bp_cuda_find(rows->module, "bp_rows_16", &rows->same_16));
    BP_TRY(bp_cuda_find(rows->module, "bp_rows_fp32_bf16", &rows->to_bf16));
    return bp_cuda_find(rows->module, "bp_rows_fp32_fp16", &rows->to_fp16);
}

bp_status bp_cuda_rows_create(bp_device *device, bp_cuda_rows **rows)
{
    bp_cuda_rows *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    bp_status status = bp_cuda_module_create(device, bp_cuda_image, &made->module);
    if (status == BP_OK)
        status = cuda_rows_find_kernels(made);
    if (status != BP_OK) {
        bp_cuda_rows_destroy(&made);
        return status;
    }
    *rows = made;
    return BP_OK;
}

void bp_cuda_rows_destroy(bp_cuda_rows **rows)
{
    if (*rows == NULL)
        return;
    bp_cuda_module_destroy(&(*rows)->module);
    free(*rows);
    *rows = NULL;
}

static const bp_cuda_kernel *kernel_for(const bp_cuda_rows *rows, bp_dtype from, bp_dtype to)
{
    if (from != to)
        return to == BP_DTYPE_BF16 ? rows->to_bf16 : rows->to_fp16;
    return from == BP_DTYPE_FP32 ? rows->same_32 : rows->same_16;
}

bp_status bp_cuda_rows_copy(const bp_cuda_rows *rows, const bp_matrix *from, const bp_matrix *to, uint64_t count,
                            uint64_t columns, const bp_row_mask *mask, bp_stream *stream)
{
    bp_rows_work work = {.from = from->data,
                         .from_stride = from->stride,
                         .to = to->data,
                         .to_stride = to->stride,
                         .rows = count,
                         .columns = columns};
    if (mask != NULL) {
        work.mask = mask->data;
        work.mask_batch_stride = mask->batch_stride;
        work.mask_stride = mask->stride;
        work.mask_count = mask->count;
        work.mask_first = mask->first;
    }
    return bp_cuda_launch_work(kernel_for(rows, from->dtype, to->dtype), count < MOST_BLOCKS ? count : MOST_BLOCKS, 1,
                               BP_CUDA_THREADS, &work, stream);
}
