/* Residency observers: called when a slab is mapped and before it is unmapped. Registration with communicators, annotations, profiles. */
#ifndef BP_MEMORY_SLAB_CALLBACKS_H
#define BP_MEMORY_SLAB_CALLBACKS_H

#include <bucketpool/pool.h>

typedef struct bp_slab_callbacks {
    /* The slab has memory from now on: called when it is added and whenever memory comes back. A failure undoes what brought
     * the memory. */
    bp_status (*attach)(void *user, uint32_t slab, void *address, uint64_t bytes);
    /* It is about to lose it; in the reverse order of attach. */
    void (*detach)(void *user, uint32_t slab, void *address, uint64_t bytes);
    /* The pool is being destroyed, everything is detached; `user` is not used any more. May be NULL. */
    void (*gone)(void *user);
    /* Asked before slabs lose their memory and before attach hears that it is back, with how that went here so far: how it went for all
     * who take part (ranks of communicators). May be NULL: nobody else does. */
    bp_status (*agree)(void *user, bp_status so_far);
    /* Whether graphs that are captured now keep what attach made for the slab (addresses of windows), and so are void once it is
     * detached. May be NULL: they do not. */
    int (*is_captured)(void *user, uint32_t slab);
} bp_slab_callbacks;

/* Adds callbacks to every slab, after those added before; attach is called at once for each, in slab order. When one fails those before
 * it are detached again in reverse and its status is returned. The table is copied; `user` must stay valid.
 * Errors: BP_ERR_SCHEDULE when the pool is sealed, BP_ERR_CAPTURE while it is being captured. */
BP_API bp_status bp_pool_attach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user);
/* Removes them again, with detach for each slab in reverse. Errors: BP_ERR_INVALID_ARGUMENT (not attached). */
BP_API bp_status bp_pool_detach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user);

#endif
