/* SPDX-License-Identifier: Apache-2.0 */
/* Training and evaluation schedules: the passes, and the live range of each request by the rules of Megatron-FSDP (fsdp2.c: of FSDP2).
 * docs/concepts/schedules.md lists the events. Source: Megatron-LM d98e8a64, megatron_fsdp: AllGatherPipeline, GradReducePipeline. */
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "planner/schedule/training.h"

/* ---- configuration ------------------------------------------------------------------------------------------------- */

static const bp_schedule_config schedule_defaults = {
    .size = sizeof schedule_defaults, .prefetch = 1, .prefetch_backward = BP_PREFETCH_SAME, .grad_units = 2};

bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size)
{
    return bp_struct_init("bp_schedule_config_init", config, size, &schedule_defaults, sizeof schedule_defaults);
}

static bp_status training_schedule_check_config(const bp_schedule_config *c)
{
    if (c->grad_units == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "grad_units: expected at least 1, the unit that runs backward, got 0");
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%u microbatches in flight; at most %u are supported", c->microbatches,
                       BP_MAX_MICROBATCHES);
    if (c->override_count > 0 && c->overrides == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "override_count is %u, but overrides is NULL", c->override_count);
    return BP_OK;
}

/* ---- time axis: the sequence of passes, and a unit's steps in them ---------------------------------------------- */

/* A unit takes one step of a pass. On unified streams it takes two: reduce-scatters end with the first, all-gathers begin with the second. */

static void training_schedule_append(bp_time_axis *axis, bool forward, bool backward, bool evaluation)
{
    axis->passes[axis->count++] = (bp_axis_pass){.forward = forward, .backward = backward, .evaluation = evaluation};
}

/* 1F1B with m microbatches in flight: m forward passes, m of the steady state, m backward passes. Two passes of each kind
 * represent any number: they have all conflicts, because only requests that are always live cross passes, and all successions, because each
 * pass of a longer sequence has a predecessor of the same kind as one of these, also across the end of the iteration. */
static void append_training(bp_time_axis *axis, const bp_schedule_config *config)
{
    uint32_t in_flight = config->microbatches > 1 ? 2 : 1;
    if (in_flight == 1 && !config->combined) {
        training_schedule_append(axis, true, false, false);
        training_schedule_append(axis, false, true, false);
        return;
    }
    for (uint32_t i = 0; i < in_flight; i++)
        training_schedule_append(axis, true, false, false);
    for (uint32_t i = 0; i < in_flight; i++) {
        training_schedule_append(axis, true, config->combined, false);
        if (!config->combined)
            training_schedule_append(axis, false, true, false);
    }
    for (uint32_t i = 0; i < in_flight; i++)
        training_schedule_append(axis, false, true, false);
}

bp_status bp_generator_check_steps(const bp_generator *g, uint64_t steps)
{
    if (steps > BP_MAX_STEPS)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%u runs of units make a schedule of more than %u steps, which is not supported", g->axis.places,
                       BP_MAX_STEPS);
    return BP_OK;
}

static void append_passes(bp_time_axis *axis, const bp_schedule_config *config)
{
    if (config->passes != BP_PASSES_EVAL)
        append_training(axis, config);
    if (config->passes != BP_PASSES_TRAIN)
        training_schedule_append(axis, true, false, true);
}

static bp_status add_pass_steps(bp_generator *g)
{
    const bp_run_order *order = &g->order;
    bp_time_axis *axis = &g->axis;
    bp_schedule *s = g->schedule;
    uint32_t outside = g->config->outside == BP_OUTSIDE_PREFETCHES_SUCCESSOR;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < axis->count; i++) {
        bp_axis_pass *pass = &axis->passes[i];
        pass->width = pass->backward && g->config->streams == BP_STREAMS_UNIFIED ? 2 : 1;
        pass->begin = (uint32_t)steps;
        pass->first = pass->begin + outside;
        steps += outside + (uint64_t)axis->places * pass->width;
        pass->end = (uint32_t)steps;
        BP_TRY(bp_generator_check_steps(g, steps));
    }
    for (uint32_t p = 0; p < axis->count; p++) {
        const bp_axis_pass *pass = &axis->passes[p];
        if (pass->first > pass->begin)
            BP_TRY(bp_schedule_add_step(s, BP_PHASE_OUTSIDE, BP_OUTSIDE, BP_OUTSIDE));
        for (size_t i = 0; i < order->count; i++) {
            int32_t forward = (int32_t)order->runs[i].unit;
            int32_t backward = (int32_t)order->runs[order->count - 1 - i].unit;
            if (!pass->backward) {
                BP_TRY(bp_schedule_add_step(s, BP_PHASE_FORWARD, forward, BP_OUTSIDE));
                continue;
            }
            forward = pass->forward ? forward : BP_OUTSIDE;
            BP_TRY(bp_schedule_add_step(s, pass->forward ? BP_PHASE_COMBINED : BP_PHASE_BACKWARD, backward, forward));
            if (pass->width == 2)
                BP_TRY(bp_schedule_add_step(s, BP_PHASE_BACKWARD_GATHER, backward, forward));
        }
    }
    return BP_OK;
}

