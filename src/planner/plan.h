/* SPDX-License-Identifier: Apache-2.0 */
/* The data behind bp_plan: growable arrays, published by bp_plan_info. */
#ifndef BP_PLAN_PLAN_H
#define BP_PLAN_PLAN_H

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "core/index.h"
#include "core/memory.h"
#include "planner/from_info.h"

/* Indices of a role's first buffer and first witness in the plan's arrays. */
typedef struct bp_role_ranges {
    size_t first_buffer, first_witness;
} bp_role_ranges;

struct bp_plan {
    bp_plan_info info; /* arrays as of the last bp_plan_publish */
    bp_strings strings;
    bp_plan_request *requests;
    size_t request_count;
    bp_plan_slab *slabs;
    size_t slab_count, slab_capacity;
    bp_plan_class *classes;
    size_t class_count, class_capacity;
    bp_plan_role *roles;
    bp_role_ranges *ranges; /* by role */
    size_t role_count, role_capacity, range_capacity;
    bp_plan_buffer *buffers;
    size_t buffer_count, buffer_capacity;
    uint32_t *witnesses;
    size_t witness_count, witness_capacity;
    bp_plan_option *options;
    size_t option_count, option_capacity;
    bp_index names; /* of requests */
};

bp_status bp_plan_new(bp_plan **plan);

/* Points plan->info to the arrays; called after every change. */
void bp_plan_publish(bp_plan *plan);

/* Hash of a request's name: the same on every rank. */
uint64_t bp_plan_key(const char *unit, uint32_t ordinal, uint32_t role);

/* Builds the table of all requests. Errors: BP_ERR_MISMATCH (a duplicate request, by name), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_plan_make_table(bp_plan *plan);

/* "param of layers.3, bucket.0", for messages. */
#define BP_PLAN_REQUEST_BYTES 192
const char *bp_plan_describe(const bp_plan_request *request, char text[BP_PLAN_REQUEST_BYTES]);

/* Fails with BP_ERR_MISMATCH and "request <index> (<name>) <what>". */
bp_status bp_plan_fail_request(const bp_plan_info *info, size_t index, const char *what);

#endif
