/* The engine of host devices: work goes through a ring to its stream's thread. */
#include "logprob/engine.h"

#include <stdlib.h>

#include "core/fail.h"
#include "logprob/host/jobs.h"
#include "logprob/host/ring.h"

typedef struct host_engine {
    bp_engine base;
    bp_host_team team;
    bp_ring *ring;
} host_engine;

/* What a slot of the ring must hold. */
typedef union host_work {
    bp_partials_work partials;
    bp_finish_work finish;
    bp_gradient_work gradient;
    bp_range_work range;
    bp_rearrange_work rearrange;
    bp_sums_work sums;
    bp_seed_work seed;
} host_work;

/* ---- work ------------------------------------------------------------------------------------------------------------ */

static bp_status host_engine_enqueue(bp_engine *base, bp_job_function *function, const void *work, size_t work_bytes,
                                     bp_stream *stream)
{
    host_engine *engine = (host_engine *)base;
    return bp_ring_enqueue(engine->ring, stream, function, &engine->team, work, work_bytes);
}

/* What runs on the stream's thread, and what puts it there. */
#define OPERATION(name)                                                                                                \
    static void run_##name(void *team, void *work)                                                                     \
    {                                                                                                                  \
        bp_host_##name(team, work);                                                                                    \
    }                                                                                                                  \
    static bp_status enqueue_##name(bp_engine *engine, const bp_##name##_work *work, bp_stream *stream)                \
    {                                                                                                                  \
        return host_engine_enqueue(engine, run_##name, work, sizeof *work, stream);                                    \
    }
OPERATION(partials)
OPERATION(finish)
OPERATION(gradient)
OPERATION(range)
OPERATION(rearrange)
OPERATION(sums)
OPERATION(seed)

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static void host_engine_destroy(bp_engine *base)
{
    host_engine *engine = (host_engine *)base;
    bp_ring_destroy(&engine->ring);
    bp_host_team_finish(&engine->team);
    free(engine);
}

static const bp_engine_ops host_ops = {host_engine_destroy, enqueue_partials,  enqueue_finish, enqueue_gradient,
                                       enqueue_range,       enqueue_rearrange, enqueue_sums,   enqueue_seed};

bp_status bp_engine_create_host(uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine)
{
    host_engine *created = calloc(1, sizeof *created);
    if (created == NULL)
        return bp_fail_memory(sizeof *created);
    bp_status status = bp_ring_create(sizeof(host_work), &created->ring);
    if (status == BP_OK)
        status = bp_host_team_init(threads, kernels, columns, &created->team);
    if (status != BP_OK) {
        bp_ring_destroy(&created->ring);
        free(created);
        return status;
    }
    created->base = (bp_engine){&host_ops, created->team.kernels->name, created->team.threads};
    *engine = &created->base;
    return BP_OK;
}
