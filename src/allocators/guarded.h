/* Guard mode of a pool: what memory/guard.h offers, applied to requests. */
#ifndef BP_ALLOCATORS_GUARDED_H
#define BP_ALLOCATORS_GUARDED_H

#include "allocators/pool.h"

/* Closes all planned and overflow memory, and the pages between buffers for good. */
bp_status bp_guarded_start(bp_pool *pool);
/* Closes one more segment. */
bp_status bp_guarded_add(bp_pool *pool, uint32_t segment);
/* On the path of acquires and releases it is bp_guard_observer that is called. */
/* Opens everything, before the memory goes back. */
void bp_guarded_finish(bp_pool *pool);

#endif
