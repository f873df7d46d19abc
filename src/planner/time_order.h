/* The spans of a schedule in the order in which their intervals begin. */
#ifndef BP_PLANNER_TIME_ORDER_H
#define BP_PLANNER_TIME_ORDER_H

#include "planner/schedule.h"

typedef struct bp_time_order {
    uint32_t *spans; /* one for each interval; those that begin in the same step in the order of the requests */
    size_t count;
} bp_time_order;

bp_status bp_time_order_init(const bp_schedule *schedule, bp_time_order *order);
void bp_time_order_finish(bp_time_order *order);

#endif
