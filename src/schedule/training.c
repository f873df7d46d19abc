/* Training and evaluation schedules: the run order of the units, the passes over it, the live range of each request.
 * docs/concepts/schedules.md lists the events. Source: Megatron-LM d98e8a64, megatron_fsdp: AllGatherPipeline, GradReducePipeline. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/structs.h"
#include "schedule/schedule.h"

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

/* ---- run order: the order of units in one pass over the model --------------------------------------------------- */

/* One run of a unit: its place in the forward order, and the place of the last unit nested in it, or its own. */
typedef struct unit_run {
    uint32_t place, last;
    uint32_t unit;
} unit_run;

typedef struct run_order {
    unit_run *runs; /* of units with memory, sorted by place */
    size_t count, capacity;
    bool *holds_memory; /* units with at least one bucket that is not empty */
    uint32_t *of_units; /* the lists by unit, one array */
    uint32_t *first_of_unit, *last_of_unit;
    uint32_t *child, *sibling; /* nested units: first child, next sibling */
    uint32_t *newest_run;
    uint32_t *holder;          /* the innermost enclosing unit with memory */
    uint32_t *of_runs;         /* the lists by run, one array */
    uint32_t *next, *previous; /* runs of a unit, first to last and back */
} run_order;

#define NO_RUN UINT32_MAX

/* Limit against hostile models that repeat units with thousands of nested ones. */
#define MOST_RUNS (1u << 24)

/* Adds a unit and its descendants depth first, without recursion: hostile models nest deeply. */
static bp_status add_nested_runs(const bp_buckets *buckets, run_order *order, uint32_t top)
{
    uint32_t unit = top;
    size_t first = order->count;
    for (;;) {
        if (order->holds_memory[unit]) {
            uint32_t place = (uint32_t)order->count;
            BP_TRY(bp_grow_array((void **)&order->runs, &order->capacity, order->count, sizeof *order->runs));
            if (order->count == MOST_RUNS)
                return bp_fail(BP_ERR_UNSUPPORTED, "a step has more than %u runs of units, which is not supported",
                               MOST_RUNS);
            order->newest_run[unit] = place;
            order->runs[order->count++] = (unit_run){place, place, unit};
        }
        if (order->child[unit] != NO_RUN) {
            unit = order->child[unit];
            continue;
        }
        while (unit != top && order->sibling[unit] == NO_RUN)
            unit = (uint32_t)buckets->units[unit].parent;
        if (unit == top)
            break;
        unit = order->sibling[unit];
    }
    /* a unit spans the runs of its descendants, which follow it; each unit runs at most once in one expansion */
    for (size_t i = order->count; i-- > first;) {
        uint32_t outer_unit = order->runs[i].unit == top ? NO_RUN : order->holder[order->runs[i].unit];
        if (outer_unit == NO_RUN || order->newest_run[outer_unit] == NO_RUN || order->newest_run[outer_unit] < first)
            continue; /* no enclosing unit runs in this expansion */
        unit_run *outer = &order->runs[order->newest_run[outer_unit]];
        outer->last = outer->last > order->runs[i].last ? outer->last : order->runs[i].last;
    }
    return BP_OK;
}

static bp_status init_run_order(const bp_buckets *buckets, run_order *order)
{
    size_t units = buckets->unit_count;
    BP_TRY(bp_new_array(units, sizeof *order->holds_memory, (void **)&order->holds_memory));
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        if (buckets->buckets[i].unit >= 0 && buckets->buckets[i].numel > 0)
            order->holds_memory[buckets->buckets[i].unit] = true;
    }
    BP_TRY(bp_new_array(units, 6 * sizeof *order->of_units, (void **)&order->of_units));
    memset(order->of_units, 0xff, 6 * units * sizeof *order->of_units); /* NO_RUN */
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

    for (size_t i = 0; i < buckets->order_count; i++)
        BP_TRY(add_nested_runs(buckets, order, buckets->order[i]));
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
        if (before != NO_RUN)
            order->next[before] = (uint32_t)i;
        else
            order->first_of_unit[unit] = (uint32_t)i;
        order->last_of_unit[unit] = (uint32_t)i;
    }
    return BP_OK;
}

/* ---- time axis: the sequence of passes, and a unit's steps in them ---------------------------------------------- */

/* A pass runs every place of the run order once: forward, backward (last place first) or both at the same time. A unit takes one step.
 * On unified streams it takes two: reduce-scatters end with the first, all-gathers begin with the second. Prefetch does not cross
 * passes. */
typedef struct axis_pass {
    uint32_t begin, first, end; /* steps: begin of the pass, its first unit, after its last unit */
    uint32_t width;             /* steps per unit */
    bool forward, backward, evaluation;
} axis_pass;

/* A training step of a pipeline with an evaluation after it. */
#define MOST_PASSES 9

typedef struct time_axis {
    axis_pass passes[MOST_PASSES];
    uint32_t count;
    uint32_t places; /* per pass */
} time_axis;

