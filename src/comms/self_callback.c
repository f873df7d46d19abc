/* Communicators without a transport: one rank, and functions of the caller. */
#include "comms/comm.h"

#include <string.h>

#include "core/fail.h"
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: needs an output");
    if (own.exchange == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_callback: needs a function exchange");
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
    BP_TRY(bp_comm_create(&table, &own, name, &created));

    /* `user` is destroyed with a communicator that was made: until here it stays the caller's. */
    created->self = user;
    if (own.destroy != NULL)
        created->table.destroy = own.destroy;
    *comm = created;
    return BP_OK;
}
