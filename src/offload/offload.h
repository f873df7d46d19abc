/* Offloads from within: release groups, and what becomes of them. */
#ifndef BP_OFFLOAD_OFFLOAD_H
#define BP_OFFLOAD_OFFLOAD_H

#include <bucketpool/offload.h>

#include <pthread.h>

#include "allocators/pool.h"
#include "core/fail.h"
#include "offload/backing.h"
#include "offload/movers.h"

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
void bp_offload_release(bp_offload *offload);

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
