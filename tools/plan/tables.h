/* Plans as tables for people, on standard output. */
#ifndef TOOLS_PLAN_TABLES_H
#define TOOLS_PLAN_TABLES_H

#include "plan/analysis.h"

/* The model and how it is bucketed, two lines and an empty one. */
void table_print_heading(const analysis *a, const plan_options *options);

/* One model: its buffers policy by policy, then the totals, then the budget. Returns EXIT_GO_ON or an exit code. */
int table_print_model(const analysis *a, const plan_options *options);

/* Several models side by side: a line each. */
int table_print_models(const analysis *analyses, size_t count, const plan_options *options);

/* ---- totals ------------------------------------------------------------------------------------------------------ */

/* What each policy takes in all, and how that compares with the bound. */

/* In sentences; nothing when the plans add none. */

/* "1.61" */
const char *table_ratio_text(uint64_t bytes, uint64_t bound, char text[16]);

#endif
