/* Training and evaluation as FSDP runtimes run them: forward in order, backward in reverse, gathers a few units ahead.
 * docs/schedules.md lists the events. Source: Megatron-LM d98e8a64, megatron_fsdp: AllGatherPipeline, GradReducePipeline. */
#include <stdlib.h>

#include "core/fail.h"
#include "core/structs.h"
#include "planner/run_order.h"
#include "planner/schedule.h"
#include "planner/time_axis.h"

/* How many units ahead a unit is gathered. */
typedef struct depth {
    uint32_t forward, backward;
    bool is_override;
} depth;

typedef struct generator {
    const bp_buckets *buckets;
    const bp_schedule_config *config;
    bp_schedule *schedule;
    bp_run_order order;
    bp_time_axis axis;
    depth *depths;       /* by unit */
    bool *has_transpose; /* by bucket */
} generator;

/* ---- configuration ------------------------------------------------------------------------------------------------- */

static const bp_schedule_config schedule_defaults = {
    .size = sizeof schedule_defaults, .prefetch = 1, .prefetch_backward = BP_PREFETCH_SAME, .grad_units = 2};

bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size)
{
    return bp_struct_init("bp_schedule_config_init", config, size, &schedule_defaults, sizeof schedule_defaults);
}

static bp_status check_config(const bp_schedule_config *c)
{
    if (c->grad_units == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "grad_units is 0: the unit that runs backward has gradients, so at least 1");
    if ((unsigned)c->passes > BP_PASSES_BOTH)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "passes %d: expected train (%d), eval (%d) or both (%d)",
                       (int)c->passes, BP_PASSES_TRAIN, BP_PASSES_EVAL, BP_PASSES_BOTH);
    if ((unsigned)c->streams > BP_STREAMS_UNIFIED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "streams %d: expected separate (%d) or unified (%d)", (int)c->streams,
                       BP_STREAMS_SEPARATE, BP_STREAMS_UNIFIED);
    if ((unsigned)c->outside > BP_OUTSIDE_PREFETCHES_SUCCESSOR)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "outside %d: expected nothing (%d) or successor (%d)", (int)c->outside,
                       BP_OUTSIDE_PREFETCHES_NOTHING, BP_OUTSIDE_PREFETCHES_SUCCESSOR);
    if (c->microbatches > BP_MAX_MICROBATCHES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%u microbatches in flight, at most %u are planned", c->microbatches,
                       BP_MAX_MICROBATCHES);
    if (c->override_count > 0 && c->overrides == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "override_count is %u, but there are no overrides", c->override_count);
    return BP_OK;
}

static uint32_t backward_depth(uint32_t forward, uint32_t backward)
{
    return backward == BP_PREFETCH_SAME ? forward : backward;
}

static bp_status set_depths(generator *g)
{
    const bp_schedule_config *c = g->config;
    void *memory;
    BP_TRY(bp_new_array(g->buckets->unit_count, sizeof *g->depths, &memory));
    g->depths = memory;
    for (size_t u = 0; u < g->buckets->unit_count; u++)
        g->depths[u] = (depth){c->prefetch, backward_depth(c->prefetch, c->prefetch_backward), false};
    for (uint32_t i = 0; i < c->override_count; i++) {
        const bp_unit_prefetch *override = &c->overrides[i];
        if (override->unit >= g->buckets->unit_count)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "overrides[%u]: unit %u does not exist, there are %zu", i,
                           override->unit, g->buckets->unit_count);
        if (g->depths[override->unit].is_override)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "overrides[%u]: unit \"%s\" has an override already", i,
                           g->buckets->units[override->unit].name);
        g->depths[override->unit] =
            (depth){override->forward, backward_depth(override->forward, override->backward), true};
    }
    return BP_OK;
}

static bp_status find_transposes(generator *g)
{
    void *memory;
    BP_TRY(bp_new_array(g->buckets->bucket_count, sizeof *g->has_transpose, &memory));
    g->has_transpose = memory;
    for (size_t i = 0; i < g->buckets->request_count; i++)
        g->has_transpose[g->buckets->requests[i].bucket] |= g->buckets->requests[i].role == BP_ROLE_PARAM_TRANSPOSE;
    return BP_OK;
}

/* ---- when a request is live ---------------------------------------------------------------------------------------- */

/* Row-wise parameters are those that have a transpose for backward. */
typedef enum liveness { LIVE_PARAM, LIVE_ROW_WISE, LIVE_TRANSPOSE, LIVE_GRADIENT, LIVE_ALWAYS } liveness;

static liveness liveness_of(const generator *g, uint32_t request)
{
    const bp_request_data *r = &g->buckets->requests[request];
    switch (r->role) {
    case BP_ROLE_PARAM: return g->has_transpose[r->bucket] ? LIVE_ROW_WISE : LIVE_PARAM;
    case BP_ROLE_PARAM_TRANSPOSE: return LIVE_TRANSPOSE;
    case BP_ROLE_STATE:
    case BP_ROLE_MAIN_GRAD:
    case BP_ROLE_OPTIMIZER: return LIVE_ALWAYS;
    default: return LIVE_GRADIENT;
    }
}

