/* SPDX-License-Identifier: Apache-2.0 */
/* The provider-independent part of communicators: creation from a table, references, checks, collectives, aborting.
 * Then the providers without a transport: one rank, and functions of the caller. */
#include "comms/comm.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "devices/device.h"

/* ---- creation ------------------------------------------------------------------------------------------------------- */

/* Reports errors of provider functions that recorded no detail: the message then has the status only. `before` keeps
 * the thread's detail from before the call, because calls that succeed leave it alone. */
typedef struct bp_comm_call {
    char before[BP_COMM_DETAIL_BYTES];
} bp_comm_call;

static void comm_call_begin(bp_comm_call *call)
{
    snprintf(call->before, sizeof call->before, "%s", bp_error_detail());
    bp_error_record(BP_OK, "");
}

static bp_status comm_call_end(const bp_comm_call *call, const char *comm, const char *what, bp_status status)
{
    if (status == BP_OK)
        return bp_error_record(BP_OK, call->before);
    if (!bp_is_status(status))
        return bp_fail(BP_ERR_COMM, "%s of communicator %s returned %d, not a bp_status%s%s", what, comm, (int)status,
                       bp_error_detail()[0] != '\0' ? ": " : "", bp_error_detail());
    if (bp_error_detail()[0] == '\0')
        return bp_fail(status, "%s of communicator %s failed: %s", what, comm, bp_status_name(status));
    return status;
}

static bp_status comm_build(const bp_comm_ops *ops, void *self, const char *name, bp_comm *comm)
{
    comm->table = *ops;
    comm->ops = &comm->table;
    comm->self = self;
    comm->traits = (bp_comm_traits){.size = sizeof comm->traits, .version_name = ""};
    bp_comm_call call;
    comm_call_begin(&call);
    BP_TRY(comm_call_end(&call, ops->name, "traits", ops->traits(self, &comm->traits)));
    if (comm->traits.rank >= comm->traits.ranks)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create: communicator %s has rank %u of %u ranks", ops->name,
                       comm->traits.rank, comm->traits.ranks);
    if ((unsigned)comm->traits.best > BP_REGISTER_SYMMETRIC)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create: communicator %s registers unknown kind %d", ops->name,
                       (int)comm->traits.best);
    if (comm->traits.version_name == NULL)
        comm->traits.version_name = "";
    BP_TRY(bp_copy_string(name != NULL ? name : ops->name, &comm->name));
    void *memory;
    BP_TRY(bp_new_array(comm->traits.ranks, BP_COMM_RECORD_BYTES, &memory));
    comm->records = memory;
    comm->info = (bp_comm_info){.name = comm->name,
                                .version_name = comm->traits.version_name,
                                .rank = comm->traits.rank,
                                .ranks = comm->traits.ranks};
    BP_TRY(bp_process_init(&comm->process));
    atomic_init(&comm->references, 1);
    return BP_OK;
}

static void free_comm(bp_comm *comm)
{
    free(comm->records);
    free(comm->name);
    free(comm);
}

static bp_status comm_create(const bp_comm_ops *ops, void *self, const char *name, bp_comm **comm)
{
    if (ops->name == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create: the table has no name");
    const char *missing = ops->destroy == NULL    ? "destroy"
                          : ops->traits == NULL   ? "traits"
                          : ops->exchange == NULL ? "exchange"
                                                  : NULL;
    if (missing != NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create: communicator %s lacks function %s", ops->name,
                       missing);
    if ((ops->register_memory == NULL) != (ops->deregister_memory == NULL))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_comm_create: communicator %s has one of register_memory and deregister_memory, not both",
                       ops->name);

    void *memory = NULL;
    bp_status status = bp_new_array(1, sizeof(bp_comm), &memory);
    if (status == BP_OK)
        status = comm_build(ops, self, name, memory);
    if (status != BP_OK) {
        if (memory != NULL)
            free_comm(memory);
        ops->destroy(self);
        return status;
    }
    *comm = memory;
    return BP_OK;
}

bp_status bp_comm_create(const bp_comm_ops *ops, void *self, const char *name, bp_comm **comm)
{
    bp_comm_ops own = {.size = sizeof own};
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create: comm must not be NULL");
    BP_TRY(bp_struct_read("bp_comm_create", ops, false, &own, sizeof own));
    return comm_create(&own, self, name, comm);
}

void bp_comm_retain(bp_comm *comm)
{
    atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
}

void bp_comm_release(bp_comm *comm)
{
    if (!bp_process_is_here(&comm->process) ||
        atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) > 1)
        return;
    BP_KEEP_ERROR;
    comm->ops->destroy(comm->self);
    free_comm(comm);
}

void bp_comm_destroy(bp_comm **comm)
{
    if (comm == NULL || *comm == NULL)
        return;
    bp_comm_release(*comm);
    *comm = NULL;
}

const bp_comm_info *bp_comm_get_info(const bp_comm *comm)
{
    return comm != NULL ? &comm->info : NULL;
}

/* ---- aborting and forgetting ---------------------------------------------------------------------------------------- */

