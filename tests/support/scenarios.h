/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of the planner tests: models, buckets and schedules, hand-made or random, and plans of them. */
#ifndef BP_TEST_PLANNER_SCENARIOS_H
#define BP_TEST_PLANNER_SCENARIOS_H

#include "support/status.h"

#include <bucketpool/plan.h>

#include <stdbool.h>

#define PARAM BP_ROLE_BIT(BP_ROLE_PARAM)
#define TRANSPOSE BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE)
#define GRAD BP_ROLE_BIT(BP_ROLE_GRAD)
#define GRAD_COMM BP_ROLE_BIT(BP_ROLE_GRAD_COMM)
#define STATE BP_ROLES_STATE /* shards of parameters, gradients and optimizer */
#define ALIGNMENT 256

#define MAX_REQUESTS 256 /* of a scenario for the reference model */

#define assert_invalid(call) assert_fails(call, BP_ERR_INVALID_ARGUMENT, NULL)

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

/* Equal seeds give equal numbers on every machine. */
uint32_t random_below(uint32_t limit);
void seed(uint64_t value);

/* ---- models -------------------------------------------------------------------------------------------------------- */

bp_model *new_model(void);
int32_t add_unit(bp_model *model, const char *name, int32_t parent);
/* A unit with the name "u<number>". */
int32_t add_numbered_unit(bp_model *model, uint32_t number);
void add_bucket(bp_model *model, int32_t unit, bp_dtype dtype, uint64_t numel, uint64_t padded_numel);
bp_status try_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket);
void add_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket);

/* Units of 1 to 3 buckets, each of one of two sizes and two dtypes, sometimes padded further. */
bp_model *random_model(uint32_t units);

/* A valid recording: units are acquired and released at random, whole or bucket by bucket, each at least once. */
void record_randomly(bp_model *model, bool by_bucket);

bp_model *make_mixed(void);
bp_model *make_fp8(void);

/* ---- scenarios -------------------------------------------------------------------------------------------------------- */

typedef struct scenario_options {
    uint32_t roles, prefetch, grad_units, eval, recorded;
    bp_dtype grad_dtype, grad_comm_dtype;
} scenario_options;

extern const scenario_options DEFAULTS;
extern const scenario_options PARAM_ONLY;

/* The inputs of a plan. */
typedef struct scenario {
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
} scenario;

/* Takes ownership of the model. */
scenario make_scenario(bp_model *model, scenario_options options);
void free_scenario(scenario *s);

/* The intervals of a request. */
const bp_interval *intervals_of(const bp_schedule *schedule, size_t request, size_t *count);
/* True if two requests are live in a common step. */
bool requests_conflict(const bp_schedule *schedule, size_t a, size_t b);

/* A unit of one bucket for each letter: 'x' 100 elements, 'y' 200, 'z' 300. */
scenario scenario_of_kinds(const char *kinds);

/* ---- plans --------------------------------------------------------------------------------------------------------- */

bp_plan_config plan_config(bp_policy policy, uint32_t copies, bp_fallback fallback);
bp_plan *make_plan(const scenario *s, bp_policy policy, uint32_t copies, bp_fallback fallback);
bp_plan *make_max(const scenario *s, uint32_t copies);

uint64_t aligned(uint64_t bytes);

/* A mutable copy of a plan's contents, for bp_plan_from_info. `info` points to the arrays; its counts may be lowered. */
typedef struct contents {
    bp_plan_info info;
    bp_plan_request *requests;
    bp_plan_slab *slabs;
    bp_plan_class *classes;
} contents;

contents copy_contents(const bp_plan *plan);
void free_contents(contents *c);

/* A plan with equal contents, as read from a file. */
bp_plan *copy_plan(const bp_plan *plan);

#endif
