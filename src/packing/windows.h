/* Search in windows: for long problems, which are hard in a few places. */
#ifndef BP_PACKING_WINDOWS_H
#define BP_PACKING_WINDOWS_H

#include "packing/order.h"
#include "packing/problem.h"

typedef struct bp_windows_config {
    uint64_t capacity;
    uint32_t ahead;  /* items that a window has at least */
    uint64_t share;  /* work of one window */
    uint32_t series; /* as in search.h */
} bp_windows_config;

typedef struct bp_windows_result {
    bool found;      /* `offsets` are a placement within the capacity */
    bool impossible; /* proven that there is none */
} bp_windows_result;

/* Goes along the order. An item stays where it is in `offsets`, unless that is above the capacity or in the way of what was placed
 * before it (BP_NOT_FIXED, placing.h, is above). Else it is searched for a place together with the next few, while what was placed
 * before stays; failing that, together with more and more of it. */
bp_status bp_windows(const bp_problem *problem, const bp_order *order, const bp_windows_config *config, bp_work *work,
                     uint64_t *offsets, bp_windows_result *result);

#endif
