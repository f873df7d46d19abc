/* The options of `plan` and `explain`, and of these what every command that plans takes. */
#ifndef TOOLS_PLAN_OPTIONS_H
#define TOOLS_PLAN_OPTIONS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "shared/options.h"

/* ---- schedules --------------------------------------------------------------------------------------------------- */

/* UNIT=F[:B] of --unit-prefetch. */
typedef struct unit_prefetch {
    char *unit;
    uint32_t forward, backward;
} unit_prefetch;

typedef struct schedule_options {
    uint32_t prefetch, prefetch_backward; /* BP_PREFETCH_SAME: as forward */
    uint32_t grad_units;
    unit_prefetch *unit_prefetches;
    size_t unit_prefetch_count;
    bp_passes passes;
    bp_streams streams;
    bp_outside outside;
    bool keep_after_forward, recompute, combined;
    uint32_t microbatches;
    uint32_t overlap_window; /* of recorded schedules */
    char **others;           /* files with further recorded schedules */
    size_t other_count;
    bool share; /* the models share one pool */
} schedule_options;

/* ---- plans ------------------------------------------------------------------------------------------------------- */

#define MOST_POLICIES 4
#define OPTIONS_OPTIMIZER_TENSORS 3
#define OPTIONS_EVALUATED_ROLES (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_STATE))

typedef struct plan_options {
    char **models;
    size_t model_count;
    bp_policy policies[MOST_POLICIES];
    size_t policy_count;
    bool policies_named;    /* --policy was given */
    bp_bucketing bucketing; /* 0: by what the model brings along */
    bp_padding padding;     /* 0: the bucketing's own */
    bp_layout layout;       /* 0: the bucketing's own */
    schedule_options schedule;
    uint32_t dp, ep, tp, buffers;
    uint64_t flat_alignment, alignment;
    bp_dtype param_dtype, grad_dtype, grad_comm_dtype;
    bp_dtype main_grad_dtype, optimizer_dtype; /* BP_DTYPE_NONE: fp32 */
    uint32_t optimizer_tensors;
    uint32_t roles;
    bp_fallback fallback;
    bool joint;
    uint64_t work;     /* 0: the library's default */
    const char *units; /* patterns for safetensors */
    options_given given;
    uint64_t budget; /* bytes, 0: none */
    const char *budget_name;
    bool json;
    const char *plot, *output, *color;
} plan_options;

/* For the tables of every command that plans, whose options begin with a plan_options. */
extern const option_row options_planning[], options_schedule[];
/* Names of the values; see choice_name. */
extern const choice options_bucketings[], options_paddings[], options_layouts[], options_fallbacks[];
extern const choice options_passes[], options_streams[], options_outsides[];
void options_init(plan_options *options);
void options_finish(plan_options *options);
int options_check(const plan_options *options, const char *command);
/* Checks that each option of a policy has an effect on one of these. EXIT_GO_ON or the exit code after a message. */
int options_check_policies(const plan_options *options, const bp_policy *policies, size_t count);
/* The first option on the command line with one of these bits of `applies`, without its dashes; NULL: none. */
const char *options_given_of(const plan_options *options, unsigned applies);
/* The first one that only generated schedules heed: an evaluation may be asked of any. */
const char *options_schedule_generating(const plan_options *options);

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. Call options_finish either way. */
int options_parse(int argc, char **argv, const char *command, plan_options *options);

#endif
