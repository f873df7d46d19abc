/* SPDX-License-Identifier: Apache-2.0 */
/* Asserts the invariants of plans, and of each policy's plans, against the reference model. */
#ifndef BP_TEST_PLANNER_INVARIANTS_H
#define BP_TEST_PLANNER_INVARIANTS_H

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "support/scenarios.h"

void assert_same_fingerprint(const bp_plan *a, const bp_plan *b, bool same);

/* Asserts the invariants of any plan. */
void assert_plan_holds(const bp_plan *plan, const scenario *s);

/* Also asserts the rules of max; copies 0: the default. */
void assert_max_holds(const scenario *s, uint32_t copies);

/* Asserts the invariants of all policies, with default copies and with 1 to 5. */
void assert_all_policies_hold(const scenario *s);

#endif
