/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `plan` and `explain`, and those of all commands that plan. */
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
    uint32_t overlap_window; /* recorded schedules only */
    char **others;           /* files of more recorded schedules */
    size_t other_count;
    bool share; /* the models share one pool */
} schedule_options;

/* ---- plans ------------------------------------------------------------------------------------------------------- */

#define MAX_POLICIES 4
#define OPTIONS_OPTIMIZER_TENSORS 3
#define OPTIONS_EVALUATED_ROLES (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_STATE))

typedef struct plan_options {
    char **models;
    size_t model_count;
    bp_policy policies[MAX_POLICIES];
    size_t policy_count;
    bool policies_named;    /* --policy was given */
    bp_bucketing bucketing; /* 0: given if the model has buckets, else megatron */
    bp_padding padding;     /* 0: by bucketing */
    bp_layout layout;       /* 0: by bucketing */
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
    bool strict;       /* refuses a model with parts or fields that are not read */
    options_given given;
    uint64_t budget;                         /* bytes, 0: none */
    const char *budget_name, *budget_option; /* the value, and "budget" or "gpu" */
    char overridden[64];                     /* the other of these options, which came before; "": none */
    bool json;
    const char *plot, *output;
    cli_color color;
} plan_options;

/* Tables for commands that plan. Their options struct must begin with a plan_options. */
extern const option_row options_planning[], options_schedule[];
/* Values of the options above; see choice_name. */
extern const choice options_bucketings[], options_paddings[], options_layouts[], options_fallbacks[];
extern const choice options_passes[], options_streams[], options_outsides[], options_policies[], options_roles[];
void options_init(plan_options *options);
void options_finish(plan_options *options);
int options_check(const plan_options *options, const char *command);
/* Checks that each given option has an effect on one of the policies. Returns EXIT_GO_ON, or the exit code after a
 * message. */
int options_check_policies(const plan_options *options, const bp_policy *policies, size_t count);
/* Name of the first option on the command line with one of these bits of `applies`, without dashes; NULL: none. */
const char *options_given_of(const plan_options *options, unsigned applies);
/* Name of the first option that has an effect only on generated schedules (not --passes eval); NULL: none. */
const char *options_schedule_generating(const plan_options *options);

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. Call
 * options_finish either way. */
int options_parse(int argc, char **argv, const char *command, plan_options *options);

#endif