/* Limit against hostile models: 2^24 runs forward and backward. */
#define MOST_STEPS (1u << 25)

static void training_schedule_append(time_axis *axis, bool forward, bool backward, bool evaluation)
{
    axis->passes[axis->count++] = (axis_pass){.forward = forward, .backward = backward, .evaluation = evaluation};
}

/* 1F1B with m microbatches in flight: m forward passes, m of the steady state, m backward passes. Two passes of each kind
 * represent any number: they have all conflicts, because only requests that are always live cross passes, and all successions, because each
 * pass of a longer sequence has a predecessor of the same kind as one of these, also across the end of the iteration. */
static void append_training(time_axis *axis, const bp_schedule_config *config)
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

static bp_status init_time_axis(const run_order *order, const bp_schedule_config *config, bp_schedule *s,
                                time_axis *axis)
{
    *axis = (time_axis){.places = (uint32_t)order->count};
    if (config->passes != BP_PASSES_EVAL)
        append_training(axis, config);
    if (config->passes != BP_PASSES_TRAIN)
        training_schedule_append(axis, true, false, true);
    uint32_t outside = config->outside == BP_OUTSIDE_PREFETCHES_SUCCESSOR;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < axis->count; i++) {
        axis_pass *pass = &axis->passes[i];
        pass->width = pass->backward && config->streams == BP_STREAMS_UNIFIED ? 2 : 1;
        pass->begin = (uint32_t)steps;
        pass->first = pass->begin + outside;
        steps += outside + (uint64_t)axis->places * pass->width;
        pass->end = (uint32_t)steps;
        if (steps > MOST_STEPS)
            return bp_fail(BP_ERR_UNSUPPORTED,
                           "%u runs of units make a schedule of more than %u steps, which is not supported",
                           axis->places, MOST_STEPS);
    }
    for (uint32_t p = 0; p < axis->count; p++) {
        const axis_pass *pass = &axis->passes[p];
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
static uint32_t step_of(const axis_pass *pass, uint32_t turn)
{
    return pass->first + turn * pass->width;
}

/* On unified streams a prefetch begins with the second step of the unit that it runs under; the all-gather of the unit itself does not. */
static bp_use use_of_turns(const axis_pass *pass, uint32_t first, uint32_t last, uint32_t ahead)
{
    bp_use use = {.begin = step_of(pass, first), .end = step_of(pass, last + 1)};
    if (ahead > first && pass->first > pass->begin)
        use.begin = pass->begin;
    else if (ahead > 0 && first > 0)
        use.begin = step_of(pass, (ahead < first ? first - ahead : 0) + 1) - 1;
    return use;
}

static bp_use use_forward(const axis_pass *pass, const unit_run *run, uint32_t ahead)
{
    return use_of_turns(pass, run->place, run->last, ahead);
}

static bp_use use_backward(const time_axis *axis, const axis_pass *pass, const unit_run *run, uint32_t ahead)
{
    return use_of_turns(pass, axis->places - 1 - run->last, axis->places - 1 - run->place, ahead);
}

/* ---- live ranges ------------------------------------------------------------------------------------------------- */

/* A unit's prefetch depths. */
typedef struct depth {
    uint32_t forward, backward;
    bool is_override;
} depth;

typedef struct generator {
    const bp_buckets *buckets;
    const bp_schedule_config *config;
    bp_schedule *schedule;
    run_order order;
    time_axis axis;
    depth *depths;       /* by unit */
    bool *has_transpose; /* by bucket */
} generator;

static uint32_t backward_depth(uint32_t forward, uint32_t backward)
{
    return backward == BP_PREFETCH_SAME ? forward : backward;
}

static bp_status set_depths(generator *g)
{
    const bp_schedule_config *c = g->config;
    BP_TRY(bp_new_array(g->buckets->unit_count, sizeof *g->depths, (void **)&g->depths));
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

/* Row-wise: fp8 parameters with a transpose for backward. */
typedef enum liveness { LIVE_PARAM, LIVE_ROW_WISE, LIVE_TRANSPOSE, LIVE_GRADIENT, LIVE_ALWAYS } liveness;

static liveness liveness_of(const generator *g, uint32_t request)
{
    const bp_request *r = &g->buckets->requests[request];
    switch (r->role) {
    case BP_ROLE_PARAM: return g->has_transpose[r->bucket] ? LIVE_ROW_WISE : LIVE_PARAM;
    case BP_ROLE_PARAM_TRANSPOSE: return LIVE_TRANSPOSE;
    case BP_ROLE_STATE:
    case BP_ROLE_MAIN_GRAD:
    case BP_ROLE_OPTIMIZER: return LIVE_ALWAYS;
    default: return LIVE_GRADIENT;
    }
}

/* Adds a use on the group's default lanes. */
static bp_status add_use(generator *g, const bp_request_group *group, bp_use use)
{
    bp_interval_lanes lanes = bp_role_lanes(group->role);
    use.acquire_lane = lanes.acquire;
    use.release_lane = lanes.release;
    return bp_schedule_add_use(g->schedule, &use);
}

/* Parameters that are not resharded: live from their first all-gather to their last use. */
static bp_status add_kept(generator *g, const bp_request_group *group, const axis_pass *first, const axis_pass *last)
{
    const unit_run *run = &g->order.runs[g->order.first_of_unit[group->unit]]; /* its backward comes last */
    bp_use use = use_forward(first, run, g->depths[group->unit].forward);
    if (last->evaluation)
        use.end = last->end;
    else
        use.end = use_backward(&g->axis, last, run, 0).end;
    return add_use(g, group, use);
}

/* Row-wise parameters with keep_after_forward: kept in the training step, and in the evaluation after it. */
static bp_status add_all_kept(generator *g, const bp_request_group *group)
{
    const axis_pass *passes = g->axis.passes, *newest = &passes[g->axis.count - 1];
    if (newest->evaluation)
        BP_TRY(add_kept(g, group, newest, newest));
    if (newest->evaluation && g->axis.count == 1)
        return BP_OK;
    return add_kept(g, group, &passes[0], newest->evaluation ? newest - 1 : newest);
}

/* Adds the uses of a group in all passes, in the order of the runs. */
static bp_status training_schedule_add_live(generator *g, const bp_request_group *group, liveness live)
{
    const run_order *order = &g->order;
    const depth *ahead = &g->depths[group->unit];
    uint32_t steps = (uint32_t)g->schedule->step_count, drain = g->config->grad_units - 1;
    if (live == LIVE_ALWAYS)
        return add_use(g, group, (bp_use){0, steps, 0, 0});
    bool is_row_wise = live == LIVE_PARAM || live == LIVE_ROW_WISE;
    if (is_row_wise && g->config->keep_after_forward)
        return add_all_kept(g, group);
    bool in_backward = live != LIVE_ROW_WISE || g->config->recompute;
    for (uint32_t p = 0; p < g->axis.count; p++) {
        const axis_pass *pass = &g->axis.passes[p];
        uint32_t i = pass->forward && is_row_wise ? order->first_of_unit[group->unit] : NO_RUN;
        for (; i != NO_RUN; i = order->next[i])
            BP_TRY(add_use(g, group, use_forward(pass, &order->runs[i], ahead->forward)));
        i = pass->backward && in_backward ? order->last_of_unit[group->unit] : NO_RUN;
        for (; i != NO_RUN; i = order->previous[i]) {
            const unit_run *run = &order->runs[i];
            bp_use use = use_backward(&g->axis, pass, run, live == LIVE_ROW_WISE ? 0 : ahead->backward);
            if (live == LIVE_GRADIENT) { /* the reduce-scatter ends after `drain` more units */
                uint32_t turn = g->axis.places - 1 - run->place;
                use = use_of_turns(pass, turn, turn, 0);
                if (drain > run->place)
                    use.end = pass->end;
                else if (drain > 0)
                    use.end = step_of(pass, turn + drain) + 1;
            }
            BP_TRY(add_use(g, group, use));
        }
    }
    return BP_OK;
}

static bp_status generate(generator *g)
{
    const bp_buckets *buckets = g->buckets;
    BP_TRY(set_depths(g));
    BP_TRY(bp_new_array(buckets->bucket_count, sizeof *g->has_transpose, (void **)&g->has_transpose));
    for (size_t i = 0; i < buckets->request_count; i++)
        g->has_transpose[buckets->requests[i].bucket] |= buckets->requests[i].role == BP_ROLE_PARAM_TRANSPOSE;
    BP_TRY(init_run_order(buckets, &g->order));
    BP_TRY(init_time_axis(&g->order, g->config, g->schedule, &g->axis));
    for (size_t i = 0; i < buckets->group_count; i++) {
        const bp_request_group *group = &buckets->groups[i];
        uint32_t end = group->first + group->count;
        for (uint32_t first = group->first, next; first < end; first = next) {
            liveness live = liveness_of(g, first);
            for (next = first + 1; next < end && liveness_of(g, next) == live;)
                next++;
            BP_TRY(bp_schedule_add_span(g->schedule, first, next - first, first == group->first));
            BP_TRY(training_schedule_add_live(g, group, live));
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
    generator g = {.buckets = buckets, .config = &config};
    BP_TRY(bp_schedule_new(buckets->request_count, &g.schedule));
    bp_status status = generate(&g);
    free(g.order.runs);
    free(g.order.holds_memory);
    free(g.order.of_units);
    free(g.order.of_runs);
    free(g.depths);
    free(g.has_transpose);
    if (status != BP_OK) {
        bp_schedule_destroy(&g.schedule);
        return status;
    }
    *schedule = g.schedule;
    return BP_OK;
}
