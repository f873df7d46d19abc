/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of host devices: a ring passes work to the threads of the streams. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "host/jobs.h"

/* ---- job ring --------------------------------------------------------------------------------------------------------- */

typedef struct job {
    bp_ring *ring;
    bp_job_function *function;
    void *owner;
    bool busy;
    alignas(max_align_t) uint8_t work[];
} job;

struct bp_ring {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    size_t job_bytes; /* with its copy of the work */
    uint32_t busy;
    uint8_t *slots;
};

static job *job_at(const bp_ring *ring, uint32_t index)
{
    return (job *)(void *)(ring->slots + index * ring->job_bytes);
}

bp_status bp_ring_create(size_t work_bytes, bp_ring **ring)
{
    uint64_t each, all;
    if (!bp_add_u64(sizeof(job), work_bytes, &each) || !bp_round_up_u64(each, alignof(max_align_t), &each) ||
        !bp_mul_u64(each, BP_RING_JOBS, &all))
        return bp_fail(BP_ERR_OVERFLOW, "jobs of %zu bytes", work_bytes);
    bp_ring *r = calloc(1, sizeof *r);
    uint8_t *slots = calloc(1, all);
    if (r == NULL || slots == NULL) {
        free(r);
        free(slots);
        return bp_fail_memory(all + sizeof *r);
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->freed, NULL);
    r->job_bytes = each;
    r->slots = slots;
    for (uint32_t i = 0; i < BP_RING_JOBS; i++)
        job_at(r, i)->ring = r;
    *ring = r;
    return BP_OK;
}

void bp_ring_destroy(bp_ring **ring)
{
    if (ring == NULL || *ring == NULL)
        return;
    bp_ring *r = *ring;
    pthread_mutex_lock(&r->lock);
    while (r->busy > 0)
        pthread_cond_wait(&r->freed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    pthread_cond_destroy(&r->freed);
    pthread_mutex_destroy(&r->lock);
    free(r->slots);
    free(r);
    *ring = NULL;
}

static void host_ring_give(job *taken)
{
    bp_ring *ring = taken->ring;
    pthread_mutex_lock(&ring->lock);
    taken->busy = false;
    ring->busy--;
    pthread_cond_broadcast(&ring->freed);
    pthread_mutex_unlock(&ring->lock);
}

static void host_ring_run(void *argument)
{
    job *running = argument;
    running->function(running->owner, running->work);
    host_ring_give(running);
}

bp_status bp_ring_enqueue(bp_ring *ring, bp_stream *own, bp_stream *stream, bp_job_function *function, void *owner,
                          const void *work, size_t work_bytes)
{
    if (stream == own) {
        BP_TRY(bp_stream_synchronize(stream));
        function(owner, work);
        return BP_OK;
    }
    if (work_bytes > ring->job_bytes - sizeof(job))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a job of %zu bytes exceeds its slot of %zu bytes", work_bytes,
                       ring->job_bytes - sizeof(job));
    pthread_mutex_lock(&ring->lock);
    while (ring->busy == BP_RING_JOBS)
        pthread_cond_wait(&ring->freed, &ring->lock);
    uint32_t i = 0;
    while (job_at(ring, i)->busy)
        i++;
    job *taken = job_at(ring, i);
    taken->busy = true;
    ring->busy++;
    pthread_mutex_unlock(&ring->lock);

    taken->function = function;
    taken->owner = owner;
    memcpy(taken->work, work, work_bytes);
    bp_status status = bp_stream_call(stream, host_ring_run, taken);
    if (status != BP_OK)
        host_ring_give(taken);
    return status;
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

typedef struct host_engine {
    bp_engine base;
    bp_host_team team;
    bp_ring *ring;
} host_engine;

/* Largest work of a ring slot. */
typedef union host_work {
    bp_forward_work forward;
    bp_finish_work finish;
    bp_gradient_work gradient;
    bp_fused_work fused;
    bp_divergence_work divergence;
    bp_divergence_finish_work divergence_finish;
    bp_divergence_gradient_work divergence_gradient;
    bp_columns_work columns;
    bp_range_work range;
    bp_rearrange_work rearrange;
    bp_sums_work sums;
    bp_seed_work seed;
} host_work;

/* Defines the function that runs on the stream's thread, and the one that enqueues it. */
#define OPERATION(name)                                                                                                \
    static void run_##name(void *team, const void *work)                                                               \
    {                                                                                                                  \
        bp_host_##name(team, work);                                                                                    \
    }                                                                                                                  \
    static bp_status enqueue_##name(bp_engine *base, const bp_##name##_work *work, bp_stream *stream)                  \
    {                                                                                                                  \
        host_engine *engine = (host_engine *)base;                                                                     \
        return bp_ring_enqueue(engine->ring, base->own, stream, run_##name, &engine->team, work, sizeof *work);        \
    }
OPERATION(forward)
OPERATION(finish)
OPERATION(gradient)
OPERATION(fused)
OPERATION(divergence)
OPERATION(divergence_finish)
OPERATION(divergence_gradient)
OPERATION(columns)
OPERATION(range)
OPERATION(rearrange)
OPERATION(sums)
OPERATION(seed)

static void host_engine_destroy(bp_engine *base)
{
    host_engine *engine = (host_engine *)base;
    bp_ring_destroy(&engine->ring);
    bp_host_team_finish(&engine->team);
    free(engine);
}

static const bp_engine_ops host_ops = {.destroy = host_engine_destroy,
                                       .forward = enqueue_forward,
                                       .finish = enqueue_finish,
                                       .gradient = enqueue_gradient,
                                       .fused = enqueue_fused,
                                       .divergence = enqueue_divergence,
                                       .divergence_finish = enqueue_divergence_finish,
                                       .divergence_gradient = enqueue_divergence_gradient,
                                       .columns = enqueue_columns,
                                       .range = enqueue_range,
                                       .rearrange = enqueue_rearrange,
                                       .sums = enqueue_sums,
                                       .seed = enqueue_seed};

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
    created->base =
        (bp_engine){.ops = &host_ops, .kernels = created->team.kernels->name, .threads = created->team.threads};
    *engine = &created->base;
    return BP_OK;
}