bp_status bp_comm_check(const bp_comm *comm, const char *function)
{
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the communicator is NULL", function);
    BP_TRY(bp_process_check(&comm->process, function, "communicator", comm->name));
    if (bp_comm_is_alive(comm))
        return BP_OK;
    const int state = atomic_load(&((bp_comm *)comm)->state);
    if (state == BP_COMM_BROKEN)
        return bp_fail(BP_ERR_TIMEOUT, "%s: communicator %s is broken: %s", function, comm->name, comm->first_error);
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: communicator %s was aborted%s", function, comm->name,
                   state == BP_COMM_FORGOTTEN ? " or destroyed by its owner, and forgotten" : "");
}

/* True for the first caller. */
static bool comm_end(bp_comm *comm, bp_comm_state how)
{
    int state = BP_COMM_ALIVE;
    if (atomic_compare_exchange_strong(&comm->state, &state, how))
        return true;
    return state == BP_COMM_BROKEN && atomic_compare_exchange_strong(&comm->state, &state, how);
}

bp_status bp_comm_abort(bp_comm *comm)
{
    if (comm == NULL || !bp_process_is_here(&comm->process) || !comm_end(comm, BP_COMM_ABORTED))
        return bp_comm_check(comm, "bp_comm_abort");
    if (comm->ops->abort == NULL)
        return BP_OK;
    bp_comm_call call;
    comm_call_begin(&call);
    return comm_call_end(&call, comm->name, "abort", comm->ops->abort(comm->self));
}

void bp_comm_forget(bp_comm *comm)
{
    if (comm != NULL)
        (void)comm_end(comm, BP_COMM_FORGOTTEN);
}

/* ---- calls of the provider ------------------------------------------------------------------------------------------ */

bp_status bp_comm_register(bp_comm *comm, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                           const char **because)
{
    bp_comm_call call;
    comm_call_begin(&call);
    return comm_call_end(&call, comm->name, "register_memory",
                         comm->ops->register_memory(comm->self, address, bytes, kind, handle, because));
}

bp_status bp_comm_deregister(bp_comm *comm, bp_register_kind kind, void *handle)
{
    bp_comm_call call;
    comm_call_begin(&call);
    return comm_call_end(&call, comm->name, "deregister_memory",
                         comm->ops->deregister_memory(comm->self, kind, handle));
}

/* ---- exchanges and collectives ----------------------------------------------------------------------------------- */

/* A time-out breaks the communicator: it keeps this thread's detail, and every later call fails with it. */

static bp_status end_call(bp_comm *comm, const char *what, const bp_comm_call *call, const char *function,
                          bp_status status)
{
    status = comm_call_end(call, comm->name, function, status);
    if (status != BP_ERR_TIMEOUT)
        return status;
    int alive = BP_COMM_ALIVE; /* fails if another thread has aborted it meanwhile */
    snprintf(comm->first_error, sizeof comm->first_error, "%s over communicator %s: %s", what, comm->name,
             bp_error_detail());
    (void)atomic_compare_exchange_strong(&comm->state, &alive, BP_COMM_BROKEN);
    return bp_error_record(BP_ERR_TIMEOUT, comm->first_error);
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
    comm_call_begin(&call);
    return end_call(comm, what, &call, "exchange", comm->ops->exchange(comm->self, mine, bytes, all));
}

bp_status bp_comm_exchange(bp_comm *comm, const void *mine, uint64_t bytes, void *all)
{
    return bp_comm_agree(comm, "bp_comm_exchange", mine, bytes, all);
}

/* Checks a collective of `bytes` bytes from every rank. */
static bp_status collectives_check(const bp_comm *comm, const char *function, bool present, const void *from,
                                   const void *to, uint64_t bytes, bp_stream *stream)
{
    uint64_t sum, capture = 0;
    if (!present)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: communicator %s (%s) has no such function", function, comm->name,
                       comm->ops->name);
    if (bytes > 0 && (from == NULL || to == NULL || !bp_mul_u64(bytes, comm->traits.ranks, &sum)))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu bytes from each of %u ranks of communicator %s%s", function,
                       (unsigned long long)bytes, comm->traits.ranks, comm->name,
                       from == NULL || to == NULL ? ", and no memory" : " do not fit 64 bits");
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, function));
    if (comm->traits.captures != 0)
        return BP_OK;
    BP_TRY(bp_stream_capture_of(stream, &capture));
    if (capture != 0)
        return bp_fail(BP_ERR_CAPTURE,
                       "%s: communicator %s cannot be captured, but stream %s is being captured (capture %llu)",
                       function, comm->name, stream->name, (unsigned long long)capture);
    return BP_OK;
}

bp_status bp_comm_all_gather(bp_comm *comm, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    BP_TRY(bp_comm_check(comm, "bp_comm_all_gather"));
    BP_TRY(collectives_check(comm, "bp_comm_all_gather", comm->ops->all_gather != NULL, mine, all, bytes, stream));
    if (bytes == 0)
        return BP_OK;
    bp_comm_call call;
    comm_call_begin(&call);
    return end_call(comm, "bp_comm_all_gather", &call, "all_gather",
                    comm->ops->all_gather(comm->self, mine, all, bytes, stream));
}

