/* The scheduled allocator: the plan's offsets as they are. Requests may overlap partly, so slabs are cut at every end of a request
 * and a request claims all its segments; whoever holds one of them is in the way. Ordering follows from the segments too, so that it
 * holds in orders of requests that the plan did not foresee. */
#include "allocators/layout.h"
#include "allocators/slots.h"

static bool claim(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_known *known = &pool->known[pool->bounds[id].known];
    if (known->count > 0 && bp_claim_segments(pool, known->first, known->count, id, holder)) {
        bp_take_place(pool, id, known->first, known->count);
        return true;
    }
    return bp_claim_overflow(pool, id, *holder);
}

const bp_allocator_ops bp_scheduled_ops = {.name = "scheduled", .lay_out = bp_lay_out_cuts, .claim = claim};