/* The uses of a group's requests are all on the same lanes. */
static bp_status add_use(generator *g, const bp_request_group *group, bp_use use)
{
    bp_interval_lanes lanes = bp_role_lanes(group->role);
    use.acquire_lane = lanes.acquire;
    use.release_lane = lanes.release;
    return bp_schedule_add_use(g->schedule, &use);
}

/* Parameters that are not resharded: from their first gather until nobody needs them any more. */
static bp_status add_kept(generator *g, const bp_request_group *group, const bp_pass *first, const bp_pass *last)
{
    const bp_run *run = &g->order.runs[g->order.first_of_unit[group->unit]]; /* whose backward comes last */
    bp_use use = bp_use_forward(first, run, g->depths[group->unit].forward);
    if (last->evaluation)
        use.end = last->end;
    else
        use.end = bp_use_backward(&g->axis, last, run, 0).end;
    return add_use(g, group, use);
}

static bp_status add_all_kept(generator *g, const bp_request_group *group)
{
    const bp_pass *passes = g->axis.passes, *newest = &passes[g->axis.count - 1];
    if (newest->evaluation)
        BP_TRY(add_kept(g, group, newest, newest));
    if (newest->evaluation && g->axis.count == 1)
        return BP_OK;
    return add_kept(g, group, &passes[0], newest->evaluation ? newest - 1 : newest);
}

static bp_status add_forward(generator *g, const bp_request_group *group, const bp_pass *pass)
{
    const bp_run_order *order = &g->order;
    for (uint32_t i = order->first_of_unit[group->unit]; i != BP_NO_RUN; i = order->next[i])
        BP_TRY(add_use(g, group, bp_use_forward(pass, &order->runs[i], g->depths[group->unit].forward)));
    return BP_OK;
}

/* Runs go backward from the last to the first. */
static bp_status add_backward(generator *g, const bp_request_group *group, const bp_pass *pass, liveness live)
{
    const bp_run_order *order = &g->order;
    uint32_t ahead = live == LIVE_ROW_WISE ? 0 : g->depths[group->unit].backward;
    for (uint32_t i = order->last_of_unit[group->unit]; i != BP_NO_RUN; i = order->previous[i]) {
        const bp_run *run = &order->runs[i];
        BP_TRY(add_use(g, group,
                       live == LIVE_GRADIENT ? bp_use_gradient(&g->axis, pass, run, g->config->grad_units - 1)
                                             : bp_use_backward(&g->axis, pass, run, ahead)));
    }
    return BP_OK;
}

static bp_status add_live(generator *g, const bp_request_group *group, liveness live)
{
    uint32_t steps = (uint32_t)g->schedule->step_count;
    if (live == LIVE_ALWAYS)
        return add_use(g, group, (bp_use){0, steps, 0, 0});
    bool is_row_wise = live == LIVE_PARAM || live == LIVE_ROW_WISE;
    if (is_row_wise && g->config->keep_after_forward)
        return add_all_kept(g, group);
    bool in_backward = live != LIVE_ROW_WISE || g->config->recompute;
    for (uint32_t i = 0; i < g->axis.count; i++) {
        const bp_pass *pass = &g->axis.passes[i];
        if (pass->forward && is_row_wise)
            BP_TRY(add_forward(g, group, pass));
        if (pass->backward && in_backward)
            BP_TRY(add_backward(g, group, pass, live));
    }
    return BP_OK;
}

static bp_status add_group(generator *g, const bp_request_group *group)
{
    uint32_t end = group->first + group->count;
    for (uint32_t first = group->first; first < end;) {
        liveness live = liveness_of(g, first);
        uint32_t next = first + 1;
        while (next < end && liveness_of(g, next) == live)
            next++;
        BP_TRY(bp_schedule_add_span(g->schedule, first, next - first, first == group->first));
        BP_TRY(add_live(g, group, live));
        BP_TRY(bp_schedule_close_span(g->schedule));
        first = next;
    }
    return BP_OK;
}

static bp_status generate(generator *g)
{
    BP_TRY(set_depths(g));
    BP_TRY(find_transposes(g));
    BP_TRY(bp_run_order_init(g->buckets, &g->order));
    BP_TRY(bp_time_axis_init(&g->order, g->config, g->schedule, &g->axis));
    for (size_t i = 0; i < g->buckets->group_count; i++)
        BP_TRY(add_group(g, &g->buckets->groups[i]));
    return bp_schedule_finish(g->schedule);
}

bp_status bp_schedule_create_training(const bp_buckets *buckets, const bp_schedule_config *given,
                                      bp_schedule **schedule)
{
    bp_schedule_config config = schedule_defaults;
    if (buckets == NULL || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_training: needs buckets and an output");
    BP_TRY(bp_struct_read("bp_schedule_create_training", given, false, &config, sizeof config));
    BP_TRY(check_config(&config));
    generator g = {.buckets = buckets, .config = &config};
    BP_TRY(bp_schedule_new(buckets->request_count, &g.schedule));
    bp_status status = generate(&g);
    bp_run_order_finish(&g.order);
    free(g.depths);
    free(g.has_transpose);
    if (status != BP_OK) {
        bp_schedule_destroy(&g.schedule);
        return status;
    }
    *schedule = g.schedule;
    return BP_OK;
}
