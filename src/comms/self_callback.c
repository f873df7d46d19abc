/* Communicators without a transport: one rank, and functions of the caller. */
#include "comms/comm.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"
#include "core/structs.h"

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

static bp_status reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype, bp_reduction reduction,
                        bp_stream *stream)
{
    (void)reduction;
    uint64_t bytes;
    BP_TRY(bp_dtype_bytes(dtype, count, &bytes));
    return self_all_gather(self, from, to, bytes, stream);
}

static const bp_comm_ops ops = {.size = sizeof ops,
                                .name = "self",
                                .destroy = self_destroy,
                                .traits = self_traits,
                                .exchange = self_exchange,
                                .all_gather = self_all_gather,
                                .all_reduce = reduce,
                                .reduce_scatter = reduce};

bp_status bp_comm_create_self(bp_comm **comm)
{
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_self: needs an output");
    return bp_comm_create(&ops, NULL, NULL, comm);
}

/* ---- functions of the caller ------------------------------------------------------------------------------------- */

/* Communicators whose work is done by functions of the caller. */

typedef struct callback_comm {
    bp_comm_ops ops; /* lacks what the caller's functions lack */
    bp_comm_callbacks callbacks;
    void *user;
    bool made; /* only then is `user` ours to destroy */
} callback_comm;

static void callback_destroy(void *self)
{
    callback_comm *comm = self;
    if (comm->made && comm->callbacks.destroy != NULL)
        comm->callbacks.destroy(comm->user);
    free(comm);
}

static bp_status callback_traits(void *self, bp_comm_traits *traits)
{
    const callback_comm *comm = self;
    traits->rank = comm->callbacks.rank;
    traits->ranks = comm->callbacks.ranks;
    return BP_OK;
}

static bp_status callback_exchange(void *self, const void *mine, uint64_t bytes, void *all)
{
    const callback_comm *comm = self;
    return comm->callbacks.exchange(comm->user, mine, bytes, all);
}

static bp_status callback_all_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    const callback_comm *comm = self;
    return comm->callbacks.all_gather(comm->user, mine, all, bytes, stream);
}

static bp_status callback_all_reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                     bp_reduction reduction, bp_stream *stream)
{
    const callback_comm *comm = self;
    return comm->callbacks.all_reduce(comm->user, from, to, count, dtype, reduction, stream);
}

static bp_status callback_reduce_scatter(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                         bp_reduction reduction, bp_stream *stream)
{
    const callback_comm *comm = self;
    return comm->callbacks.reduce_scatter(comm->user, from, to, count, dtype, reduction, stream);
}

static bp_status abort_callback(void *self)
{
    const callback_comm *comm = self;
    return comm->callbacks.abort(comm->user);
}

static bp_status callback_check(const bp_comm_callbacks *callbacks, const bp_comm *const *comm)
{
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: needs an output");
    if (callbacks->exchange == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: needs a function exchange");
    if (callbacks->rank >= callbacks->ranks)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: rank %u of %u ranks", callbacks->rank,
                       callbacks->ranks);
    return BP_OK;
}

bp_status bp_comm_create_callback(const bp_comm_callbacks *callbacks, void *user, const char *name, bp_comm **comm)
{
    bp_comm_callbacks own = {.size = sizeof own};
    BP_TRY(bp_struct_read("bp_comm_create_callback", callbacks, false, &own, sizeof own));
    callbacks = &own;
    BP_TRY(callback_check(callbacks, (const bp_comm *const *)comm));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(callback_comm), &memory));
    callback_comm *created = memory;
    *created = (callback_comm){.callbacks = *callbacks, .user = user};
    created->ops = (bp_comm_ops){.size = sizeof created->ops,
                                 .name = "callback",
                                 .destroy = callback_destroy,
                                 .traits = callback_traits,
                                 .exchange = callback_exchange,
                                 .all_gather = callbacks->all_gather != NULL ? callback_all_gather : NULL,
                                 .all_reduce = callbacks->all_reduce != NULL ? callback_all_reduce : NULL,
                                 .reduce_scatter = callbacks->reduce_scatter != NULL ? callback_reduce_scatter : NULL,
                                 .abort = callbacks->abort != NULL ? abort_callback : NULL};
    BP_TRY(bp_comm_create(&created->ops, created, name, comm));
    created->made = true;
    return BP_OK;
}
