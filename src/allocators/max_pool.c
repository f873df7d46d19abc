/* The max pool: for each dtype N copies of as many buffers as the widest unit has buckets, the k-th as large as the largest k-th
 * bucket. Source: Megatron-LM's MaxPoolAllocator (PR 5462), whose buffers grow when a larger bucket first arrives; these are made at
 * full size. */
#include "allocators/layout.h"
#include "allocators/slots.h"

const bp_allocator_ops bp_max_pool_ops = {
    .name = "max_pool", .lay_out = bp_lay_out_buffers, .claim = bp_claim_strictly};
