/* Offloads from within: release groups, and what becomes of them. */
#ifndef BP_OFFLOAD_OFFLOAD_H
#define BP_OFFLOAD_OFFLOAD_H

#include <bucketpool/offload.h>

#include <pthread.h>
#include <stdbool.h>

#include "allocators/pool.h"
#include "core/fail.h"
#include "devices/device.h"

/* ---- streams of copies ------------------------------------------------------------------------------------------- */

/* One direction. `copies` carries what moves bytes and nothing else; functions of the host run on `helper`, so that no copy waits for one
 * that it does not need. */
typedef struct bp_mover {
    bp_stream *copies, *helper;
} bp_mover;

typedef struct bp_movers {
    bp_mover away, back;
} bp_movers;

/* All or nothing. */
bp_status bp_movers_create(bp_device *device, bp_movers *movers);
void bp_movers_destroy(bp_movers *movers);

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

/* For slabs of these sizes. All or nothing. `group` is for messages. Errors: BP_ERR_NO_HOST_MEMORY (with the numbers), what the device reports. */
bp_status bp_backing_memory_create(bp_host_source *source, const char *group, const uint64_t *bytes, size_t count,
                                   bp_backing_memory **memory);
/* No copy may use it any more. Accepts pointers to NULL. */
void bp_backing_memory_destroy(bp_host_source *source, bp_backing_memory **memory);

uint64_t bp_backing_memory_kept(const bp_backing_memory *memory);
void bp_backing_memory_forget(bp_backing_memory *memory);

void bp_host_source_drop_stages(bp_host_source *source);

/* ---- offloads ---------------------------------------------------------------------------------------------------- */

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
    struct bp_job *job;        /* the copies on their way; NULL: none, or they could not begin */
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
    bp_movers movers;
    struct bp_job *abandoned; /* copies that nobody wants any more and that may still be on their way */
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

/* Finds the pool's groups. */
bp_status bp_groups_list(bp_offload *offload);
void bp_groups_free(bp_offload *offload);

bp_status bp_group_find(bp_offload *offload, const char *name, const char *function, bp_group **group);
/* Says how the group is now, and takes over the numbers that go with it. */
void bp_group_set(bp_offload *offload, bp_group *group, bp_residency residency);
bp_status bp_group_fail_residency(const bp_offload *offload, const bp_group *group, const char *function);

/* Who has leases, for messages; under the lock. */
bp_status bp_leases_check(const bp_offload *offload, const bp_group *group);

#endif
