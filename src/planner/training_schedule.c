/* The default training step: forward in order, backward in reverse, gathers a few units ahead. docs/schedules.md lists its
 * events. Source: Megatron-LM d98e8a64, megatron_fsdp: AllGatherPipeline, GradReducePipeline. */
#include "planner/schedule.h"

#include <stdlib.h>

#include "core/fail.h"

/* One run of a unit: its place in the forward order, and that of the last unit nested in it (itself when there is none). */
typedef struct occurrence {
    uint32_t place, last;
    uint32_t unit;
} occurrence;

typedef struct run_order {
    occurrence *runs; /* sorted by place */
    size_t count, capacity;
    uint32_t *first_of_unit, *next;    /* occurrences of a unit, first to last */
    uint32_t *last_of_unit, *previous; /* and back */
    bool *holds_memory;                /* units with at least one bucket that is not empty */
    uint32_t *child, *sibling;         /* nested units: first child, next sibling */
    uint32_t *newest_run;              /* of each unit */
    uint32_t *holder;                  /* of each unit: the innermost unit around it that holds memory */
} run_order;

#define NONE UINT32_MAX

static void finish_order(run_order *order)
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
        (*links)[i] = NONE;
    return BP_OK;
}

/* Nested units by parent, in the order in which they were added. */
static bp_status link_children(const bp_buckets *buckets, run_order *order)
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

static bp_status add_run(run_order *order, uint32_t unit)
{
    if (!order->holds_memory[unit])
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&order->runs, &order->capacity, order->count, sizeof *order->runs));
    if (order->count == MOST_RUNS)
        return bp_fail(BP_ERR_UNSUPPORTED, "a step of more than %u runs of units is not planned", MOST_RUNS);
    uint32_t place = (uint32_t)order->count;
    order->newest_run[unit] = place;
    order->runs[order->count++] = (occurrence){place, place, unit};
    return BP_OK;
}

/* A unit and everything nested in it, depth first without recursion: hostile models nest deeply. */
static bp_status add_nested_runs(const bp_buckets *buckets, run_order *order, uint32_t top)
{
    uint32_t unit = top;
    size_t first = order->count;
    for (;;) {
        BP_TRY(add_run(order, unit));
        if (order->child[unit] != NONE) {
            unit = order->child[unit];
            continue;
        }
        while (unit != top && order->sibling[unit] == NONE)
            unit = (uint32_t)buckets->units[unit].parent;
        if (unit == top)
            break;
        unit = order->sibling[unit];
    }
    /* a unit spans the runs of its descendants, which follow it; in one expansion every unit runs at most once */
    for (size_t i = order->count; i-- > first;) {
        uint32_t outer_unit = order->runs[i].unit == top ? NONE : order->holder[order->runs[i].unit];
        if (outer_unit == NONE || order->newest_run[outer_unit] == NONE || order->newest_run[outer_unit] < first)
            continue; /* nothing around it runs in this expansion */
        occurrence *outer = &order->runs[order->newest_run[outer_unit]];
        outer->last = outer->last > order->runs[i].last ? outer->last : order->runs[i].last;
    }
    return BP_OK;
}

static bp_status link_occurrences(const bp_buckets *buckets, run_order *order)
{
    BP_TRY(new_links(buckets->unit_count, &order->first_of_unit));
    BP_TRY(new_links(buckets->unit_count, &order->last_of_unit));
    BP_TRY(new_links(order->count, &order->next));
    BP_TRY(new_links(order->count, &order->previous));
    for (size_t i = 0; i < order->count; i++) {
        uint32_t unit = order->runs[i].unit, before = order->last_of_unit[unit];
        order->previous[i] = before;
        if (before != NONE)
            order->next[before] = (uint32_t)i;
        else
            order->first_of_unit[unit] = (uint32_t)i;
        order->last_of_unit[unit] = (uint32_t)i;
    }
    return BP_OK;
}

static bp_status make_order(const bp_buckets *buckets, run_order *order)
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
    return link_occurrences(buckets, order);
}

/* When a request is live. */
typedef enum liveness { LIVE_BOTH, LIVE_FORWARD, LIVE_BACKWARD, LIVE_GRADIENT, LIVE_ALWAYS } liveness;

static liveness liveness_of(const bp_buckets *buckets, uint32_t request, const bool *has_transpose)
{
    switch (buckets->requests[request].role) {
    case BP_ROLE_PARAM: return has_transpose[buckets->requests[request].bucket] ? LIVE_FORWARD : LIVE_BOTH;
    case BP_ROLE_PARAM_TRANSPOSE: return LIVE_BACKWARD;
    case BP_ROLE_STATE: return LIVE_ALWAYS;
    default: return LIVE_GRADIENT;
    }
}

