/* The communicator of one rank: what is exchanged or reduced is what was given. */
#include "comms/comm.h"

#include <string.h>

#include "core/fail.h"

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
