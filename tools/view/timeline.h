/* What a pool of a snapshot held and when: its events, played. */
#ifndef TOOLS_VIEW_TIMELINE_H
#define TOOLS_VIEW_TIMELINE_H

#include "formats/snapshots/snapshot.h"

#include <stdbool.h>

#define VIEW_OUTSIDE UINT32_MAX /* no slab: memory of its own */

/* A request that has bytes, from its first hold to the end of its last; where its slab loses its memory meanwhile, until then, and another one
 * from when it is back. */
typedef struct view_span {
    uint32_t request, slab;
    uint64_t offset;               /* in the slab; outside slabs the number of its track */
    uint64_t begin_ns, end_ns;     /* since the beginning of recording */
    uint64_t stream, step;         /* of its first hold */
    size_t begin_event, end_event; /* and slab events, counted from 1; 0: live before, SIZE_MAX: live at the end */
} view_span;

/* Requests whose role is beyond these are in the last one, "other". */
enum { VIEW_MOST_ROLES = 32 };

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
    view_span *spans; /* in the order of their beginnings */
    size_t span_count;
    uint64_t *tracks; /* outside slabs: the most bytes of each */
    size_t track_count;
    view_role roles[VIEW_MOST_ROLES];
    size_t role_count;
    uint64_t slab_bytes;
    /* The most that was live at once, first. */
    uint64_t peak_bytes, peak_ns;
    uint32_t *at_peak; /* spans, by role, unit and bucket */
    size_t at_peak_count;
    uint64_t peak_slab_bytes;   /* of slabs that have memory then */
    uint64_t peak_free_bytes;   /* of these, not live */
    uint64_t peak_largest_free; /* the largest range of these */
} view_pool;

/* Keeps pointers into the snapshot. Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_FORMAT (more spans than are sensible). Finish it either way. */
bp_status view_pool_init(const bp_snapshot_info *snapshot, size_t index, view_pool *pool);
void view_pool_finish(view_pool *pool);

/* Free bytes at the peak of those that slabs had, 0 to 1. */
double view_pool_free_share(const view_pool *pool);

/* Beginnings and ends of spans in the order of time; at the same time ends first, except of spans that begin then. */
typedef struct view_changes {
    const view_pool *pool;
    uint32_t *ends; /* spans that end, by time */
    size_t end_count, next_end, next_begin;
} view_changes;

/* false: out of memory. Finish it either way. */
bool view_changes_init(const view_pool *pool, view_changes *changes);
/* false: there are no more. */
bool view_changes_next(view_changes *changes, const view_span **span, bool *begins);
void view_changes_finish(view_changes *changes);

#endif
