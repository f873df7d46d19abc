/* SPDX-License-Identifier: Apache-2.0 */
/* Live ranges of a pool, reconstructed from the events of its snapshot. */
#ifndef TOOLS_VIEW_TIMELINE_H
#define TOOLS_VIEW_TIMELINE_H

#include "formats/snapshots/snapshot.h"

#include <stdbool.h>

#define VIEW_OUTSIDE UINT32_MAX /* not in a slab */

/* A live range of a request with bytes: from its first reference to the end of its last. Unmapping its slab ends the
 * span, mapping begins another one. */
typedef struct view_span {
    uint32_t request, slab;
    uint64_t offset;               /* in the slab; not in a slab: number of its track */
    uint64_t begin_ns, end_ns;     /* since the beginning of recording */
    uint64_t stream, step;         /* of its first reference */
    size_t begin_event, end_event; /* counted from 1, slab events included; 0: live before, SIZE_MAX: live at the end */
} view_span;

/* A part of a slab while it is not mapped. */
typedef struct view_gone {
    uint32_t slab;
    uint64_t offset, bytes;
    uint64_t begin_ns, end_ns; /* since the beginning of recording; behind its end: not mapped then either */
} view_gone;

/* Requests with a later role are in the last one, "other". */
enum { VIEW_MAX_ROLES = 32 };

typedef struct view_role {
    const char *name;
    uint64_t peak_bytes, peak_ns;
    uint64_t at_peak_bytes; /* at the peak of the pool */
    bool in_plan;
    uint64_t plan_bytes, lower_bound_bytes;
} view_role;

typedef struct view_pool {
    const bp_snapshot_pool *info;
    uint64_t first_ns, length_ns; /* of recording */
    const bp_snapshot_request *requests;
    uint8_t *role_of; /* by request */
    const bp_snapshot_slab *slabs;
    view_span *spans; /* sorted by begin */
    size_t span_count;
    uint64_t *tracks; /* not in a slab: largest bytes of each track */
    size_t track_count;
    view_role roles[VIEW_MAX_ROLES];
    size_t role_count;
    view_gone *gone; /* by end */
    size_t gone_count, gone_capacity;
    uint64_t slab_bytes; /* the most that was mapped at once */
    /* The first peak of live bytes. */
    uint64_t peak_bytes, peak_ns;
    uint32_t *at_peak; /* spans, by role, unit and bucket */
    size_t at_peak_count;
    uint64_t peak_slab_bytes;   /* of slabs, mapped then */
    uint64_t peak_free_bytes;   /* of these, not live */
    uint64_t peak_largest_free; /* the largest range of these */
} view_pool;

/* Keeps pointers into the snapshot. Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_FORMAT (too many spans). Call the finish
 * function either way. */
bp_status view_pool_init(const bp_snapshot_info *snapshot, size_t index, view_pool *pool);
void view_pool_finish(view_pool *pool);

/* Finds the live spans and free ranges after these numbers of events and of slab events. Called by view_pool_init. */
bp_status view_peak_init(view_pool *pool, size_t peak_event, size_t slab_events);

/* Share of free bytes in the mapped slabs at the peak, 0 to 1. */
double view_pool_free_share(const view_pool *pool);

/* Begins and ends of spans in time order; at equal times ends first, except of spans that begin then. */
typedef struct view_changes {
    const view_pool *pool;
    uint32_t *ends; /* spans that end, by time */
    size_t end_count, next_end, next_begin;
} view_changes;

/* false: out of memory. Call the finish function either way. */
bool view_changes_init(const view_pool *pool, view_changes *changes);
/* false: no more. */
bool view_changes_next(view_changes *changes, const view_span **span, bool *begins);
void view_changes_finish(view_changes *changes);

#endif
