/* SPDX-License-Identifier: Apache-2.0 */
/* The model as buckets that are sharded over ranks, and the plan for where they are gathered and reduced. */
#ifndef FSDP_TRAIN_SHARDING_H
#define FSDP_TRAIN_SHARDING_H

#include "model.h"

/* The bucket of one collective, with this rank's shard. Parameters and gradients have the same dtype. */
typedef struct bucket {
    bp_bucket info;
    uint64_t shard; /* elements of each rank's piece */
    uint32_t element_bytes;
    uint32_t ids[BP_ROLE_COUNT];   /* of the pool's requests */
    uint64_t bytes[BP_ROLE_COUNT]; /* of their memory */
    void *param, *grad;            /* while they are held; outside units always */
    void *state;                   /* the shard, as it is gathered */
    float *main_grad, *optimizer;  /* the shard's gradient, main weights and moments */
} bucket;

#define ROLES (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLES_STATE)

typedef struct sharding {
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
    bucket *list;
    size_t count;
    uint32_t rank, ranks;
} sharding;

/* Makes buckets, schedule and plan, and tells the model's tensors where they are. */
bp_status sharding_create(model *m, uint32_t rank, uint32_t ranks, sharding *s);
void sharding_destroy(sharding *s);

/* Buckets of a unit (or BP_OUTSIDE): up to `UNIT_TENSORS`; returns how many. */
size_t sharding_unit(const sharding *s, int32_t unit, bucket **buckets);

/* The most bytes of buckets that the schedule has live in one step, as pools round them. */
bp_status sharding_max_live(const sharding *s, uint64_t alignment, uint64_t *bytes);

#endif
