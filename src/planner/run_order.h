/* The order in which units run in one pass over the model. */
#ifndef BP_PLANNER_RUN_ORDER_H
#define BP_PLANNER_RUN_ORDER_H

#include <stdbool.h>

#include "model/buckets.h"

/* One run of a unit: its place in the forward order, and that of the last unit nested in it (itself when there is none). */
typedef struct bp_run {
    uint32_t place, last;
    uint32_t unit;
} bp_run;

typedef struct bp_run_order {
    bp_run *runs; /* of the units that hold memory, sorted by place */
    size_t count, capacity;
    uint32_t *first_of_unit, *next;    /* runs of a unit, first to last */
    uint32_t *last_of_unit, *previous; /* and back */
    bool *holds_memory;                /* units with at least one bucket that is not empty */
    uint32_t *child, *sibling;         /* nested units: first child, next sibling */
    uint32_t *newest_run;              /* of each unit */
    uint32_t *holder;                  /* of each unit: the innermost unit around it that holds memory */
} bp_run_order;

#define BP_NO_RUN UINT32_MAX

/* Errors: BP_ERR_INVALID_ARGUMENT where no unit holds memory, BP_ERR_UNSUPPORTED where too many run. Finish it in any case. */
bp_status bp_run_order_init(const bp_buckets *buckets, bp_run_order *order);
void bp_run_order_finish(bp_run_order *order);

#endif
