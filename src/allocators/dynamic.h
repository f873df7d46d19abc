/* Requests whose memory the device allocates at each acquire. */
#ifndef BP_ALLOCATORS_DYNAMIC_H
#define BP_ALLOCATORS_DYNAMIC_H

#include "allocators/pool.h"

/* Cold: what dynamic requests need. Once per pool, under the binding lock. */
bp_status bp_dynamic_prepare(bp_pool *pool);

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
