/* Copies between the slabs of a group and its host memory, chunk by chunk. */
#ifndef BP_OFFLOAD_COPIES_H
#define BP_OFFLOAD_COPIES_H

#include "offload/offload.h"

typedef struct bp_job_piece {
    uint8_t *device;
    uint8_t *host; /* NULL: there is nothing to copy */
    uint64_t bytes;
} bp_job_piece;

/* How far somebody has come with a job. */
typedef struct bp_walk {
    size_t piece;
    uint64_t offset;
} bp_walk;

/* A group on its way in one direction. Functions on the helper run in order and walk for themselves, so that there need not be an argument
 * for each chunk. */
typedef struct bp_job {
    bp_offload *offload;
    bp_group *group;
    bool away, staged;
    bool fill;    /* with zeros, what there is nothing to copy to */
    bool started; /* something was enqueued that uses its memory */
    uint64_t chunk_bytes, bytes;
    atomic_bool cancelled, over;
    bp_walk moved, arrived; /* of the helper's functions */
    uint64_t moved_chunks, copied_bytes;
    uint64_t copied_before;    /* what the group said of the copies before these */
    bp_backing_memory *orphan; /* of a job that was abandoned: goes with it */
    struct bp_job *next;
    size_t count;
    bp_job_piece pieces[];
} bp_job;

/* To or from `memory` (NULL: nothing is copied). The copies have not begun. */
bp_status bp_job_create_away(bp_offload *offload, bp_group *group, bp_backing_memory *memory, bp_job **job);
bp_status bp_job_create_back(bp_offload *offload, bp_group *group, bp_job **job);

/* Enqueues everything, and marks its end with the group's event. After a failure the job can only be abandoned. Does not wait. */
bp_status bp_copies_start(bp_job *job);
/* The host waits for the group's job, which is over then. After a failure it was abandoned. */
bp_status bp_copies_wait(bp_offload *offload, bp_group *group);

/* Nobody wants the job any more: progress is silent. It is freed when nothing of it can be on its way, and `orphan` (may be NULL) with
 * it. Does not wait. */
void bp_copies_abandon(bp_job *job, bp_backing_memory *orphan);
/* Memory that a job of the group was abandoned with: what follows on the same streams may use it again. NULL: there is none. */
bp_backing_memory *bp_copies_reclaim(bp_offload *offload, const bp_group *group);
/* Waits for what was abandoned, if there is any, and frees it. false: the device refuses to wait. */
bool bp_copies_settle(bp_offload *offload);

#endif
