/* What each policy takes in all, and how that compares with the bound. */
#ifndef TOOLS_TABLE_TOTALS_H
#define TOOLS_TABLE_TOTALS_H

#include "analysis.h"

/* A line a policy, then the bound. Returns EXIT_GO_ON or an exit code. */
int table_print_totals(const analysis *a, const plan_options *options, bool color);
/* In sentences; nothing when the plans add none. */

/* "1.61" */
const char *table_ratio_text(uint64_t bytes, uint64_t bound, char text[16]);

#endif
