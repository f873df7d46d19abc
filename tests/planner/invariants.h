/* Plans against the naive references: what holds for any plan, and for those of each policy. */
#ifndef BP_TEST_PLANNER_INVARIANTS_H
#define BP_TEST_PLANNER_INVARIANTS_H

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "scenarios.h"

void assert_same_fingerprint(const bp_plan *a, const bp_plan *b, bool same);

/* Everything that holds for any plan. */
void assert_plan_holds(const bp_plan *plan, const world *w);

/* The policy's own rules as well; copies 0: its default. */
void assert_max_holds(const world *w, uint32_t copies);

/* Every policy, with its default copies and with 1 to 5. */
void assert_all_policies_hold(const world *w);

#endif