/* An all-reduce or a reduce-scatter. */
static bp_status comm_reduce(bp_comm *comm, bool scatter, const void *from, void *to, uint64_t count, bp_dtype dtype,
                             bp_reduction reduction, bp_stream *stream)
{
    const char *function = scatter ? "bp_comm_reduce_scatter" : "bp_comm_all_reduce";
    uint64_t bytes;
    BP_TRY(bp_comm_check(comm, function));
    if (dtype != BP_DTYPE_FP32 && dtype != BP_DTYPE_FP16 && dtype != BP_DTYPE_BF16 && dtype != BP_DTYPE_INT32 &&
        dtype != BP_DTYPE_INT64)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%s: communicator %s reduces fp32, fp16, bf16, int32 and int64, not %s (dtype %d)", function,
                       comm->name, bp_dtype_name(dtype), (int)dtype);
    if ((unsigned)reduction > BP_REDUCE_MIN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: unknown reduction %d", function, (int)reduction);
    BP_TRY(bp_dtype_bytes(dtype, count, &bytes));
    bp_status (*const run)(void *, const void *, void *, uint64_t, bp_dtype, bp_reduction, bp_stream *) =
        scatter ? comm->ops->reduce_scatter : comm->ops->all_reduce;
    BP_TRY(collectives_check(comm, function, run != NULL, from, to, bytes, stream));
    if (bytes == 0)
        return BP_OK;
    bp_comm_call call;
    comm_call_begin(&call);
    return end_call(comm, function, &call, scatter ? "reduce_scatter" : "all_reduce",
                    run(comm->self, from, to, count, dtype, reduction, stream));
}

bp_status bp_comm_all_reduce(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                             bp_reduction reduction, bp_stream *stream)
{
    return comm_reduce(comm, false, from, to, count, dtype, reduction, stream);
}

bp_status bp_comm_reduce_scatter(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                 bp_reduction reduction, bp_stream *stream)
{
    return comm_reduce(comm, true, from, to, count, dtype, reduction, stream);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

static void self_destroy(void *self)
{
    (void)self;
}

static bp_status self_traits(void *self, bp_comm_traits *traits)
{
    (void)self;
    traits->ranks = 1;
    traits->captures = 1;
    return BP_OK;
}

static bp_status self_exchange(void *self, const void *mine, uint64_t bytes, void *all)
{
    (void)self;
    memmove(all, mine, bytes);
    return BP_OK;
}

static bp_status self_all_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    (void)self;
    return mine == all ? BP_OK : bp_stream_copy(stream, all, mine, bytes);
}

static bp_status self_reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                             bp_reduction reduction, bp_stream *stream)
{
    (void)reduction;
    uint64_t bytes;
    BP_TRY(bp_dtype_bytes(dtype, count, &bytes));
    return self_all_gather(self, from, to, bytes, stream);
}

static const bp_comm_ops self_ops = {.size = sizeof self_ops,
                                     .name = "self",
                                     .destroy = self_destroy,
                                     .traits = self_traits,
                                     .exchange = self_exchange,
                                     .all_gather = self_all_gather,
                                     .all_reduce = self_reduce,
                                     .reduce_scatter = self_reduce};

bp_status bp_comm_create_self(bp_comm **comm)
{
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_self: comm must not be NULL");
    return comm_create(&self_ops, NULL, NULL, comm);
}

/* ---- functions of the caller ------------------------------------------------------------------------------------- */

static bp_status callback_traits(void *self, bp_comm_traits *traits)
{
    const bp_comm_callbacks *callbacks = self;
    traits->rank = callbacks->rank;
    traits->ranks = callbacks->ranks;
    return BP_OK;
}

bp_status bp_comm_create_callback(const bp_comm_callbacks *callbacks, void *user, const char *name, bp_comm **comm)
{
    bp_comm_callbacks own = {.size = sizeof own};
    BP_TRY(bp_struct_read("bp_comm_create_callback", callbacks, false, &own, sizeof own));
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: comm must not be NULL");
    if (own.exchange == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: the function `exchange` must not be NULL");
    if (own.rank >= own.ranks)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: rank %u of %u ranks", own.rank, own.ranks);
    const bp_comm_ops table = {.size = sizeof table,
                               .name = "callback",
                               .destroy = self_destroy,
                               .traits = callback_traits,
                               .exchange = own.exchange,
                               .all_gather = own.all_gather,
                               .all_reduce = own.all_reduce,
                               .reduce_scatter = own.reduce_scatter,
                               .abort = own.abort};
    bp_comm *created;
    BP_TRY(comm_create(&table, &own, name, &created));

    /* on failure `user` stays the caller's: only a created communicator destroys it */
    created->self = user;
    if (own.destroy != NULL)
        created->table.destroy = own.destroy;
    *comm = created;
    return BP_OK;
}
