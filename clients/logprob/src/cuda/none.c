/* SPDX-License-Identifier: Apache-2.0 */
/* Stubs for builds without CUDA kernels. */
#include "cuda/cuda.h"

#include <bucketpool/core/fail.h>

bp_status bp_engine_create_cuda(bp_device *device, bp_engine **engine)
{
    (void)engine;
    return bp_fail(BP_ERR_UNSUPPORTED,
                   "this build of bucketpool-logprob has no CUDA kernels for device %s; build it where "
                   "nvcc is installed (meson setup -Dkernels=enabled)",
                   bp_device_name(device));
}

bp_status bp_cuda_rows_create(bp_device *device, bp_cuda_rows **rows)
{
    (void)rows;
    return bp_fail(BP_ERR_UNSUPPORTED, "this build of bucketpool-logprob has no CUDA kernels to copy rows on %s",
                   bp_device_name(device));
}

void bp_cuda_rows_destroy(bp_cuda_rows **rows)
{
    (void)rows; /* unreachable: creation fails */
}

bp_status bp_cuda_rows_copy(const bp_cuda_rows *rows, const bp_matrix *from, const bp_matrix *to, uint64_t count,
                            uint64_t columns, const bp_row_mask *mask, bp_stream *stream)
{
    (void)rows, (void)from, (void)to, (void)count, (void)columns, (void)mask, (void)stream;
    return bp_fail(BP_ERR_UNSUPPORTED, "this build of bucketpool-logprob has no CUDA kernels");
}
