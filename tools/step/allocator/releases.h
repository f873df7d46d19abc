/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that goes back to the device in a trace: torch.cuda.empty_cache, or an allocation that made room for itself. Both are the same events. */
#ifndef BP_STEP_RELEASES_H
#define BP_STEP_RELEASES_H

#include "planner/steps/trace.h"
#include "step/allocator/caching_allocator.h"

typedef enum bp_release_cause {
    BP_RELEASE_FORCED,      /* by an allocation: the device had no memory, or garbage was collected */
    BP_RELEASE_EMPTY_CACHE, /* by torch.cuda.empty_cache, or the end of a private pool */
    BP_RELEASE_UNCLEAR      /* the trace allows both */
} bp_release_cause;

/* Events [first, end): segments that are freed, ranges that are unmapped, and frees that are completed in between; or an event
 * BP_TRACE_EMPTY_CACHE. */
typedef struct bp_release {
    size_t first, end;
    bp_release_cause cause;
} bp_release;

typedef struct bp_releases {
    bp_release *all; /* in the order of the trace */
    size_t count, capacity;
    size_t empty_caches, unclear; /* of these causes */
} bp_releases;

/* The causes, from the first of these that the trace has:
 *
 *  - an event BP_TRACE_EMPTY_CACHE;
 *  - the event before: memory that the same allocation got before it found none (forced);
 *  - the event after: anything but memory of the device and an out-of-memory error (empty_cache);
 *  - call stacks: of torch.cuda.empty_cache, or of the allocation that follows (forced). With context="alloc", PyTorch writes the stack of the
 *    segment's allocation for empty_cache: then they say nothing;
 *  - reserved bytes: the device had as much memory at another time as this allocation needed without the release (empty_cache), if garbage is
 *    not collected.
 *
 * O(events + frames). The caller finishes the releases, on failure too. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_releases_init(const bp_trace *trace, const bp_caching_settings *settings, bp_releases *releases);
void bp_releases_finish(bp_releases *releases);

#endif
