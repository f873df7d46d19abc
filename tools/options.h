/* The options of `plan` and `explain`. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#define MOST_POLICIES 3

typedef struct plan_options {
    char **models;
    size_t model_count;
    bp_policy policies[MOST_POLICIES];
    size_t policy_count;
    bool policies_named;    /* --policy was given */
    bp_bucketing bucketing; /* 0: by what the model brings along */
    bp_padding padding;     /* 0: the bucketing's own */
    bp_layout layout;       /* 0: the bucketing's own */
    uint32_t dp, ep, tp, prefetch, buffers, grad_units;
    uint64_t flat_alignment, alignment;
    bp_dtype param_dtype, grad_dtype, grad_comm_dtype;
    uint32_t roles;
    bp_fallback fallback;
    bool eval;
    const char *units; /* patterns for safetensors */
    uint64_t budget;   /* bytes, 0: none */
    const char *budget_name;
    bool json;
    const char *svg, *output, *color;
} plan_options;

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
int options_parse(int argc, char **argv, const char *command, plan_options *options);

const char *options_bucketing_name(bp_bucketing bucketing);
const char *options_padding_name(bp_padding padding);
const char *options_layout_name(bp_layout layout);
const char *options_fallback_name(bp_fallback fallback);

#endif
