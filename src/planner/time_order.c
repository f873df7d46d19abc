#include "planner/time_order.h"

#include <stdlib.h>

#include "core/fail.h"

/* A counting sort over the steps. */
bp_status bp_time_order_init(const bp_schedule *schedule, bp_time_order *order)
{
    void *memory;
    BP_TRY(bp_new_array(schedule->step_count + 1, sizeof(uint32_t), &memory));
    uint32_t *starts = memory;
    bp_status status = bp_new_array(schedule->interval_count, sizeof *order->spans, &memory);
    if (status != BP_OK) {
        free(starts);
        return status;
    }
    order->spans = memory;
    order->count = schedule->interval_count;
    for (size_t i = 0; i < schedule->interval_count; i++)
        starts[schedule->intervals[i].begin + 1]++;
    for (size_t step = 0; step < schedule->step_count; step++)
        starts[step + 1] += starts[step];
    for (size_t s = 0; s < schedule->span_count; s++) {
        const bp_span *span = &schedule->spans[s];
        for (uint32_t k = 0; k < span->interval_count; k++)
            order->spans[starts[schedule->intervals[span->first_interval + k].begin]++] = (uint32_t)s;
    }
    free(starts);
    return BP_OK;
}

void bp_time_order_finish(bp_time_order *order)
{
    free(order->spans);
    *order = (bp_time_order){0};
}
