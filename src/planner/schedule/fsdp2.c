/* SPDX-License-Identifier: Apache-2.0 */
/* The steps and live ranges of PyTorch FSDP2: all-gathers are copied out and gradients copied in, so buffers live between collectives.
 * docs/concepts/schedules.md lists the events; bucketpool.torch.fsdp2.predict reads the same from a module.
 * Source: torch/distributed/fsdp/_fully_shard/{_fsdp_state,_fsdp_param_group,_fsdp_collectives}.py. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "planner/schedule/training.h"

bp_status bp_fsdp2_check_config(const bp_schedule_config *config)
{
    const char *option = config->streams != BP_STREAMS_SEPARATE             ? "streams unified"
                         : config->outside != BP_OUTSIDE_PREFETCHES_NOTHING ? "outside successor"
                         : config->combined                                 ? "combined"
                                                                            : NULL;
    if (option != NULL)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%s: an option of Megatron-FSDP, which FSDP2 does not have; leave it out, or use "
                       "bucketing megatron",
                       option);
    return BP_OK;
}

static uint32_t at_least_one(uint32_t value)
{
    return value > 0 ? value : 1;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* FSDP2 keeps the root group unsharded from forward to backward, and with keep_after_forward every group. */
static bool gathers_in_backward(const bp_generator *g, uint32_t unit)
{
    return !g->config->keep_after_forward && (int32_t)unit != g->buckets->root;
}

static bp_status find_events(bp_generator *g)
{
    const bp_run_order *order = &g->order;
    uint32_t runs = (uint32_t)order->count, event = 2 * runs, turn = runs, depth = 0;
    bp_backward_events *e = &g->events;
    bool *trains;
    BP_TRY(bp_new_array(runs, 6 * sizeof *e->memory, (void **)&e->memory));
    e->turn = e->memory;
    e->enter = e->memory + runs;
    e->leave = e->memory + 2 * (size_t)runs;
    e->entered = e->memory + 3 * (size_t)runs;
    e->reducing = e->memory + 4 * (size_t)runs;
    e->reduction = e->memory + 5 * (size_t)runs;

    /* Backward is forward reversed: forward enters runs by place, and leaves each after the last one nested in it. */
    uint32_t *open = e->reducing; /* a stack until the entries are known */
    for (uint32_t i = 0; i < runs; i++) {
        e->leave[i] = --event;
        open[depth++] = i;
        while (depth > 0 && order->runs[open[depth - 1]].last == i) {
            uint32_t left = open[--depth];
            e->enter[left] = --event;
            e->turn[left] = --turn;
            e->entered[turn] = left;
        }
    }

    BP_TRY(bp_new_array(g->buckets->unit_count, sizeof *trains, (void **)&trains));
    for (size_t i = 0; i < g->buckets->bucket_count; i++) {
        const bp_bucket *b = &g->buckets->buckets[i];
        if (b->unit >= 0 && !b->frozen && b->grad_numel > 0)
            trains[b->unit] = true;
    }
    for (uint32_t i = runs; i-- > 0;) { /* post-backward: last place first */
        e->reduction[i] = e->reducing_count;
        if (trains[order->runs[i].unit])
            e->reducing[e->reducing_count++] = i;
    }
    free(trains);
    e->gathers_first = gathers_in_backward(g, order->runs[e->entered[0]].unit);
    return BP_OK;
}