static bp_status add_forward(bp_schedule *s, const run_order *order, uint32_t first, uint32_t prefetch)
{
    for (uint32_t i = first; i != NONE; i = order->next[i]) {
        uint32_t place = order->runs[i].place;
        BP_TRY(bp_schedule_add_interval(s, place > prefetch ? place - prefetch : 0, order->runs[i].last + 1));
    }
    return BP_OK;
}

/* Occurrences run backward from the last to the first. */
static bp_status add_backward(bp_schedule *s, const run_order *order, uint32_t unit, const bp_schedule_config *config,
                              bool gradient)
{
    uint32_t n = (uint32_t)order->count;
    uint32_t ahead = config->prefetch, drain = config->grad_units - 1;
    for (uint32_t i = order->last_of_unit[unit]; i != NONE; i = order->previous[i]) {
        uint32_t own = 2 * n - 1 - order->runs[i].place, begins = 2 * n - 1 - order->runs[i].last;
        if (gradient) {
            uint32_t end = own + 1 + (drain < 2 * n - 1 - own ? drain : 2 * n - 1 - own);
            BP_TRY(bp_schedule_add_interval(s, own, end));
        } else {
            BP_TRY(bp_schedule_add_interval(s, begins - n > ahead ? begins - ahead : n, own + 1));
        }
    }
    return BP_OK;
}

static bp_status add_live(bp_schedule *s, const run_order *order, uint32_t unit, liveness live,
                          const bp_schedule_config *config)
{
    if (live == LIVE_ALWAYS)
        return bp_schedule_add_interval(s, 0, (uint32_t)s->step_count);
    if (live == LIVE_BOTH || live == LIVE_FORWARD)
        BP_TRY(add_forward(s, order, order->first_of_unit[unit], config->prefetch));
    if (live == LIVE_FORWARD || config->passes == BP_PASSES_EVAL)
        return BP_OK;
    return add_backward(s, order, unit, config, live == LIVE_GRADIENT);
}

static bp_status add_group(bp_schedule *s, const bp_buckets *buckets, const bp_request_group *group,
                           const run_order *order, const bp_schedule_config *config, const bool *has_transpose)
{
    uint32_t end = group->first + group->count;
    for (uint32_t first = group->first; first < end;) {
        liveness live = liveness_of(buckets, first, has_transpose);
        uint32_t next = first + 1;
        while (next < end && liveness_of(buckets, next, has_transpose) == live)
            next++;
        BP_TRY(bp_schedule_add_span(s, first, next - first));
        BP_TRY(add_live(s, order, group->unit, live, config));
        first = next;
    }
    return BP_OK;
}

static bp_status generate(bp_schedule *s, const bp_buckets *buckets, const run_order *order,
                          const bp_schedule_config *config)
{
    if (order->count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" has no units that hold memory, so there is no schedule",
                       buckets->model);
    if (order->count > INT32_MAX / 2)
        return bp_fail(BP_ERR_OVERFLOW, "%zu units are more than a schedule can have", order->count);
    for (size_t i = 0; i < order->count; i++)
        BP_TRY(bp_schedule_add_step(s, BP_PHASE_FORWARD, (int32_t)order->runs[i].unit));
    for (size_t i = order->count; !config->passes == BP_PASSES_EVAL && i-- > 0;)
        BP_TRY(bp_schedule_add_step(s, BP_PHASE_BACKWARD, (int32_t)order->runs[i].unit));
    void *memory;
    BP_TRY(bp_new_array(buckets->bucket_count, sizeof(bool), &memory));
    bool *has_transpose = memory;
    for (size_t i = 0; i < buckets->request_count && !config->passes == BP_PASSES_EVAL; i++)
        has_transpose[buckets->requests[i].bucket] |= buckets->requests[i].role == BP_ROLE_PARAM_TRANSPOSE;
    bp_status status = BP_OK;
    for (size_t g = 0; status == BP_OK && g < buckets->group_count; g++)
        status = add_group(s, buckets, &buckets->groups[g], order, config, has_transpose);
    free(has_transpose);
    return status;
}

bp_status bp_schedule_create_training(const bp_buckets *buckets, const bp_schedule_config *config,
                                      bp_schedule **schedule)
{
    if (buckets == NULL || config == NULL || schedule == NULL || config->size < sizeof *config ||
        config->grad_units == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_schedule_create_training: needs buckets, an initialised configuration "
                       "and grad_units of at least 1");
    bp_schedule *created;
    BP_TRY(bp_schedule_new(buckets, &created));
    run_order order = {0};
    bp_status status = make_order(buckets, &order);
    if (status == BP_OK)
        status = generate(created, buckets, &order, config);
    finish_order(&order);
    if (status != BP_OK) {
        bp_schedule_destroy(&created);
        return status;
    }
    *schedule = created;
    return BP_OK;
}
