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

/* ---- work, on the stream's thread ------------------------------------------------------------------------------------ */

static void run_partials(void *team, void *work)
{
    bp_host_partials(team, work);
}

static void run_finish(void *team, void *work)
{
    bp_host_finish(team, work);
}

static void run_gradient(void *team, void *work)
{
    bp_host_gradient(team, work);
}

static void run_range(void *team, void *work)
{
    bp_host_range(team, work);
}

static void run_rearrange(void *team, void *work)
{
    bp_host_rearrange(team, work);
}

static void run_sums(void *team, void *work)
{
    bp_host_sums(team, work);
}

static void run_seed(void *team, void *work)
{
    bp_host_seed(team, work);
}

/* ---- in stream order -------------------------------------------------------------------------------------------------- */

static bp_status enqueue(bp_engine *base, bp_job_function *function, const void *work, size_t work_bytes,
                         bp_stream *stream)
{
    host_engine *engine = (host_engine *)base;
    return bp_ring_enqueue(engine->ring, stream, function, &engine->team, work, work_bytes);
}

static bp_status enqueue_partials(bp_engine *engine, const bp_partials_work *work, bp_stream *stream)
{
    return enqueue(engine, run_partials, work, sizeof *work, stream);
}

static bp_status enqueue_finish(bp_engine *engine, const bp_finish_work *work, bp_stream *stream)
{
    return enqueue(engine, run_finish, work, sizeof *work, stream);
}

static bp_status enqueue_gradient(bp_engine *engine, const bp_gradient_work *work, bp_stream *stream)
{
    return enqueue(engine, run_gradient, work, sizeof *work, stream);
}

static bp_status enqueue_range(bp_engine *engine, const bp_range_work *work, bp_stream *stream)
{
    return enqueue(engine, run_range, work, sizeof *work, stream);
}

static bp_status enqueue_rearrange(bp_engine *engine, const bp_rearrange_work *work, bp_stream *stream)
{
    return enqueue(engine, run_rearrange, work, sizeof *work, stream);
}

static bp_status enqueue_sums(bp_engine *engine, const bp_sums_work *work, bp_stream *stream)
{
    return enqueue(engine, run_sums, work, sizeof *work, stream);
}

static bp_status enqueue_seed(bp_engine *engine, const bp_seed_work *work, bp_stream *stream)
{
    return enqueue(engine, run_seed, work, sizeof *work, stream);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static void destroy(bp_engine *base)
{
    host_engine *engine = (host_engine *)base;
    bp_ring_destroy(&engine->ring);
    bp_host_team_finish(&engine->team);
    free(engine);
}

static const bp_engine_ops host_ops = {destroy,       enqueue_partials,  enqueue_finish, enqueue_gradient,
                                       enqueue_range, enqueue_rearrange, enqueue_sums,   enqueue_seed};

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
