/* Offloads from within: release groups, and what becomes of them. */
#ifndef BP_OFFLOAD_OFFLOAD_H
#define BP_OFFLOAD_OFFLOAD_H

#include <bucketpool/offload.h>

#include <pthread.h>
#include <stdbool.h>

#include "allocators/pool.h"
#include "core/fail.h"
#include "devices/device.h"

/* Streams of copies: for each direction one that carries what moves bytes and nothing else, and a helper that runs functions of the host, so that
 * no copy waits for one that it does not need. */
enum { BP_AWAY_COPIES, BP_AWAY_HELPER, BP_BACK_COPIES, BP_BACK_HELPER, BP_MOVERS };

/* ---- host memory of a group -------------------------------------------------------------------------------------- */

/* Where the bytes of a group are while it is away: a piece of host memory for each of its slabs. */

/* Where host memory comes from. */
typedef struct bp_host_source {
    bp_pinned *pinned;
    bp_backing backing;
    uint64_t chunk_bytes; /* of copies */
    /* Two pinned chunks that staged copies go through in turn, in both directions; NULL: not needed yet. */
    void *stages[2];
    uint64_t stage_bytes; /* of each */
} bp_host_source;

typedef struct bp_kept {
    void *memory;
    uint64_t bytes;
    uint64_t kept; /* of them are the slab's, to be restored. What comes back depends on this alone */
} bp_kept;

typedef struct bp_backing_memory {
    bool pinned;
    uint64_t bytes; /* of all pieces */
    size_t count;
    bp_kept pieces[]; /* of the group's slabs, in their order */
} bp_backing_memory;

/* ---- offloads ---------------------------------------------------------------------------------------------------- */

/* A group on its way in one direction. */
typedef struct bp_job bp_job;

/* A release group. What other threads look at (getters, leases, threads of the device) is under the offload's lock; the rest belongs to the
 * caller of begin and finish. */
typedef struct bp_group {
    const char *name;
    bool *chosen;    /* an entry for each slab of the pool */
    uint32_t *slabs; /* the group's own, in order */
    uint32_t slab_count;
    uint64_t bytes;
    bool joint; /* a slab of it is for several roles that take turns */
    bool lost;  /* an offload that was destroyed has left it away */

    bool recapture;            /* graphs with collectives in it become void */
    bp_restore fill;           /* of what was discarded */
    bp_backing_memory *memory; /* NULL: none now */
    bp_job *job;               /* the copies on their way; NULL: none, or they could not begin */
    bp_event *done;            /* after the copies that began last; NULL: none ever did */

    /* under the lock */
    bp_residency residency;
    uint64_t resident_bytes, kept_bytes, host_bytes, unreturned_bytes, copied_bytes, offloads, restores;
    bool pinned;
    bp_lease *leases; /* out, the newest first */
    uint32_t lease_count;
} bp_group;

struct bp_offload {
    atomic_uint references; /* the caller's, and one for each lease */
    bp_pool *pool;          /* NULL: it was destroyed */
    bp_device *device;
    bp_process process; /* that made it */
    char *pool_name;
    bp_host_source source;
    bp_offload_progress *progress;
    void *user;
    bp_stream *movers[BP_MOVERS];
    bp_job *abandoned; /* copies that nobody wants any more and that may still be on their way */
    bp_group *groups;
    size_t group_count;
    bp_strings strings;
    pthread_mutex_t lock;
};

/* An offload whose pool is there: without one there is nobody to agree with. */
bp_status bp_offload_check(const bp_offload *offload, const char *function);
/* What all ranks say, which is never better than what this one does. */
bp_status bp_offload_agree(const bp_offload *offload, bp_status so_far);

/* "resident", "offloading", "offloaded", "restoring"; "invalid" otherwise. Static. */
const char *bp_residency_name(bp_residency residency);

bp_status bp_group_find(bp_offload *offload, const char *name, const char *function, bp_group **group);
/* Says how the group is now, and takes over the numbers that go with it. */
void bp_group_set(bp_offload *offload, bp_group *group, bp_residency residency);
bp_status bp_group_fail_residency(const bp_offload *offload, const bp_group *group, const char *function);

/* Who has leases, for messages; under the lock. */
bp_status bp_leases_check(const bp_offload *offload, const bp_group *group);

/* Host memory for the group's slabs. All or nothing. Errors: BP_ERR_NO_HOST_MEMORY (with the numbers), what the device reports. */
bp_status bp_backing_memory_create(bp_offload *offload, const bp_group *group, bp_backing_memory **memory);
/* No copy may use it any more. Accepts pointers to NULL. */
void bp_backing_memory_destroy(bp_host_source *source, bp_backing_memory **memory);
uint64_t bp_backing_memory_kept(const bp_backing_memory *memory);
void bp_backing_memory_forget(bp_backing_memory *memory);
void bp_host_source_drop_stages(bp_host_source *source);

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* To or from `memory` (NULL: nothing is copied). The copies have not begun. */
bp_status bp_job_create(bp_offload *offload, bp_group *group, bool away, const bp_backing_memory *memory, bp_job **job);

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
