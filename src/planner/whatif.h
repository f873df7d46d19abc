/* What the what-if answers share: plans of which only the sums are kept. */
#ifndef BP_PLANNER_WHATIF_H
#define BP_PLANNER_WHATIF_H

#include <bucketpool/whatif.h>

#include <stdbool.h>

/* What a plan takes. */
typedef struct bp_plan_sums {
    uint64_t bytes, lower_bound_bytes, proven_bytes;
    uint32_t unproven; /* slabs whose search ended without a proof */
    bool optimal, feasible;
} bp_plan_sums;

/* Reads them from a plan. */
bp_status bp_whatif_sums(const bp_plan *plan, bp_plan_sums *sums);

/* Plans with `policy` and `work` instead of those of `config`. */
bp_status bp_whatif_plan(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                         bp_policy policy, uint64_t work, bp_plan_sums *sums);

/* A trade for the slabs that plans of `config` have. */
bp_trade_config bp_whatif_trade(const bp_plan_config *config, uint32_t stalls);

/* What getters of entries check: the index, and the size of the caller's struct. `what`: "peak". */
bp_status bp_whatif_check_entry(const char *what, size_t index, size_t count, size_t size, size_t expected);

#endif