/* The first step of a pass's `turn`-th unit. */
static uint32_t step_of(const bp_axis_pass *pass, uint32_t turn)
{
    return pass->first + turn * pass->width;
}

/* On unified streams a prefetch begins with the second step of the unit that it runs under; the all-gather of the unit itself does not. */
static bp_use use_of_turns(const bp_axis_pass *pass, uint32_t first, uint32_t last, uint32_t ahead)
{
    bp_use use = {.begin = step_of(pass, first), .end = step_of(pass, last + 1)};
    if (ahead > first && pass->first > pass->begin)
        use.begin = pass->begin;
    else if (ahead > 0 && first > 0)
        use.begin = step_of(pass, (ahead < first ? first - ahead : 0) + 1) - 1;
    return use;
}

static bp_use use_forward(const bp_axis_pass *pass, const bp_unit_run *run, uint32_t ahead)
{
    return use_of_turns(pass, run->place, run->last, ahead);
}

static bp_use use_backward(const bp_time_axis *axis, const bp_axis_pass *pass, const bp_unit_run *run, uint32_t ahead)
{
    return use_of_turns(pass, axis->places - 1 - run->last, axis->places - 1 - run->place, ahead);
}

/* ---- live ranges ------------------------------------------------------------------------------------------------- */

static uint32_t backward_depth(uint32_t forward, uint32_t backward)
{
    return backward == BP_PREFETCH_SAME ? forward : backward;
}

static bp_status set_depths(bp_generator *g)
{
    const bp_schedule_config *c = g->config;
    BP_TRY(bp_new_array(g->buckets->unit_count, sizeof *g->depths, (void **)&g->depths));
    for (size_t u = 0; u < g->buckets->unit_count; u++)
        g->depths[u] = (bp_depth){c->prefetch, backward_depth(c->prefetch, c->prefetch_backward), false};
    for (uint32_t i = 0; i < c->override_count; i++) {
        const bp_unit_prefetch *override = &c->overrides[i];
        if (override->unit >= g->buckets->unit_count)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "overrides[%u]: unit %u does not exist, there are %zu", i,
                           override->unit, g->buckets->unit_count);
        if (g->depths[override->unit].is_override)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "overrides[%u]: unit \"%s\" has an override already", i,
                           g->buckets->units[override->unit].name);
        g->depths[override->unit] =
            (bp_depth){override->forward, backward_depth(override->forward, override->backward), true};
    }
    return BP_OK;
}

static bp_liveness liveness_of(const bp_generator *g, uint32_t request)
{
    const bp_request *r = &g->buckets->requests[request];
    switch (r->role) {
    case BP_ROLE_PARAM: return g->has_transpose[r->bucket] ? BP_LIVE_ROW_WISE : BP_LIVE_PARAM;
    case BP_ROLE_PARAM_TRANSPOSE: return BP_LIVE_TRANSPOSE;
    case BP_ROLE_STATE:
    case BP_ROLE_MAIN_GRAD:
    case BP_ROLE_OPTIMIZER: return BP_LIVE_ALWAYS;
    default: return BP_LIVE_GRADIENT;
    }
}

bp_status bp_generator_add_use(bp_generator *g, const bp_request_group *group, bp_use use)
{
    bp_interval_lanes lanes = bp_role_lanes(group->role);
    use.acquire_lane = lanes.acquire;
    use.release_lane = lanes.release;
    return bp_schedule_add_use(g->schedule, &use);
}

/* Parameters that are not resharded: live from their first all-gather to their last use. */
static bp_status add_kept(bp_generator *g, const bp_request_group *group, const bp_axis_pass *first,
                          const bp_axis_pass *last)
{
    const bp_unit_run *run = &g->order.runs[g->order.first_of_unit[group->unit]]; /* its backward comes last */
    bp_use use = use_forward(first, run, g->depths[group->unit].forward);
    if (last->evaluation)
        use.end = last->end;
    else
        use.end = use_backward(&g->axis, last, run, 0).end;
    return bp_generator_add_use(g, group, use);
}

/* Row-wise parameters with keep_after_forward: kept in the training step, and in the evaluation after it. */
static bp_status add_all_kept(bp_generator *g, const bp_request_group *group)
{
    const bp_axis_pass *passes = g->axis.passes, *newest = &passes[g->axis.count - 1];
    if (newest->evaluation)
        BP_TRY(add_kept(g, group, newest, newest));
    if (newest->evaluation && g->axis.count == 1)
        return BP_OK;
    return add_kept(g, group, &passes[0], newest->evaluation ? newest - 1 : newest);
}

