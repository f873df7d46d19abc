/* SPDX-License-Identifier: Apache-2.0 */
/* Residency observers: called when a slab is mapped and before it is unmapped. Registration with communicators, annotations, profiles. */
#ifndef BP_MEMORY_SLAB_CALLBACKS_H
#define BP_MEMORY_SLAB_CALLBACKS_H

#include <bucketpool/status.h>

typedef struct bp_pool bp_pool; /* the library's code below pools does not look into them */

typedef struct bp_slab_callbacks {
    /* The slab was mapped: called when it is added and after each restore. A failure undoes the mapping. */
    bp_status (*attach)(void *user, uint32_t slab, void *address, uint64_t bytes);
    /* The slab will be unmapped; called in the reverse order of attach. */
    void (*detach)(void *user, uint32_t slab, void *address, uint64_t bytes);
    /* The pool is being destroyed and all slabs are detached; `user` is not used any more. May be NULL. */
    void (*gone)(void *user);
    /* Collective status agreement before slabs are unmapped and after they are mapped: takes this process's status, returns that of all
     * participants (ranks of communicators). May be NULL: no other participants. */
    bp_status (*agree)(void *user, bp_status so_far);
    /* True if graphs captured now contain what attach made for the slab (addresses of windows), and become void when it is detached. May
     * be NULL: false. */
    int (*is_captured)(void *user, uint32_t slab);
} bp_slab_callbacks;

/* Attaches an observer after the existing ones; attach is called at once for each slab, in order. If one fails, the earlier slabs are
 * detached in reverse order and its status is returned. The table is copied; `user` must stay valid. Errors: BP_ERR_SCHEDULE if the pool
 * is sealed, BP_ERR_CAPTURE while it is being captured. */
BP_API bp_status bp_pool_attach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user);
/* Removes the observer; calls detach for each slab in reverse order. Errors: BP_ERR_INVALID_ARGUMENT (not attached). */
BP_API bp_status bp_pool_detach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user);

#endif
