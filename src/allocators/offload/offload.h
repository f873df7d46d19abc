/* SPDX-License-Identifier: Apache-2.0 */
/* Private data of offloads: release groups, their host memory and copies. */
#ifndef BP_OFFLOAD_OFFLOAD_H
#define BP_OFFLOAD_OFFLOAD_H

#include <bucketpool/core/fail.h>
#include <bucketpool/offload.h>

#include <pthread.h>
#include <stdbool.h>

#include "allocators/residency.h"
#include "core/memory.h"
#include "devices/device.h"

/* Streams of copies: for each direction one for copies alone, and a helper for host functions, so that no copy waits for an unrelated
 * one. */
enum { BP_OFFLOAD_COPIES, BP_OFFLOAD_HELPER, BP_RESTORE_COPIES, BP_RESTORE_HELPER, BP_MOVERS };

/* ---- host memory of a group -------------------------------------------------------------------------------------- */

/* Host memory of an offloaded group, one piece per slab. */

/* Source of host memory. */
typedef struct bp_host_source {
    bp_pinned *pinned;
    bp_backing backing;
    uint64_t chunk_bytes; /* size of copies */
    /* Two pinned chunks that staged copies of both directions alternate between; NULL: not needed yet. */
    void *stages[2];
    uint64_t stage_bytes; /* of each stage */
} bp_host_source;

typedef struct bp_kept {
    void *memory;
    uint64_t bytes;
    uint64_t kept; /* bytes of the slab to restore. Restoring depends on this field alone */
} bp_kept;

typedef struct bp_backing_memory {
    bool pinned;
    uint64_t bytes; /* of all pieces */
    size_t count;
    bp_kept pieces[]; /* by the group's slabs, in order */
} bp_backing_memory;

/* ---- offloads ---------------------------------------------------------------------------------------------------- */

/* A transition of a group in one direction. */
typedef struct bp_job bp_job;

/* A release group. Fields that other threads read (getters, leases, device threads) are under the offload's lock; the rest belongs to the
 * caller of begin and finish. */
typedef struct bp_group {
    const char *name;
    bool *chosen;    /* one entry per slab of the pool */
    uint32_t *slabs; /* the group's slabs, in order */
    uint32_t slab_count;
    uint64_t bytes;
    bool joint; /* several roles share one of its slabs */
    bool lost;  /* left offloaded when its offload was destroyed */

    bool recapture;            /* graphs with collectives in it become void */
    bp_restore fill;           /* fill of discarded memory */
    bp_backing_memory *memory; /* NULL: none */
    bp_job *job;               /* copies in flight; NULL: none, or they could not begin */
    bp_event *done;            /* recorded after the latest copies; NULL: none yet */

    /* under the lock */
    bp_residency residency;
    uint64_t resident_bytes, kept_bytes, host_bytes, unreturned_bytes, copied_bytes, offloads, restores;
    bool pinned;
    bp_lease *leases; /* present leases, newest first */
    uint32_t lease_count;
} bp_group;

struct bp_offload {
    atomic_uint references; /* the caller's, and one per lease */
    bp_pool *pool;          /* NULL: the pool was destroyed */
    bp_device *device;
    bp_process process; /* process that made the offload */
    char *pool_name;
    bp_host_source source;
    bp_offload_progress *progress;
    void *user;
    bp_stream *movers[BP_MOVERS];
    bp_job *abandoned; /* abandoned jobs that may still be in flight */
    bp_group *groups;
    size_t group_count;
    bp_strings strings;
    pthread_mutex_t lock;
};

/* Checks the offload and that its pool exists, which status agreement needs. */
bp_status bp_offload_check(const bp_offload *offload, const char *function);
/* Collective status agreement; never better than the local status. */
bp_status bp_offload_agree(const bp_offload *offload, bp_status so_far);

/* "resident", "offloading", "offloaded", "restoring"; "invalid" otherwise. Static. */
const char *bp_residency_name(bp_residency residency);

bp_status bp_group_find(bp_offload *offload, const char *name, const char *function, bp_group **group);
/* Sets the group's residency, and updates the statistics. */
void bp_group_set(bp_offload *offload, bp_group *group, bp_residency residency);
bp_status bp_group_fail_residency(const bp_offload *offload, const bp_group *group, const char *function);

/* Error that names the leases of a group; under the lock. */
bp_status bp_leases_check(const bp_offload *offload, const bp_group *group);

/* Allocates host memory for the group's slabs. All or nothing. Errors: BP_ERR_NO_HOST_MEMORY (with the numbers), errors of the device. */
bp_status bp_backing_memory_create(bp_offload *offload, const bp_group *group, bp_backing_memory **memory);
/* No copy may use the memory any more. Accepts pointers to NULL. */
void bp_backing_memory_destroy(bp_host_source *source, bp_backing_memory **memory);
uint64_t bp_backing_memory_kept(const bp_backing_memory *memory);
void bp_backing_memory_forget(bp_backing_memory *memory);
void bp_host_source_drop_stages(bp_host_source *source);

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Makes a job that copies to or from `memory` (NULL: copies nothing), without starting it. */
bp_status bp_job_create(bp_offload *offload, bp_group *group, bool out, const bp_backing_memory *memory, bp_job **job);

/* Enqueues all copies, and records the group's event after them. After a failure the job can only be abandoned. Does not block. */
bp_status bp_copies_start(bp_job *job);
/* Blocks until the group's job is complete. A job that failed has been abandoned. */
bp_status bp_copies_wait(bp_offload *offload, bp_group *group);

/* Abandons a job: it reports no more progress. The job, and `orphan` (may be NULL) with it, is freed once none of its copies is in flight.
 * Does not block. */
void bp_copies_abandon(bp_job *job, bp_backing_memory *orphan);
/* Memory of an abandoned job of the group, for reuse by later work on the same streams. NULL: none. */
bp_backing_memory *bp_copies_reclaim(bp_offload *offload, const bp_group *group);
/* Waits for abandoned jobs and frees them. false: the device refuses to synchronise. */
bool bp_copies_settle(bp_offload *offload);

#endif
