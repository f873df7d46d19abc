/* SPDX-License-Identifier: Apache-2.0 */
/* The data behind bp_buckets, for the schedule and the planner. */
#ifndef BP_MODEL_BUCKETS_H
#define BP_MODEL_BUCKETS_H

#include <bucketpool/model.h>

#include <stdbool.h>

#include "core/memory.h"
#include "planner/model/model.h"

/* The requests of one unit in one role; generated schedules acquire and release them together. */
typedef struct bp_request_group {
    uint32_t unit, role;
    uint32_t first, count; /* requests */
} bp_request_group;

/* Of merged buckets: the units and requests of one part. */
typedef struct bp_buckets_part {
    uint32_t first_unit, unit_count;
    uint32_t first_request, request_count;
} bp_buckets_part;

struct bp_buckets {
    bp_strings strings;
    bp_buckets_info info; /* points to the arrays below once they are complete */
    const char *model;
    bp_unit *units;
    size_t unit_count;
    uint32_t *order; /* units in forward order */
    size_t order_count;
    bp_bucket *buckets;
    size_t bucket_count, bucket_capacity;
    bp_request *requests;
    size_t request_count;
    bp_request_group *groups;
    size_t group_count;
    uint64_t persistent_bytes;
    bool fsdp2;             /* made by its bucketing: schedules are FSDP2's */
    int32_t root;           /* the unit of its root group, or BP_OUTSIDE */
    bp_buckets_part *parts; /* of merged buckets */
    size_t part_count;
};

static inline bool bp_dtype_is_float(bp_dtype dtype)
{
    return dtype >= BP_DTYPE_FP64 && dtype <= BP_DTYPE_FP4_E2M1;
}

/* The types that are gathered row-wise and as a transpose. */
static inline bool bp_dtype_is_fp8(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP8_E4M3 || dtype == BP_DTYPE_FP8_E5M2;
}

/* grouping.c: makes buckets of all parameters, unit by unit, those of persistent parameters last. */
bp_status bp_buckets_derive(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets);

/* padding.c: padded elements of one bucket over `shards` ranks, under any rule but BP_PADDING_MEGATRON_SPLIT, which splits buckets.
 * Errors: BP_ERR_OVERFLOW naming the first parameter. */
bp_status bp_padded_numel(const bp_buckets_config *config, const bp_parameter *const *parameters, size_t count,
                          uint32_t shards, uint64_t *padded);
/* Sorts by descending rows, then in model order. */
void bp_padding_sort(const bp_parameter **parameters, size_t count);
/* Stable partition of sorted parameters: the first `together` share a bucket under BP_PADDING_MEGATRON_SPLIT. */
bp_status bp_padding_split(const bp_parameter **parameters, size_t count, size_t *together);

#define BP_ROOT_GROUP "(root)" /* FSDP2's name for it, as in bucketpool.torch.fsdp2 */

/* A frozen bucket has no gradients, whatever `bucket` says. */
bp_status bp_buckets_append(bp_buckets *buckets, const bp_bucket *bucket);
/* The dtype that gradients of parameters of `dtype` are communicated in. */
bp_dtype bp_gradient_dtype(const bp_buckets_config *config, bp_dtype dtype);

/* The bucket's name; a bucket without one gets a name from its ordinal, written to `text`. */
const char *bp_bucket_label(const char *name, uint32_t ordinal, char text[24]);

#endif
