/* SPDX-License-Identifier: Apache-2.0 */
/* A set of address ranges that do not overlap, each with the time since when it is in the set. */
#ifndef TOOLS_VIEW_RANGES_H
#define TOOLS_VIEW_RANGES_H

#include <bucketpool/status.h>

#include <stddef.h>
#include <stdint.h>

typedef struct view_range {
    uint64_t begin, end, since_ns;
} view_range;

typedef struct view_ranges {
    view_range *all; /* by address; neighbours are not merged */
    size_t count, capacity;
} view_ranges;

typedef bp_status view_range_visitor(void *user, const view_range *range);

/* Adds the parts of a range that are not in the set. `visit` (NULL: none) is called for each. O(n). Errors: BP_ERR_NO_HOST_MEMORY, those of
 * `visit`, and BP_ERR_FORMAT, when `*work`, which counts ranges that were moved, exceeds its limit. */
bp_status view_ranges_add(view_ranges *ranges, view_range added, uint64_t *work, view_range_visitor *visit, void *user);
/* Removes the parts of a range that are in the set. The rest of a range stays since when it was. */
bp_status view_ranges_take(view_ranges *ranges, view_range taken, uint64_t *work, view_range_visitor *visit,
                           void *user);
void view_ranges_finish(view_ranges *ranges);

#endif
