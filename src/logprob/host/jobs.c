#include "logprob/host/jobs.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"

typedef struct job {
    bp_jobs *jobs;
    bp_job_function *function;
    void *owner;
    bool busy;
    alignas(max_align_t) uint8_t work[];
} job;

struct bp_jobs {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    size_t job_bytes; /* with its work */
    uint32_t busy;
    uint8_t *slots;
};

static job *job_at(const bp_jobs *jobs, uint32_t index)
{
    return (job *)(void *)(jobs->slots + index * jobs->job_bytes);
}

bp_status bp_jobs_create(size_t work_bytes, bp_jobs **jobs)
{
    uint64_t each, all;
    if (!bp_add_u64(sizeof(job), work_bytes, &each) || !bp_round_up_u64(each, alignof(max_align_t), &each) ||
        !bp_mul_u64(each, BP_JOBS, &all))
        return bp_fail(BP_ERR_OVERFLOW, "jobs of %zu bytes", work_bytes);
    bp_jobs *j = calloc(1, sizeof *j);
    uint8_t *slots = calloc(1, all);
    if (j == NULL || slots == NULL) {
        free(j);
        free(slots);
        return bp_fail_memory(all + sizeof *j);
    }
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->freed, NULL);
    j->job_bytes = each;
    j->slots = slots;
    for (uint32_t i = 0; i < BP_JOBS; i++)
        job_at(j, i)->jobs = j;
    *jobs = j;
    return BP_OK;
}

void bp_jobs_destroy(bp_jobs **jobs)
{
    if (jobs == NULL || *jobs == NULL)
        return;
    bp_jobs *j = *jobs;
    pthread_mutex_lock(&j->lock);
    while (j->busy > 0)
        pthread_cond_wait(&j->freed, &j->lock);
    pthread_mutex_unlock(&j->lock);
    pthread_cond_destroy(&j->freed);
    pthread_mutex_destroy(&j->lock);
    free(j->slots);
    free(j);
    *jobs = NULL;
}

static job *take(bp_jobs *jobs)
{
    pthread_mutex_lock(&jobs->lock);
    while (jobs->busy == BP_JOBS)
        pthread_cond_wait(&jobs->freed, &jobs->lock);
    uint32_t i = 0;
    while (job_at(jobs, i)->busy)
        i++;
    job_at(jobs, i)->busy = true;
    jobs->busy++;
    pthread_mutex_unlock(&jobs->lock);
    return job_at(jobs, i);
}

static void give(job *taken)
{
    bp_jobs *jobs = taken->jobs;
    pthread_mutex_lock(&jobs->lock);
    taken->busy = false;
    jobs->busy--;
    pthread_cond_broadcast(&jobs->freed);
    pthread_mutex_unlock(&jobs->lock);
}

static void run(void *argument)
{
    job *running = argument;
    running->function(running->owner, running->work);
    give(running);
}

bp_status bp_jobs_enqueue(bp_jobs *jobs, bp_stream *stream, bp_job_function *function, void *owner, const void *work,
                          size_t work_bytes)
{
    if (work_bytes > jobs->job_bytes - sizeof(job))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a job of %zu bytes in a slot of %zu", work_bytes,
                       jobs->job_bytes - sizeof(job));
    job *taken = take(jobs);
    taken->function = function;
    taken->owner = owner;
    memcpy(taken->work, work, work_bytes);
    bp_status status = bp_stream_call(stream, run, taken);
    if (status != BP_OK)
        give(taken);
    return status;
}