/* Adds the uses of a group in all passes, in the order of the runs. */
static bp_status add_live(bp_generator *g, const bp_request_group *group, bp_liveness live)
{
    const bp_run_order *order = &g->order;
    const bp_depth *ahead = &g->depths[group->unit];
    uint32_t drain = g->config->grad_units - 1;
    bool is_row_wise = live == BP_LIVE_PARAM || live == BP_LIVE_ROW_WISE;
    if (is_row_wise && g->config->keep_after_forward)
        return add_all_kept(g, group);
    bool in_backward = live != BP_LIVE_ROW_WISE || g->config->recompute;
    for (uint32_t p = 0; p < g->axis.count; p++) {
        const bp_axis_pass *pass = &g->axis.passes[p];
        uint32_t i = pass->forward && is_row_wise ? order->first_of_unit[group->unit] : BP_NO_RUN;
        for (; i != BP_NO_RUN; i = order->next[i])
            BP_TRY(bp_generator_add_use(g, group, use_forward(pass, &order->runs[i], ahead->forward)));
        i = pass->backward && in_backward ? order->last_of_unit[group->unit] : BP_NO_RUN;
        for (; i != BP_NO_RUN; i = order->previous[i]) {
            const bp_unit_run *run = &order->runs[i];
            bp_use use = use_backward(&g->axis, pass, run, live == BP_LIVE_ROW_WISE ? 0 : ahead->backward);
            if (live == BP_LIVE_GRADIENT) { /* the reduce-scatter ends after `drain` more units */
                uint32_t turn = g->axis.places - 1 - run->place;
                use = use_of_turns(pass, turn, turn, 0);
                if (drain > run->place)
                    use.end = pass->end;
                else if (drain > 0)
                    use.end = step_of(pass, turn + drain) + 1;
            }
            BP_TRY(bp_generator_add_use(g, group, use));
        }
    }
    return BP_OK;
}

static bp_status generate(bp_generator *g)
{
    const bp_buckets *buckets = g->buckets;
    BP_TRY(set_depths(g));
    BP_TRY(bp_new_array(buckets->bucket_count, sizeof *g->has_transpose, (void **)&g->has_transpose));
    for (size_t i = 0; i < buckets->request_count; i++)
        g->has_transpose[buckets->requests[i].bucket] |= buckets->requests[i].role == BP_ROLE_PARAM_TRANSPOSE;
    BP_TRY(bp_run_order_init(buckets, &g->order));
    append_passes(&g->axis, g->config);
    g->axis.places = (uint32_t)g->order.count;
    BP_TRY(buckets->fsdp2 ? bp_fsdp2_add_steps(g) : add_pass_steps(g));
    for (size_t i = 0; i < buckets->group_count; i++) {
        const bp_request_group *group = &buckets->groups[i];
        uint32_t end = group->first + group->count;
        for (uint32_t first = group->first, next; first < end; first = next) {
            bp_liveness live = liveness_of(g, first);
            for (next = first + 1; next < end && liveness_of(g, next) == live;)
                next++;
            BP_TRY(bp_schedule_add_span(g->schedule, first, next - first, first == group->first));
            BP_TRY(live == BP_LIVE_ALWAYS
                       ? bp_generator_add_use(g, group, (bp_use){0, (uint32_t)g->schedule->step_count, 0, 0})
                   : buckets->fsdp2 ? bp_fsdp2_add_live(g, group, live)
                                    : add_live(g, group, live));
            BP_TRY(bp_schedule_close_span(g->schedule));
        }
    }
    return bp_schedule_finish(g->schedule);
}

bp_status bp_schedule_create_training(const bp_buckets *buckets, const bp_schedule_config *given,
                                      bp_schedule **schedule)
{
    bp_schedule_config config = schedule_defaults;
    if (buckets == NULL || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_training: needs buckets and an output");
    BP_TRY(bp_struct_read("bp_schedule_create_training", given, true, &config, sizeof config));
    BP_TRY(training_schedule_check_config(&config));
    if (buckets->fsdp2)
        BP_TRY(bp_fsdp2_check_config(&config));
    if (buckets->fsdp2 && buckets->part_count > 1)
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "bp_schedule_create_training: %zu merged models with FSDP2's buckets; make the schedule of each, "
            "embed and merge them",
            buckets->part_count);
    bp_generator g = {.buckets = buckets, .config = &config};
    BP_TRY(bp_schedule_new(buckets->request_count, &g.schedule));
    bp_status status = generate(&g);
    bp_run_order_finish(&g.order);
    free(g.events.memory);
    free(g.depths);
    free(g.has_transpose);
    if (status != BP_OK) {
        bp_schedule_destroy(&g.schedule);
        return status;
    }
    *schedule = g.schedule;
    return BP_OK;
}
