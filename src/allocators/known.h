/* Requests by name: (unit, ordinal, role). Cold; under the pool's binding lock once the pool is made. */
#ifndef BP_ALLOCATORS_KNOWN_H
#define BP_ALLOCATORS_KNOWN_H

#include "allocators/pool.h"

/* Makes room for the plan's requests and `extra` more, and takes over the plan's. */
bp_status bp_known_init(bp_pool *pool, const bp_plan *plan, uint32_t extra);

/* Index of a request, BP_NONE when it is not known. */
uint32_t bp_known_find(const bp_pool *pool, const char *unit, uint32_t ordinal, uint32_t role);

/* Adds a request that is not known yet; its unit is copied. There must be room. */
bp_status bp_known_add(bp_pool *pool, const bp_known *added, uint32_t *index);

#endif
