#include "planner/run_order.h"

#include <stdlib.h>

#include "core/fail.h"

void bp_run_order_finish(bp_run_order *order)
{
    free(order->runs);
    free(order->first_of_unit);
    free(order->next);
    free(order->last_of_unit);
    free(order->previous);
    free(order->holds_memory);
    free(order->child);
    free(order->sibling);
    free(order->newest_run);
    free(order->holder);
}

static bp_status new_links(size_t count, uint32_t **links)
{
    void *memory;
    BP_TRY(bp_new_array(count, sizeof **links, &memory));
    *links = memory;
    for (size_t i = 0; i < count; i++)
        (*links)[i] = BP_NO_RUN;
    return BP_OK;
}

/* Nested units by parent, in the order in which they were added. */
static bp_status link_children(const bp_buckets *buckets, bp_run_order *order)
{
    BP_TRY(new_links(buckets->unit_count, &order->child));
    BP_TRY(new_links(buckets->unit_count, &order->sibling));
    for (size_t u = buckets->unit_count; u-- > 0;) {
        int32_t parent = buckets->units[u].parent;
        if (parent >= 0) {
            order->sibling[u] = order->child[parent];
            order->child[parent] = (uint32_t)u;
        }
    }
    return BP_OK;
}

/* Hostile models repeat units that nest thousands of others. */
#define MOST_RUNS (1u << 24)

static bp_status add_run(bp_run_order *order, uint32_t unit)
{
    if (!order->holds_memory[unit])
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&order->runs, &order->capacity, order->count, sizeof *order->runs));
    if (order->count == MOST_RUNS)
        return bp_fail(BP_ERR_UNSUPPORTED, "a step of more than %u runs of units is not planned", MOST_RUNS);
    uint32_t place = (uint32_t)order->count;
    order->newest_run[unit] = place;
    order->runs[order->count++] = (bp_run){place, place, unit};
    return BP_OK;
}

/* A unit and everything nested in it, depth first without recursion: hostile models nest deeply. */
static bp_status add_nested_runs(const bp_buckets *buckets, bp_run_order *order, uint32_t top)
{
    uint32_t unit = top;
    size_t first = order->count;
    for (;;) {
        BP_TRY(add_run(order, unit));
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
    /* a unit spans the runs of its descendants, which follow it; in one expansion every unit runs at most once */
    for (size_t i = order->count; i-- > first;) {
        uint32_t outer_unit = order->runs[i].unit == top ? BP_NO_RUN : order->holder[order->runs[i].unit];
        if (outer_unit == BP_NO_RUN || order->newest_run[outer_unit] == BP_NO_RUN ||
            order->newest_run[outer_unit] < first)
            continue; /* nothing around it runs in this expansion */
        bp_run *outer = &order->runs[order->newest_run[outer_unit]];
        outer->last = outer->last > order->runs[i].last ? outer->last : order->runs[i].last;
    }
    return BP_OK;
}

static bp_status link_runs(const bp_buckets *buckets, bp_run_order *order)
{
    BP_TRY(new_links(buckets->unit_count, &order->first_of_unit));
    BP_TRY(new_links(buckets->unit_count, &order->last_of_unit));
    BP_TRY(new_links(order->count, &order->next));
    BP_TRY(new_links(order->count, &order->previous));
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

bp_status bp_run_order_init(const bp_buckets *buckets, bp_run_order *order)
{
    void *memory;
    BP_TRY(bp_new_array(buckets->unit_count, sizeof *order->holds_memory, &memory));
    order->holds_memory = memory;
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        if (buckets->buckets[i].unit >= 0 && buckets->buckets[i].numel > 0)
            order->holds_memory[buckets->buckets[i].unit] = true;
    }
    BP_TRY(link_children(buckets, order));
    BP_TRY(new_links(buckets->unit_count, &order->newest_run));
    BP_TRY(new_links(buckets->unit_count, &order->holder));
    for (size_t u = 0; u < buckets->unit_count; u++) { /* parents come first */
        int32_t parent = buckets->units[u].parent;
        if (parent >= 0)
            order->holder[u] = order->holds_memory[parent] ? (uint32_t)parent : order->holder[parent];
    }
    for (size_t i = 0; i < buckets->order_count; i++)
        BP_TRY(add_nested_runs(buckets, order, buckets->order[i]));
    if (order->count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" has no units that hold memory, so there is no schedule",
                       buckets->model);
    return link_runs(buckets, order);
}
