/* Slabs whose memory goes away and comes back, as far as the pool's requests and graphs are concerned. One caller at a time. */
#ifndef BP_ALLOCATORS_RESIDENCY_H
#define BP_ALLOCATORS_RESIDENCY_H

#include "allocators/pool.h"

/* The offloader of a pool: there is one at most. `gone` is called when the pool is being destroyed, while its slabs have what memory they
 * have. Errors: BP_ERR_SCHEDULE (there is one), BP_ERR_UNSUPPORTED (guard mode, a device without memory), BP_ERR_CAPTURE. */
bp_status bp_residency_join(bp_pool *pool, void *user, void (*gone)(void *user));
void bp_residency_leave(bp_pool *pool);
void bp_residency_pool_gone(bp_pool *pool);

/* Whether requests cannot have the slab's memory now. */
bool bp_residency_is_closed(const bp_pool *pool, uint32_t slab);
/* Where a request's own memory is, also while it holds overflow memory; BP_NONE: nowhere. */
uint32_t bp_home_slab(const bp_pool *pool, uint32_t id);
/* Whether that is closed. */
bool bp_is_away(const bp_pool *pool, uint32_t id);

/* Takes the memory of the slabs marked in `chosen` (one entry for each slab) from all requests: what is free cannot be acquired any more, and requests that are live for the pool's life
 * (state roles, persistent) cannot be acquired, used or released. `group` is for messages. Errors, with nothing taken: BP_ERR_SCHEDULE (another
 * request is live, a launch has the memory, a call is at work on a request: by name). */
bp_status bp_residency_close(bp_pool *pool, const bool *chosen, const char *group);
void bp_residency_open(bp_pool *pool, const bool *chosen);

/* Graphs that have collectives in the slabs. check: BP_ERR_CAPTURE when there is one, by name. void: launching them is an error from now on. */
bp_status bp_residency_check_graphs(const bp_pool *pool, const bool *chosen, const char *group);
void bp_residency_void_graphs(bp_pool *pool, const bool *chosen);

#endif
