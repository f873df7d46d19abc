/* Exchanges and collectives: what is checked before a provider is asked. */
#include "comms/comm.h"

#include "core/arith.h"
#include "core/fail.h"
#include "devices/device.h"

static bp_status end_call(bp_comm *comm, const char *what, const bp_comm_call *call, const char *function,
                          bp_status status)
{
    status = bp_comm_call_end(call, comm->name, function, status);
    return status == BP_ERR_TIMEOUT ? bp_comm_break(comm, what) : status;
}

bp_status bp_comm_agree(bp_comm *comm, const char *what, const void *mine, uint64_t bytes, void *all)
{
    uint64_t sum;
    BP_TRY(bp_comm_check(comm, what));
    if (bytes == 0)
        return BP_OK;
    if (mine == NULL || all == NULL || !bp_mul_u64(bytes, comm->traits.ranks, &sum))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu bytes from each of %u ranks of communicator %s", what,
                       (unsigned long long)bytes, comm->traits.ranks, comm->name);
    bp_comm_call call;
    bp_comm_call_begin(&call);
    return end_call(comm, what, &call, "exchange", comm->ops->exchange(comm->self, mine, bytes, all));
}

bp_status bp_comm_exchange(bp_comm *comm, const void *mine, uint64_t bytes, void *all)
{
    return bp_comm_agree(comm, "bp_comm_exchange", mine, bytes, all);
}

static bp_status check_stream(const bp_comm *comm, bp_stream *stream, const char *function)
{
    uint64_t capture = 0;
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, function));
    if (comm->traits.captures != 0)
        return BP_OK;
    BP_TRY(bp_stream_capture_of(stream, &capture));
    if (capture != 0)
        return bp_fail(BP_ERR_CAPTURE, "%s: communicator %s cannot be captured, and stream %s is (capture %llu)",
                       function, comm->name, stream->name, (unsigned long long)capture);
    return BP_OK;
}

/* Of `bytes` from every rank. */
static bp_status collectives_check(const bp_comm *comm, const char *function, bool present, const void *from,
                                   const void *to, uint64_t bytes, bp_stream *stream)
{
    uint64_t sum;
    if (!present)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: communicator %s (%s) has no such function", function, comm->name,
                       comm->ops->name);
    if (bytes > 0 && (from == NULL || to == NULL || !bp_mul_u64(bytes, comm->traits.ranks, &sum)))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu bytes from each of %u ranks of communicator %s%s", function,
                       (unsigned long long)bytes, comm->traits.ranks, comm->name,
                       from == NULL || to == NULL ? ", and no memory" : " do not fit 64 bits");
    return check_stream(comm, stream, function);
}

static bp_status check_reduction(const bp_comm *comm, const char *function, uint64_t count, bp_dtype dtype,
                                 bp_reduction reduction, uint64_t *bytes)
{
    if (dtype != BP_DTYPE_FP32 && dtype != BP_DTYPE_FP16 && dtype != BP_DTYPE_BF16 && dtype != BP_DTYPE_INT32 &&
        dtype != BP_DTYPE_INT64)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%s: communicator %s reduces fp32, fp16, bf16, int32 and int64, not %s (dtype %d)", function,
                       comm->name, bp_dtype_name(dtype), (int)dtype);
    if ((unsigned)reduction > BP_REDUCE_MIN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: reduction %d is unknown", function, (int)reduction);
    return bp_dtype_bytes(dtype, count, bytes);
}

bp_status bp_comm_all_gather(bp_comm *comm, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    BP_TRY(bp_comm_check(comm, "bp_comm_all_gather"));
    BP_TRY(collectives_check(comm, "bp_comm_all_gather", comm->ops->all_gather != NULL, mine, all, bytes, stream));
    if (bytes == 0)
        return BP_OK;
    bp_comm_call call;
    bp_comm_call_begin(&call);
    return end_call(comm, "bp_comm_all_gather", &call, "all_gather",
                    comm->ops->all_gather(comm->self, mine, all, bytes, stream));
}

bp_status bp_comm_all_reduce(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                             bp_reduction reduction, bp_stream *stream)
{
    uint64_t bytes;
    BP_TRY(bp_comm_check(comm, "bp_comm_all_reduce"));
    BP_TRY(check_reduction(comm, "bp_comm_all_reduce", count, dtype, reduction, &bytes));
    BP_TRY(collectives_check(comm, "bp_comm_all_reduce", comm->ops->all_reduce != NULL, from, to, bytes, stream));
    if (bytes == 0)
        return BP_OK;
    bp_comm_call call;
    bp_comm_call_begin(&call);
    return end_call(comm, "bp_comm_all_reduce", &call, "all_reduce",
                    comm->ops->all_reduce(comm->self, from, to, count, dtype, reduction, stream));
}

bp_status bp_comm_reduce_scatter(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                 bp_reduction reduction, bp_stream *stream)
{
    uint64_t bytes;
    BP_TRY(bp_comm_check(comm, "bp_comm_reduce_scatter"));
    BP_TRY(check_reduction(comm, "bp_comm_reduce_scatter", count, dtype, reduction, &bytes));
    BP_TRY(
        collectives_check(comm, "bp_comm_reduce_scatter", comm->ops->reduce_scatter != NULL, from, to, bytes, stream));
    if (bytes == 0)
        return BP_OK;
    bp_comm_call call;
    bp_comm_call_begin(&call);
    return end_call(comm, "bp_comm_reduce_scatter", &call, "reduce_scatter",
                    comm->ops->reduce_scatter(comm->self, from, to, count, dtype, reduction, stream));
}
