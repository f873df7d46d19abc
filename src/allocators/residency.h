/* SPDX-License-Identifier: Apache-2.0 */
/* Offloading of a pool's slabs, as seen by requests and graphs: all that an offload uses of a pool. One caller at a time. */
#ifndef BP_ALLOCATORS_RESIDENCY_H
#define BP_ALLOCATORS_RESIDENCY_H

#include <bucketpool/pool.h>

#include <stdbool.h>

#include "devices/memory/slabs.h"

bp_device *bp_pool_device(const bp_pool *pool);
/* The pool's slabs, which the offload unloads and loads. */
bp_slabs *bp_pool_slabs(bp_pool *pool);

/* Attaches the offload of a pool, at most one. `gone` is called when the pool is destroyed, before its slabs are freed. Errors:
 * BP_ERR_SCHEDULE (already attached), BP_ERR_UNSUPPORTED (guard mode, a device without memory), BP_ERR_CAPTURE. */
bp_status bp_residency_join(bp_pool *pool, void *user, void (*gone)(void *user));
void bp_residency_leave(bp_pool *pool);

/* True if the slab is offloaded or in transition. */
bool bp_residency_is_closed(const bp_pool *pool, uint32_t slab);
/* Slab of a request's planned memory, also while it holds overflow memory; BP_NONE: without a slab. */
uint32_t bp_home_slab(const bp_pool *pool, uint32_t id);
/* True if the request's home slab is closed. */
bool bp_home_is_closed(const bp_pool *pool, uint32_t id);

/* Withdraws the slabs marked in `chosen` (one entry per slab) from all requests: free memory cannot be acquired, and requests that are
 * always live (state roles, persistent) cannot be acquired, used or released. `group` names the release group in messages. Errors, with
 * nothing withdrawn: BP_ERR_SCHEDULE, which names the live request, the launch that has the memory, or the request that another call
 * works on. */
bp_status bp_residency_close(bp_pool *pool, const bool *chosen, const char *group);
void bp_residency_open(bp_pool *pool, const bool *chosen);

/* Graphs with collectives in the slabs. check: BP_ERR_CAPTURE names one, if there is one. void: refuses their launches from now on. */
bp_status bp_residency_check_graphs(const bp_pool *pool, const bool *chosen, const char *group);
void bp_residency_void_graphs(bp_pool *pool, const bool *chosen);

#endif
