/* The fixed pool: the units of the most frequent kind share N sets of buffers, all other requests have memory of their own, or
 * are dynamic. Source: Megatron-LM's FixedPoolAllocator, which has two sets; N here is the plan's. */
#include "allocators/layout.h"
#include "allocators/slots.h"

const bp_allocator_ops bp_fixed_pool_ops = {
    .name = "fixed_pool", .lay_out = bp_lay_out_buffers, .claim = bp_claim_strictly};
