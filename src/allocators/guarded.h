/* Guard mode of a pool: what memory/guard.h offers, applied to requests. */
#ifndef BP_ALLOCATORS_GUARDED_H
#define BP_ALLOCATORS_GUARDED_H

#include "allocators/pool.h"

/* Closes all planned and overflow memory, and the pages between buffers for good. */
bp_status bp_guarded_start(bp_pool *pool);
/* Closes one more segment. */
bp_status bp_guarded_add(bp_pool *pool, uint32_t segment);
/* Opens a request whose memory was just claimed for work on `stream`. */
bp_status bp_guarded_open(bp_pool *pool, uint32_t id, bp_stream *stream);
/* Waits for the streams of a hold that is to end and checks its redzone. `stream`: where it is released, or NULL.
 * Errors: BP_ERR_SCHEDULE when something wrote past its end; the redzone is whole again and the hold goes on. */
bp_status bp_guarded_check(bp_pool *pool, uint32_t id, bp_stream *stream);
/* Closes a request's memory. */
void bp_guarded_shut(bp_pool *pool, uint32_t id);
/* Opens everything, before the memory goes back. */
void bp_guarded_finish(bp_pool *pool);

#endif
