/* Requests of a pool: those of the plan, which are there from the start, and those that are bound beside it. Cold. */
#ifndef BP_ALLOCATORS_REQUESTS_H
#define BP_ALLOCATORS_REQUESTS_H

#include "allocators/pool.h"

/* Makes room for the plan's requests and `extra` more, and copies the descriptions of the plan's. */
bp_status bp_requests_init(bp_pool *pool, const bp_plan_info *plan, uint32_t extra);

/* Makes the plan's requests servable, once segments have addresses. */
bp_status bp_requests_start(bp_pool *pool);

/* ---- dynamic requests -------------------------------------------------------------------------------------------- */

/* Requests whose memory the device allocates at each acquire. */

/* Allocates for a request whose word is claimed, for work on `stream`. `patient`: where the device is out of memory, waits for what
 * is on its way back. */
bp_status bp_dynamic_claim(bp_pool *pool, uint32_t id, bp_stream *stream, bool patient);
/* Marks the allocation on its stream: for streams that acquire the live request too. */
bp_status bp_dynamic_mark(bp_pool *pool, uint32_t id, bp_stream *stream);
/* Takes an allocation back that no work has seen. */
void bp_dynamic_unclaim(bp_pool *pool, uint32_t id, bp_stream *stream);
/* Frees after what the reaper waits for. */
void bp_dynamic_free(bp_pool *pool, uint32_t id);

/* Frees what is live and what could not be freed before. The device is idle. */
void bp_dynamic_finish(bp_pool *pool);

#endif
