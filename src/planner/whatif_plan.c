#include "core/arith.h"
#include "core/fail.h"
#include "planner/whatif.h"

bp_status bp_whatif_sums(const bp_plan *plan, bp_plan_sums *sums)
{
    bp_plan_summary summary = {.size = sizeof summary};
    BP_TRY(bp_plan_summary_get(plan, &summary));
    *sums = (bp_plan_sums){.bytes = summary.bytes,
                           .lower_bound_bytes = summary.lower_bound_bytes,
                           .optimal = summary.optimal,
                           .feasible = summary.feasible};
    for (size_t i = 0; i < bp_plan_role_count(plan); i++) {
        bp_plan_role role = {.size = sizeof role};
        BP_TRY(bp_plan_role_get(plan, i, &role));
        if (!bp_add_u64(sums->proven_bytes, role.proven_bytes, &sums->proven_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "what the roles of model \"%s\" need does not fit 64 bits",
                           bp_plan_model(plan));
    }
    return BP_OK;
}

bp_status bp_whatif_plan(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                         bp_policy policy, uint64_t work, bp_plan_sums *sums)
{
    bp_plan_config changed = *config;
    bp_plan *plan;
    changed.policy = policy;
    changed.work = work;
    BP_TRY(bp_plan_create(buckets, schedule, &changed, &plan));
    bp_status status = bp_whatif_sums(plan, sums);
    bp_plan_destroy(&plan);
    return status;
}

bp_status bp_whatif_check_entry(const char *what, size_t index, size_t count, size_t size, size_t expected)
{
    if (index >= count || size < expected)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s %zu of %zu, size %zu of at least %zu", what, index, count, size,
                       expected);
    return BP_OK;
}
