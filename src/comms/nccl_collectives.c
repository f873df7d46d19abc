/* Collectives of NCCL on streams of the cuda device. */
#include "comms/nccl.h"

#include "core/fail.h"

/* ncclDataType_t and ncclRedOp_t. */
enum { NCCL_UINT8 = 1, NCCL_INT32 = 2, NCCL_INT64 = 4, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 };

static int nccl_dtype(bp_dtype dtype)
{
    switch (dtype) {
    case BP_DTYPE_FP32: return NCCL_FLOAT32;
    case BP_DTYPE_FP16: return NCCL_FLOAT16;
    case BP_DTYPE_BF16: return NCCL_BFLOAT16;
    case BP_DTYPE_INT32: return NCCL_INT32;
    case BP_DTYPE_INT64: return NCCL_INT64;
    default: return NCCL_UINT8; /* refused before */
    }
}

static int nccl_op(bp_reduction reduction)
{
    return reduction == BP_REDUCE_MAX ? NCCL_MAX : reduction == BP_REDUCE_MIN ? NCCL_MIN : NCCL_SUM;
}

/* The stream as NCCL takes it, with the communicator's device current. */
static bp_status nccl_collectives_enter(const bp_nccl *nccl, bp_stream *stream, void **native, bp_cuda_scope *scope)
{
    uint64_t handle;
    if (bp_device_undecorated(stream->device) != bp_device_undecorated(nccl->device))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "communicator %s is of GPU %d, stream %s of another device (%s)",
                       nccl->name, bp_cuda_of(nccl->device)->info.ordinal, stream->name,
                       bp_device_name(stream->device));
    BP_TRY(bp_stream_native(stream, &handle));
    *native = (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr): a handle, as the driver gave it */
    return bp_cuda_enter(nccl->device, scope);
}

bp_status bp_nccl_all_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    bp_nccl *nccl = self;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    int result = nccl->f.ncclAllGather(mine, all, bytes, NCCL_UINT8, nccl->comm, native);
    bp_status status = bp_nccl_check(nccl, result, "ncclAllGather");
    bp_cuda_leave(&scope);
    return status;
}

bp_status bp_nccl_all_reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                             bp_reduction reduction, bp_stream *stream)
{
    bp_nccl *nccl = self;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    int result = nccl->f.ncclAllReduce(from, to, count, nccl_dtype(dtype), nccl_op(reduction), nccl->comm, native);
    bp_status status = bp_nccl_check(nccl, result, "ncclAllReduce");
    bp_cuda_leave(&scope);
    return status;
}

bp_status bp_nccl_reduce_scatter(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                 bp_reduction reduction, bp_stream *stream)
{
    bp_nccl *nccl = self;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    int result = nccl->f.ncclReduceScatter(from, to, count, nccl_dtype(dtype), nccl_op(reduction), nccl->comm, native);
    bp_status status = bp_nccl_check(nccl, result, "ncclReduceScatter");
    bp_cuda_leave(&scope);
    return status;
}
