/* A schedule as a table for people, on standard output. */
#ifndef TOOLS_SCHEDULE_TABLE_H
#define TOOLS_SCHEDULE_TABLE_H

#include "schedule/view.h"

/* The steps of --steps; by default the interesting ones. */
typedef struct step_range {
    uint32_t first, last;
    bool given;
} step_range;

/* What it is about, where most is live, the steps, and the pairs beyond them. Returns EXIT_GO_ON or an exit code. */
int schedule_table_print(const schedule_view *v, const plan_options *options, const step_range *range);

#endif
