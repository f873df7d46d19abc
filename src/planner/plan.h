/* The plan's own data. */
#ifndef BP_PLANNER_PLAN_H
#define BP_PLANNER_PLAN_H

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "core/memory.h"

typedef struct bp_assignment_data {
    uint64_t offset, bytes;
    const char *bucket; /* NULL: "bucket.<ordinal>" */
    uint32_t unit, ordinal;
    uint32_t first_predecessor;
    uint16_t slab;
    uint8_t role, dtype;
} bp_assignment_data;

typedef struct bp_buffer_data {
    uint64_t bytes;  /* of one copy, aligned */
    uint64_t offset; /* of copy 0 in the role's slab; copies are `stride` apart */
    uint64_t stride;
    uint32_t copies, rank, tenants;
    uint32_t set_by_unit, set_by_ordinal;
    const char *set_by_bucket;
    uint8_t kind, dtype;
} bp_buffer_data;

typedef struct bp_role_data {
    bp_plan_role info;
    size_t first_buffer, first_witness, witness_count;
} bp_role_data;

typedef struct bp_witness_data {
    uint64_t bytes;
    const char *bucket;
    uint32_t unit, ordinal, role;
} bp_witness_data;

typedef struct bp_option {
    char *key, *value;
} bp_option;

struct bp_plan {
    bp_strings strings; /* names of units, buckets, release groups */
    bp_plan_summary summary;
    char *model;
    bp_option *options;
    size_t option_count, option_capacity;
    const char **units;
    size_t unit_count, unit_capacity;
    bp_role_data *roles;
    size_t role_count, role_capacity;
    bp_buffer_data *buffers;
    size_t buffer_count, buffer_capacity;
    bp_witness_data *witnesses;
    size_t witness_count, witness_capacity;
    bp_plan_slab *slabs;
    size_t slab_count, slab_capacity;
    bp_assignment_data *assignments;
    size_t assignment_count, assignment_capacity;
    bp_plan_class *classes;
    size_t class_count, class_capacity;
    uint32_t *predecessors;
    size_t predecessor_count, predecessor_capacity;
};

bp_status bp_plan_new(bp_plan **plan);

/* The assignment's predecessors end where the next one's begin. */
static inline size_t bp_predecessors_of(const bp_plan *plan, size_t assignment, const uint32_t **first)
{
    size_t end = assignment + 1 < plan->assignment_count ? plan->assignments[assignment + 1].first_predecessor
                                                         : plan->predecessor_count;
    const size_t begin = plan->assignments[assignment].first_predecessor;
    *first = NULL;
    if (end <= begin) /* a plan without any has no array to point into */
        return 0;
    *first = plan->predecessors + begin;
    return end - begin;
}

#endif