bp_status bp_fsdp2_add_steps(bp_generator *g)
{
    BP_TRY(find_events(g));
    const bp_backward_events *e = &g->events;
    uint32_t runs = (uint32_t)g->order.count;
    uint64_t steps = 0;
    for (uint32_t p = 0; p < g->axis.count; p++) {
        bp_axis_pass *pass = &g->axis.passes[p];
        pass->begin = (uint32_t)steps;
        pass->first = pass->begin + (pass->backward && e->gathers_first);
        steps = pass->first + (uint64_t)runs * (pass->backward ? 2 : 1);
        pass->end = (uint32_t)steps;
        BP_TRY(bp_generator_check_steps(g, steps));
        for (uint32_t i = 0; pass->forward && i < runs; i++)
            BP_TRY(bp_schedule_add_step(g->schedule, BP_PHASE_FORWARD, (int32_t)g->order.runs[i].unit, BP_OUTSIDE));
        if (!pass->backward)
            continue;
        if (e->gathers_first)
            BP_TRY(bp_schedule_add_step(g->schedule, BP_PHASE_BACKWARD_GATHER,
                                        (int32_t)g->order.runs[e->entered[0]].unit, BP_OUTSIDE));
        uint32_t entered = 0, left = runs;
        for (uint32_t event = 0; event < 2 * runs; event++) {
            bool enters = entered < runs && e->enter[e->entered[entered]] == event;
            uint32_t run = enters ? e->entered[entered++] : --left;
            BP_TRY(bp_schedule_add_step(g->schedule, enters ? BP_PHASE_BACKWARD : BP_PHASE_REDUCE,
                                        (int32_t)g->order.runs[run].unit, BP_OUTSIDE));
        }
    }
    return BP_OK;
}

/* ---- live ranges ------------------------------------------------------------------------------------------------- */

/* Forward: gathered when the unit enters, or `ahead` units earlier; the output is kept until the next unit has copied out, so it is live
 * as if prefetched by one unit. */
static bp_status add_forward(bp_generator *g, const bp_request_group *group, const bp_axis_pass *pass)
{
    uint32_t ahead = at_least_one(g->depths[group->unit].forward);
    for (uint32_t i = g->order.first_of_unit[group->unit]; i != BP_NO_RUN; i = g->order.next[i]) {
        bp_use use = {.begin = pass->first + (i > ahead ? i - ahead : 0), .end = pass->first + i + 1};
        BP_TRY(bp_generator_add_use(g, group, use));
    }
    return BP_OK;
}

/* Backward: gathered in the pre-backward of an earlier unit, after that has copied out; copied out and dropped in its own. */
static bp_status add_backward(bp_generator *g, const bp_request_group *group, const bp_axis_pass *pass)
{
    const bp_backward_events *e = &g->events;
    uint32_t ahead = at_least_one(g->depths[group->unit].backward);
    for (uint32_t run = g->order.last_of_unit[group->unit]; run != BP_NO_RUN; run = g->order.previous[run]) {
        uint32_t turn = e->turn[run];
        bp_use use = {.begin = pass->begin, .end = pass->first + e->enter[run]};
        if (turn > 0)
            use.begin = pass->first + e->enter[e->entered[turn > ahead ? turn - ahead : 0]];
        BP_TRY(bp_generator_add_use(g, group, use));
    }
    return BP_OK;
}

/* The input of a reduce-scatter: made in the post-backward, dropped in that of the grad_units - 1st unit after it, before its own is made. */
static bp_status add_gradients(bp_generator *g, const bp_request_group *group, const bp_axis_pass *pass)
{
    const bp_backward_events *e = &g->events;
    uint32_t inputs = at_least_one(g->config->grad_units - 1);
    for (uint32_t i = g->order.last_of_unit[group->unit]; i != BP_NO_RUN; i = g->order.previous[i]) {
        bp_use use = {.begin = pass->first + e->leave[i], .end = pass->end};
        if (inputs < e->reducing_count - e->reduction[i])
            use.end = pass->first + e->leave[e->reducing[e->reduction[i] + inputs]];
        BP_TRY(bp_generator_add_use(g, group, use));
    }
    return BP_OK;
}

bp_status bp_fsdp2_add_live(bp_generator *g, const bp_request_group *group, bp_liveness live)
{
    for (uint32_t p = 0; p < g->axis.count; p++) {
        const bp_axis_pass *pass = &g->axis.passes[p];
        if (pass->forward && live == BP_LIVE_PARAM)
            BP_TRY(add_forward(g, group, pass));
        if (pass->backward && live == BP_LIVE_PARAM && gathers_in_backward(g, group->unit))
            BP_TRY(add_backward(g, group, pass));
        if (pass->backward && live == BP_LIVE_GRADIENT)
            BP_TRY(add_gradients(g, group, pass));
    }
    return BP_OK;
}
