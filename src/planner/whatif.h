/* What the what-if answers share: plans of which only the sums are kept. */
#ifndef BP_PLANNER_WHATIF_H
#define BP_PLANNER_WHATIF_H

#include <bucketpool/whatif.h>

#include <stdbool.h>

/* What a plan takes. */
typedef struct bp_plan_sums {
    uint64_t bytes, lower_bound_bytes, proven_bytes;
    bool optimal, feasible;
} bp_plan_sums;

/* Reads them from a plan. */
bp_status bp_whatif_sums(const bp_plan *plan, bp_plan_sums *sums);

/* Plans with `policy` and `work` instead of those of `config`. */
bp_status bp_whatif_plan(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                         bp_policy policy, uint64_t work, bp_plan_sums *sums);

/* What getters of entries check: the index, and the size of the caller's struct. `what`: "peak". */
bp_status bp_whatif_check_entry(const char *what, size_t index, size_t count, size_t size, size_t expected);

#endif
