/* The engine of host devices: jobs wait in a ring of their own until their stream's thread runs them. */
#include "logprob/engine.h"

#include <stdlib.h>

#include "core/fail.h"
#include "logprob/host/jobs.h"

#define JOBS 64u

typedef struct host_engine host_engine;

typedef struct host_job {
    host_engine *engine;
    enum { PARTIALS, FINISH, GRADIENT } kind;
    union {
        bp_partials_work partials;
        bp_finish_work finish;
        bp_gradient_work gradient;
    };
    bool is_on_its_way;
} host_job;

struct host_engine {
    bp_engine base;
    bp_host_team team;
    host_job jobs[JOBS]; /* taken in turn; those of several streams end in any order */
    uint32_t next;
    pthread_mutex_t lock; /* of is_on_its_way */
    pthread_cond_t ended;
};

/* ---- jobs ---------------------------------------------------------------------------------------------------------- */

static host_job *take_job(host_engine *engine)
{
    host_job *job = &engine->jobs[engine->next++ % JOBS];
    pthread_mutex_lock(&engine->lock);
    while (job->is_on_its_way)
        pthread_cond_wait(&engine->ended, &engine->lock);
    job->is_on_its_way = true;
    pthread_mutex_unlock(&engine->lock);
    return job;
}

static void end_job(host_job *job)
{
    host_engine *engine = job->engine;
    pthread_mutex_lock(&engine->lock);
    job->is_on_its_way = false;
    pthread_cond_signal(&engine->ended);
    pthread_mutex_unlock(&engine->lock);
}

static void run_job(void *argument)
{
    host_job *job = argument;
    bp_host_team *team = &job->engine->team;
    switch (job->kind) {
    case PARTIALS: bp_host_partials(team, &job->partials); break;
    case FINISH: bp_host_finish(team, &job->finish); break;
    case GRADIENT: bp_host_gradient(team, &job->gradient); break;
    }
    end_job(job);
}

static bp_status enqueue(host_job *job, bp_stream *stream)
{
    bp_status status = bp_stream_call(stream, run_job, job);
    if (status != BP_OK)
        end_job(job);
    return status;
}

static bp_status enqueue_partials(bp_engine *engine, const bp_partials_work *work, bp_stream *stream)
{
    host_job *job = take_job((host_engine *)engine);
    job->kind = PARTIALS;
    job->partials = *work;
    return enqueue(job, stream);
}

static bp_status enqueue_finish(bp_engine *engine, const bp_finish_work *work, bp_stream *stream)
{
    host_job *job = take_job((host_engine *)engine);
    job->kind = FINISH;
    job->finish = *work;
    return enqueue(job, stream);
}

static bp_status enqueue_gradient(bp_engine *engine, const bp_gradient_work *work, bp_stream *stream)
{
    host_job *job = take_job((host_engine *)engine);
    job->kind = GRADIENT;
    job->gradient = *work;
    return enqueue(job, stream);
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static void destroy(bp_engine *base)
{
    host_engine *engine = (host_engine *)base;
    bp_host_team_finish(&engine->team);
    pthread_cond_destroy(&engine->ended);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static const bp_engine_ops host_ops = {destroy, enqueue_partials, enqueue_finish, enqueue_gradient};

bp_status bp_engine_create_host(uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine)
{
    host_engine *created = calloc(1, sizeof *created);
    if (created == NULL)
        return bp_fail_memory(sizeof *created);
    bp_status status = bp_host_team_init(threads, kernels, columns, &created->team);
    if (status != BP_OK) {
        free(created);
        return status;
    }
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->ended, NULL);
    for (uint32_t i = 0; i < JOBS; i++)
        created->jobs[i].engine = created;
    created->base = (bp_engine){&host_ops, created->team.kernels->name, created->team.threads};
    *engine = &created->base;
    return BP_OK;
}
