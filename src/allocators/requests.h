/* Requests of a pool: those of the plan, which are there from the start, and those that are bound beside it. Cold. */
#ifndef BP_ALLOCATORS_REQUESTS_H
#define BP_ALLOCATORS_REQUESTS_H

#include "allocators/pool.h"

/* Makes room for the plan's requests and `extra` more, and copies the descriptions of the plan's. */
bp_status bp_requests_init(bp_pool *pool, const bp_plan_info *plan, uint32_t extra);

/* Makes the plan's requests servable, once segments have addresses. */
bp_status bp_requests_start(bp_pool *pool);

#endif
