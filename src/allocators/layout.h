/* From a plan's slabs and requests to segments, and from segments to addresses. */
#ifndef BP_ALLOCATORS_LAYOUT_H
#define BP_ALLOCATORS_LAYOUT_H

#include "allocators/pool.h"

#define BP_MOST_SEGMENTS (1u << 20)

/* Fills places, homes, classes and copies. Policies fixed and max: every buffer is a segment, copies of the plan's classes and memory of
 * requests in no class. Policy scheduled: slabs are cut wherever a request begins or ends. Policy dynamic: there are none.
 * Errors: BP_ERR_MISMATCH where buffers overlap, or a request reaches beyond its buffer or is of another dtype than its class. */
bp_status bp_lay_out(bp_pool *pool, const bp_plan_info *plan);

/* Where the segments lie in the slabs as made, and how large these have to be: sizes[] by planned slab. Without guard mode
 * offsets are the plan's; with it segments that no request joins are a page apart and begin on one. */
bp_status bp_lay_out_slabs(bp_pool *pool, const bp_plan_info *plan, uint64_t *sizes);

#endif
