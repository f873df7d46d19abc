/* The picture of memory plans: what lies where in the slabs, step by step, and what stays unused. */
#ifndef TOOLS_PICTURES_PLANS_H
#define TOOLS_PICTURES_PLANS_H

#include <bucketpool/bucketpool.h>

#include "shared/outputs.h"

typedef struct picture_input {
    const char *title; /* the first line is the heading, further lines are set smaller; NULL: none */
    const bp_buckets *buckets;
    const bp_schedule *schedule; /* of these buckets */
    const bp_plan *const *plans; /* of these buckets and this schedule */
    size_t plan_count;
} picture_input;

/* Draws one panel per plan and role: steps to the right, memory upwards, the plans of a role in one scale. The format is that
 * of the ending of the output's path: .svg, .png or .pdf. Same input, fonts and cairo give the same bytes in every process; within one,
 * cairo numbers the ids of later SVGs on.
 * NULL, or an error text that lives until this thread's next call. */
const char *picture_draw(const picture_input *input, const output *to);

#endif
