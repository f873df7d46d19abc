/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for the tests of registration. */
#ifndef BP_TEST_COMM_PLANS_H
#define BP_TEST_COMM_PLANS_H

#include "support/pools.h"

/* Parameters and gradients: two slabs, of groups "param" and "grad". */
static inline bp_plan *plan_of(const char *units)
{
    scenario w = make_scenario(model_of(units), TRAINING);
    bp_plan *plan = make_plan(&w, BP_POLICY_FIXED, 0, BP_FALLBACK_PERSISTENT);
    free_scenario(&w);
    return plan;
}

#endif
