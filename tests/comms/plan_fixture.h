/* SPDX-License-Identifier: Apache-2.0 */
/* One plan for all tests of a program. */
#ifndef BP_TEST_COMM_PLAN_FIXTURE_H
#define BP_TEST_COMM_PLAN_FIXTURE_H

#include "plans.h"

static bp_plan *plan;

static int set_up(void **state)
{
    (void)state;
    plan = plan_of(UNITS);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    bp_plan_destroy(&plan);
    return 0;
}

SUITE_WITHIN(set_up, tear_down)

#endif
