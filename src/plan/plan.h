/* The plan's own data: what bp_plan_info shows, in arrays that can still grow. */
#ifndef BP_PLAN_PLAN_H
#define BP_PLAN_PLAN_H

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "core/memory.h"
#include "plan/from_info.h"

/* Where a role's buffers and witnesses begin in those of the plan. */
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
    uint32_t *table; /* finds requests by name: open addressing, request + 1, 0 is empty */
    size_t table_size;
};

bp_status bp_plan_new(bp_plan **plan);

/* Makes the arrays visible in plan->info. After every change. */
void bp_plan_publish(bp_plan *plan);

/* Hash of a request's name: the same on every rank. */
uint64_t bp_plan_key(const char *unit, uint32_t ordinal, uint32_t role);

/* Makes the table, once all requests are there. Errors: BP_ERR_MISMATCH naming a request that is there twice, BP_ERR_NO_HOST_MEMORY. */
bp_status bp_plan_make_table(bp_plan *plan);

/* "param of layers.3, bucket.0", for messages. */
#define BP_PLAN_REQUEST_BYTES 192
const char *bp_plan_describe(const bp_plan_request *request, char text[BP_PLAN_REQUEST_BYTES]);

/* BP_ERR_MISMATCH: request `index` (of a name) `what`. */
bp_status bp_plan_fail_request(const bp_plan_info *info, size_t index, const char *what);

#endif
