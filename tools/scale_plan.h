/* Plans divided by a power of two: the same buckets at the same places in slabs that fit a machine at hand. */
#ifndef TOOLS_SCALE_PLAN_H
#define TOOLS_SCALE_PLAN_H

#include <bucketpool/bucketpool.h>

#define MOST_SCALE (1u << 30)

/* What a size becomes: rounded up. Offsets are multiples of the scale, so nothing overlaps that did not before. */
uint64_t scaled_bytes(uint64_t bytes, uint64_t scale);

/* The plan with all offsets and sizes divided; its alignment must be a multiple of `scale`. The caller owns *scaled.
 * Errors: those of the plan builder. */
bp_status scale_plan(const bp_plan *plan, uint64_t scale, bp_plan **scaled);

/* Bytes that one iteration writes into buckets (UINT64_MAX when that does not fit): what the time of a run goes by. */
uint64_t iteration_bytes(const bp_buckets *buckets, const bp_schedule *schedule);

#endif
