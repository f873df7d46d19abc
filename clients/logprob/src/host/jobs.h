/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of a host engine, distributed to its threads, and the ring that passes copies of work to the threads of streams. */
#ifndef BP_LOGPROB_HOST_JOBS_H
#define BP_LOGPROB_HOST_JOBS_H

#include <bucketpool/device.h>

#include <pthread.h>

#include "host/kernels.h"
#include "work.h"

/* ---- jobs: synchronous, on the thread of a stream ----------------------------------------------------------------------- */

/* Threads and kernels of the jobs. Jobs of several streams may run at once. */
typedef struct bp_host_team {
    const bp_host_kernels *kernels;
    uint32_t threads;
    bp_partial *tiles; /* of one row, when threads share it */
    pthread_mutex_t tiles_lock;
} bp_host_team;

/* Threads for a `threads` of the configuration. */
uint32_t bp_host_threads(uint32_t wanted);
/* `columns`: maximum of a row. */
bp_status bp_host_team_init(uint32_t threads, uint32_t kernels, uint64_t columns, bp_host_team *team);
void bp_host_team_finish(bp_host_team *team);

/* Runs items [begin, end). bp_host_distribute gives [0, count) to the threads in pieces. */
typedef void bp_host_piece(const void *job, uint64_t begin, uint64_t end);
void bp_host_distribute(const bp_host_team *team, uint64_t count, uint64_t piece, bp_host_piece *run, const void *job);

void bp_host_forward(bp_host_team *team, const bp_forward_work *work);
void bp_host_finish(bp_host_team *team, const bp_finish_work *work);
void bp_host_gradient(bp_host_team *team, const bp_gradient_work *work);
void bp_host_fused(bp_host_team *team, const bp_fused_work *work);
void bp_host_divergence(bp_host_team *team, const bp_divergence_work *work);
void bp_host_divergence_finish(bp_host_team *team, const bp_divergence_finish_work *work);
void bp_host_divergence_gradient(bp_host_team *team, const bp_divergence_gradient_work *work);
void bp_host_columns(bp_host_team *team, const bp_columns_work *work);
void bp_host_range(bp_host_team *team, const bp_range_work *work);
void bp_host_rearrange(bp_host_team *team, const bp_rearrange_work *work);
void bp_host_sums(bp_host_team *team, const bp_sums_work *work);
void bp_host_seed(bp_host_team *team, const bp_seed_work *work);

/* ---- enqueued work, in preallocated slots -------------------------------------------------------------------------------- */

#define BP_RING_JOBS 64 /* in flight; further ones wait */

typedef struct bp_ring bp_ring;

/* Runs on the stream's thread, with the enqueuing `owner` and its copy of the work. */
typedef void bp_job_function(void *owner, const void *work);

/* `work_bytes`: maximum size of a copy. Free with bp_ring_destroy. */
bp_status bp_ring_create(size_t work_bytes, bp_ring **ring);
/* Waits until all jobs have run. Accepts NULL and pointers to NULL; sets *ring to NULL. */
void bp_ring_destroy(bp_ring **ring);

/* Stream order; any thread. Waits while all slots are in flight. On the stream `own` (engine.h) the work runs at once, on the caller's thread. */
bp_status bp_ring_enqueue(bp_ring *ring, bp_stream *own, bp_stream *stream, bp_job_function *function, void *owner,
                          const void *work, size_t work_bytes);

#endif
