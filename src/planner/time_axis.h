/* The time axis of a generated schedule: passes over the units, one after the other, and where in them a unit is held.
 *
 * A pass runs every place of the run order once forward, backward (from the last place to the first) or both side by side. A
 * unit takes one step, or two where reductions and gathers share a stream: in the first half of such a step reductions drain,
 * at the second half gathers begin. Nothing is gathered ahead across the border of two passes. */
#ifndef BP_PLANNER_TIME_AXIS_H
#define BP_PLANNER_TIME_AXIS_H

#include "planner/run_order.h"
#include "planner/schedule.h"

typedef struct bp_pass {
    uint32_t begin, first, end; /* steps: where it begins, of its first unit, after its last unit */
    uint32_t width;             /* steps a unit takes */
    bool forward, backward, evaluation;
} bp_pass;

/* A training step of a pipeline and an evaluation. */
#define BP_MOST_PASSES 9

typedef struct bp_time_axis {
    bp_pass passes[BP_MOST_PASSES];
    uint32_t count;
    uint32_t places; /* of a pass */
} bp_time_axis;

/* Lays the passes out and adds their steps to the schedule. Errors: BP_ERR_UNSUPPORTED where there are too many. */
bp_status bp_time_axis_init(const bp_run_order *order, const bp_schedule_config *config, bp_schedule *schedule,
                            bp_time_axis *axis);

/* What compute at the places of a run, forward or backward, needs: gathered `ahead` places before, released right after. */
bp_use bp_use_forward(const bp_pass *pass, const bp_run *run, uint32_t ahead);
bp_use bp_use_backward(const bp_time_axis *axis, const bp_pass *pass, const bp_run *run, uint32_t ahead);

/* What backward of a run makes: held until the backward of `drain` further places is done. */
bp_use bp_use_gradient(const bp_time_axis *axis, const bp_pass *pass, const bp_run *run, uint32_t drain);

#endif
