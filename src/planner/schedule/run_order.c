/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which units run in one pass over the model, nested units within their parents. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "planner/schedule/training.h"

/* Limit against hostile models that repeat units with thousands of nested ones. */
#define MAX_RUNS (1u << 24)

/* Adds a unit and its descendants depth first, without recursion: hostile models nest deeply. */
static bp_status add_nested_runs(const bp_buckets *buckets, bp_run_order *order, uint32_t top)
{
    uint32_t unit = top;
    size_t first = order->count;
    for (;;) {
        if (order->holds_memory[unit]) {
            uint32_t place = (uint32_t)order->count;
            BP_TRY(bp_grow_array((void **)&order->runs, &order->capacity, order->count, sizeof *order->runs));
            if (order->count == MAX_RUNS)
                return bp_fail(BP_ERR_UNSUPPORTED, "a step has more than %u runs of units, which is not supported",
                               MAX_RUNS);
            order->newest_run[unit] = place;
            order->runs[order->count++] = (bp_unit_run){place, place, unit};
        }
        if (order->child[unit] != BP_NO_RUN) {
            unit = order->child[unit];
            continue;
        }
        while (unit != top && order->sibling[unit] == BP_NO_RUN)
            unit = (uint32_t)buckets->units[unit].parent;
        if (unit == top)
            break;
        unit = order->sibling[unit];
    }
    /* a unit spans the runs of its descendants, which follow it; each unit runs at most once in one expansion */
    for (size_t i = order->count; i-- > first;) {
        uint32_t outer_unit = order->runs[i].unit == top ? BP_NO_RUN : order->holder[order->runs[i].unit];
        if (outer_unit == BP_NO_RUN || order->newest_run[outer_unit] == BP_NO_RUN ||
            order->newest_run[outer_unit] < first)
            continue; /* no enclosing unit runs in this expansion */
        bp_unit_run *outer = &order->runs[order->newest_run[outer_unit]];
        outer->last = outer->last > order->runs[i].last ? outer->last : order->runs[i].last;
    }
    return BP_OK;
}

bp_status bp_run_order_init(const bp_buckets *buckets, bp_run_order *order)
{
    size_t units = buckets->unit_count;
    BP_TRY(bp_new_array(units, sizeof *order->holds_memory, (void **)&order->holds_memory));
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        if (buckets->buckets[i].unit >= 0 && buckets->buckets[i].numel > 0)
            order->holds_memory[buckets->buckets[i].unit] = true;
    }
    BP_TRY(bp_new_array(units, 6 * sizeof *order->of_units, (void **)&order->of_units));
    memset(order->of_units, 0xff, 6 * units * sizeof *order->of_units); /* BP_NO_RUN */
    order->first_of_unit = order->of_units;
    order->last_of_unit = order->of_units + units;
    order->child = order->of_units + 2 * units;
    order->sibling = order->of_units + 3 * units;
    order->newest_run = order->of_units + 4 * units;
    order->holder = order->of_units + 5 * units;
    for (size_t u = units; u-- > 0;) { /* children in the order in which they were added */
        int32_t parent = buckets->units[u].parent;
        if (parent >= 0) {
            order->sibling[u] = order->child[parent];
            order->child[parent] = (uint32_t)u;
        }
    }
    for (size_t u = 0; u < units; u++) { /* parents come first */
        int32_t parent = buckets->units[u].parent;
        if (parent >= 0)
            order->holder[u] = order->holds_memory[parent] ? (uint32_t)parent : order->holder[parent];
    }

    bool has_root = buckets->root >= 0 && order->holds_memory[buckets->root];
    if (has_root)
        BP_TRY(add_nested_runs(buckets, order, (uint32_t)buckets->root));
    for (size_t i = 0; i < buckets->order_count; i++)
        BP_TRY(add_nested_runs(buckets, order, buckets->order[i]));
    if (has_root)
        order->runs[0].last = (uint32_t)order->count - 1;
    if (order->count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" has no units with memory; a schedule needs at least one",
                       buckets->model);
    BP_TRY(bp_new_array(order->count, 2 * sizeof *order->of_runs, (void **)&order->of_runs));
    memset(order->of_runs, 0xff, 2 * order->count * sizeof *order->of_runs);
    order->next = order->of_runs;
    order->previous = order->of_runs + order->count;
    for (size_t i = 0; i < order->count; i++) {
        uint32_t unit = order->runs[i].unit, before = order->last_of_unit[unit];
        order->previous[i] = before;
        if (before != BP_NO_RUN)
            order->next[before] = (uint32_t)i;
        else
            order->first_of_unit[unit] = (uint32_t)i;
        order->last_of_unit[unit] = (uint32_t)i;
    }
    return BP_OK;
}

void bp_run_order_finish(bp_run_order *order)
{
    free(order->runs);
    free(order->holds_memory);
    free(order->of_units);
    free(order->of_runs);
    *order = (bp_run_order){0};
}
