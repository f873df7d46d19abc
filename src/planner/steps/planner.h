/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of bp_step_plan_trace: kinds of steps, live ranges on axes of time, placement, and the order of streams. */
#ifndef BP_STEPS_PLANNER_H
#define BP_STEPS_PLANNER_H

#include "planner/steps/steps.h"

/* A half-open interval in which an item holds its address. */
typedef struct bp_step_range {
    uint64_t begin, end;
    uint64_t live; /* from here on it is live; its window is before */
    uint32_t item; /* of its kind */
} bp_step_range;

typedef struct bp_step_ranges {
    bp_step_range *all;
    size_t count, capacity;
} bp_step_ranges;

/* An empty live range adds nothing. */
bp_status bp_step_ranges_add(bp_step_ranges *ranges, bp_step_range range);

typedef struct bp_step_planner {
    const bp_trace *trace;
    const bp_allocations *allocations;
    const bp_steps *steps;
    bp_step_plan_config config;
    uint32_t *ends; /* by event: the allocation whose memory is free from there on, or BP_TRACE_NONE */
    uint32_t main_stream;
    uint64_t windows_limit; /* live bytes of a kind together with windows; shorter windows keep it */
    uint32_t shortening;    /* windows are divided by it */

    /* Kinds of the plan: those of `steps`, and the first step of the process behind them. */
    size_t kind_count;
    uint32_t kind_of[BP_STEP_MAX_KINDS]; /* by kind of `steps`; BP_TRACE_NONE: only the first step of the process is */
    bool has_first;
    bp_trace_step first;              /* the first step of the process, and what comes before it */
    const bp_trace_step *after_first; /* the next step */
    bp_trace_step references[BP_STEP_PLAN_KINDS];
    bp_step_plan_kind kinds[BP_STEP_PLAN_KINDS];
    bp_step_plan_item *items[BP_STEP_PLAN_KINDS]; /* offset BP_STEP_OUTSIDE: outside */
} bp_step_planner;

/* The event from which on an allocation's memory may be used again: the tensor is gone, and later users come behind its
 * streams. The number of events: none is recorded. */
static inline uint32_t bp_step_stop(const bp_step_planner *p, const bp_allocation *a)
{
    const uint32_t stop = a->requested != BP_TRACE_NONE ? a->requested : a->end;
    return stop != BP_TRACE_NONE ? stop : (uint32_t)p->trace->event_count;
}

/* The recorded steps of a kind, in order: the next one from *next on, or NULL. */
const bp_trace_step *bp_step_next_of_kind(const bp_step_planner *p, uint32_t kind, size_t *next);
/* The order of an allocation of a recorded step in its kind, or BP_TRACE_NONE. */
uint32_t bp_step_order(const bp_step_planner *p, uint32_t kind, const bp_trace_step *step, size_t i);
/* Live during the whole last step: it belongs to no step, or is kept by one. */
bool bp_step_is_persistent(const bp_step_planner *p, const bp_allocation *a);

/* ---- live_ranges.c ------------------------------------------------------------------------------------------------- */

/* Makes the kinds and their items, and finds those that are outside. */
bp_status bp_step_planner_find_kinds(bp_step_planner *p);

/* Adds the ranges of a kind: the order of events in the reference step, and in each other step of the kind whose events
 * come in another order. Axes begin at *time, which moves behind them. */
bp_status bp_step_planner_find_ranges(const bp_step_planner *p, uint32_t kind, bool has_windows, uint64_t *time,
                                      bp_step_ranges *ranges);

/* Adds the ranges of two kinds of which a step of `kind` precedes one of `next` with memory that this one frees: that
 * memory, and what the next step allocates meanwhile. */
bp_status bp_step_planner_find_changes(const bp_step_planner *p, uint32_t kind, uint32_t next, uint64_t *time,
                                       bp_step_ranges *ranges, bp_step_ranges *next_ranges);

/* ---- first_fit.c --------------------------------------------------------------------------------------------------- */

/* Memory that items must leave alone for some time. */
typedef struct bp_step_obstacle {
    uint64_t begin, end, offset, bytes;
} bp_step_obstacle;

typedef struct bp_step_fit {
    const uint64_t *bytes; /* by item, rounded; 0: takes no place */
    size_t count;
    const bp_step_ranges *ranges;
    const bp_step_obstacle *obstacles;
    size_t obstacle_count;
    const uint64_t *wanted; /* by item: an offset that it gets if it is free, or BP_STEP_OUTSIDE; NULL: none */
    uint64_t least;         /* a total that is small enough: no other order is tried */
    uint64_t work;          /* limit of comparisons. 0: none */
    uint64_t capacity;      /* items that end behind it get BP_STEP_OUTSIDE. 0: none */
} bp_step_fit;

/* Places items at the lowest offset that is free during all of their ranges, in several orders, of which the best counts.
 * `total` gets the end of the last item; UINT64_MAX: the limit was reached. O(items * items live together). Errors:
 * BP_ERR_NO_HOST_MEMORY, BP_ERR_OVERFLOW. */
bp_status bp_step_first_fit(const bp_step_fit *fit, uint64_t *offsets, uint64_t *total);

/* ---- placement.c --------------------------------------------------------------------------------------------------- */

/* Offsets of all kinds in one slab. */
typedef struct bp_step_placement {
    uint64_t *offsets[BP_STEP_PLAN_KINDS]; /* by item */
    uint64_t ends[BP_STEP_PLAN_KINDS], bounds[BP_STEP_PLAN_KINDS], proven[BP_STEP_PLAN_KINDS];
    const char *methods[BP_STEP_PLAN_KINDS];
    uint64_t bytes;
    bool has_windows;
} bp_step_placement;

/* Places the kinds, the largest first: by the packer; around held memory, and around memory that steps carry into steps of
 * other kinds; and at the addresses of another kind with the same beginning, unless the slab then grows. The first step of
 * the process comes last, and does not make the slab larger: its items that do not fit get BP_STEP_OUTSIDE. */
bp_status bp_step_planner_place(const bp_step_planner *p, bool has_windows, bp_step_placement *placement);
void bp_step_placement_finish(bp_step_placement *placement);

/* The lower bound of a kind's items that are not outside. */
bp_status bp_step_planner_bound(const bp_step_planner *p, uint32_t kind, bool has_windows, uint64_t *bound);

/* ---- stream_order.c ------------------------------------------------------------------------------------------------ */

/* Sets precedes_stream of all items, and counts the waits of the largest steady kind. `waits`: room for the pairs of
 * streams. */
bp_status bp_step_planner_order_streams(const bp_step_planner *p, size_t stream_count, bp_step_plan_waits *waits,
                                        size_t *count);

#endif
