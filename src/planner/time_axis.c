#include "planner/time_axis.h"

#include "core/fail.h"

/* ---- passes -------------------------------------------------------------------------------------------------------- */

/* Steps of hostile models that are still planned: 2^24 runs there and back. */
#define MOST_STEPS (1u << 25)

static void append(bp_time_axis *axis, bool forward, bool backward, bool evaluation)
{
    axis->passes[axis->count++] = (bp_pass){.forward = forward, .backward = backward, .evaluation = evaluation};
}

/* 1F1B with m microbatches in flight: m forward passes, m of the steady state, m backward passes. Two of each stand for any
 * number: what conflicts is decided within passes, as nothing reaches over their borders but what is held all the time; and whose
 * memory a request takes over is decided by which kinds of pass come before it, the latest first, which for every pass of a longer
 * sequence, also round its end, is so for one of these. */
static void append_training(bp_time_axis *axis, const bp_schedule_config *config)
{
    uint32_t in_flight = config->microbatches > 1 ? 2 : 1;
    if (in_flight == 1 && !config->combined) {
        append(axis, true, false, false);
        append(axis, false, true, false);
        return;
    }
    for (uint32_t i = 0; i < in_flight; i++)
        append(axis, true, false, false);
    for (uint32_t i = 0; i < in_flight; i++) {
        append(axis, true, config->combined, false);
        if (!config->combined)
            append(axis, false, true, false);
    }
    for (uint32_t i = 0; i < in_flight; i++)
        append(axis, false, true, false);
}

static bp_status add_steps(const bp_run_order *order, const bp_pass *pass, bp_schedule *s)
{
    if (pass->first > pass->begin)
        BP_TRY(bp_schedule_add_step(s, BP_PHASE_OUTSIDE, BP_OUTSIDE, BP_OUTSIDE));
    size_t n = order->count;
    for (size_t i = 0; i < n; i++) {
        int32_t forward = (int32_t)order->runs[i].unit, backward = (int32_t)order->runs[n - 1 - i].unit;
        if (!pass->backward) {
            BP_TRY(bp_schedule_add_step(s, BP_PHASE_FORWARD, forward, BP_OUTSIDE));
            continue;
        }
        forward = pass->forward ? forward : BP_OUTSIDE;
        BP_TRY(bp_schedule_add_step(s, pass->forward ? BP_PHASE_COMBINED : BP_PHASE_BACKWARD, backward, forward));
        if (pass->width == 2)
            BP_TRY(bp_schedule_add_step(s, BP_PHASE_BACKWARD_GATHER, backward, forward));
    }
    return BP_OK;
}

bp_status bp_time_axis_init(const bp_run_order *order, const bp_schedule_config *config, bp_schedule *s,
                            bp_time_axis *axis)
{
    *axis = (bp_time_axis){.places = (uint32_t)order->count};
    if (config->passes != BP_PASSES_EVAL)
        append_training(axis, config);
    if (config->passes != BP_PASSES_TRAIN)
        append(axis, true, false, true);
    uint32_t outside = config->outside == BP_OUTSIDE_PREFETCHES_SUCCESSOR;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < axis->count; i++) {
        bp_pass *pass = &axis->passes[i];
        pass->width = pass->backward && config->streams == BP_STREAMS_UNIFIED ? 2 : 1;
        pass->begin = (uint32_t)steps;
        pass->first = pass->begin + outside;
        steps += outside + (uint64_t)axis->places * pass->width;
        pass->end = (uint32_t)steps;
        if (steps > MOST_STEPS)
            return bp_fail(BP_ERR_UNSUPPORTED,
                           "%u runs of units make a schedule of more than %u steps, which is not planned", axis->places,
                           MOST_STEPS);
    }
    for (uint32_t i = 0; i < axis->count; i++)
        BP_TRY(add_steps(order, &axis->passes[i], s));
    return BP_OK;
}

/* ---- uses ---------------------------------------------------------------------------------------------------------- */

/* The step at which the turn of a pass begins: of its first unit, its second, ... */
static uint32_t step_of(const bp_pass *pass, uint32_t turn)
{
    return pass->first + turn * pass->width;
}

/* Gathers wait for the second half of the step that they are to run under, but not those that compute itself waits for. */
static uint32_t gather_step(const bp_pass *pass, uint32_t turn, uint32_t ahead)
{
    if (ahead > turn && pass->first > pass->begin)
        return pass->begin;
    uint32_t under = ahead < turn ? turn - ahead : 0;
    return under == turn ? step_of(pass, turn) : step_of(pass, under + 1) - 1;
}

static bp_use use_of_turns(const bp_pass *pass, uint32_t first, uint32_t last, uint32_t ahead)
{
    return (bp_use){.begin = gather_step(pass, first, ahead), .end = step_of(pass, last + 1)};
}

bp_use bp_use_forward(const bp_pass *pass, const bp_run *run, uint32_t ahead)
{
    return use_of_turns(pass, run->place, run->last, ahead);
}

bp_use bp_use_backward(const bp_time_axis *axis, const bp_pass *pass, const bp_run *run, uint32_t ahead)
{
    return use_of_turns(pass, axis->places - 1 - run->last, axis->places - 1 - run->place, ahead);
}

bp_use bp_use_gradient(const bp_time_axis *axis, const bp_pass *pass, const bp_run *run, uint32_t drain)
{
    uint32_t turn = axis->places - 1 - run->place;
    bp_use use = use_of_turns(pass, turn, turn, 0);
    if (drain > run->place)
        use.end = pass->end;
    else if (drain > 0)
        use.end = step_of(pass, turn + drain) + 1;
    return use;
}
