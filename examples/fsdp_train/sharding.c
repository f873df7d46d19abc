/* SPDX-License-Identifier: Apache-2.0 */
#include "sharding.h"

#include <stdlib.h>
#include <string.h>

#include "try.h"

#define FLAT_ALIGNMENT 16 /* elements of a shard */

/* ---- the plan ------------------------------------------------------------------------------------------------------- */

static bp_status make_buckets(const model *m, sharding *s)
{
    bp_model *described;
    bp_buckets_config config;
    TRY(bp_buckets_config_init(&config, sizeof config));
    config.padding = BP_PADDING_FLAT; /* tensors lie one behind the other */
    config.flat_alignment = FLAT_ALIGNMENT;
    config.dp = s->ranks;
    config.single_rank = 1; /* step.c gathers on one rank, too */
    config.roles = ROLES;
    TRY(model_describe(m, &described));
    bp_status status = bp_buckets_create(described, &config, &s->buckets);
    bp_model_destroy(&described);
    return status;
}

/* One unit is gathered ahead, and the reduction of one drains while the next runs backward: step.c does as the schedule says. */
static bp_status make_plan(const model *m, sharding *s)
{
    bp_schedule_config schedule;
    bp_plan_config plan;
    TRY(bp_schedule_config_init(&schedule, sizeof schedule));
    schedule.prefetch = 1;
    schedule.grad_units = 2;
    TRY(bp_schedule_create_training(s->buckets, &schedule, &s->schedule));
    TRY(bp_plan_config_init(&plan, sizeof plan));
    plan.policy = m->options->policy;
    return bp_plan_create(s->buckets, s->schedule, &plan, &s->plan);
}

/* ---- where tensors are ---------------------------------------------------------------------------------------------- */

/* As the library groups parameters: by unit, dtype, and whether they are experts'. */
static bool is_in(const tensor *t, const bucket *b)
{
    return b->info.unit == t->unit && b->info.dtype == t->dtype &&
           (b->info.expert != 0) == (strstr(t->name, ".experts.") != NULL);
}

static bp_status place_tensors(model *m, sharding *s)
{
    uint64_t *used = calloc(s->count, sizeof *used);
    if (used == NULL)
        return fail_memory();
    for (uint32_t i = 0; i < m->count; i++) {
        tensor *t = &m->tensors[i];
        for (t->bucket = 0; t->bucket < s->count && !is_in(t, &s->list[t->bucket]); t->bucket++) {
        }
        if (t->bucket == s->count)
            break;
        t->offset = used[t->bucket];
        used[t->bucket] += t->numel;
    }
    bool fits = true;
    for (size_t i = 0; i < s->count; i++)
        fits = fits && used[i] == s->list[i].info.numel;
    free(used);
    return fits ? BP_OK : fail(BP_ERR_INTERNAL, "the tensors do not fill the buckets that the library made of them");
}

static bp_status list_buckets(sharding *s)
{
    s->count = bp_buckets_get_info(s->buckets)->bucket_count;
    s->list = calloc(s->count, sizeof *s->list);
    if (s->list == NULL)
        return fail_memory();
    for (size_t i = 0; i < s->count; i++) {
        bucket *b = &s->list[i];
        b->info = bp_buckets_get_info(s->buckets)->buckets[i];
        b->shard = b->info.padded_numel / s->ranks;
        b->element_bytes = bp_dtype_bits(b->info.dtype) / 8;
        b->bytes[BP_ROLE_PARAM] = b->bytes[BP_ROLE_GRAD] = b->info.padded_numel * b->element_bytes;
        b->bytes[BP_ROLE_STATE] = b->shard * b->element_bytes;
        b->bytes[BP_ROLE_MAIN_GRAD] = b->shard * sizeof(float);
        b->bytes[BP_ROLE_OPTIMIZER] = 3 * b->shard * sizeof(float);
    }
    return BP_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bp_status create(model *m, sharding *s)
{
    TRY(make_buckets(m, s));
    TRY(make_plan(m, s));
    TRY(list_buckets(s));
    return place_tensors(m, s);
}

bp_status sharding_create(model *m, uint32_t rank, uint32_t ranks, sharding *s)
{
    *s = (sharding){.rank = rank, .ranks = ranks};
    bp_status status = create(m, s);
    if (status != BP_OK)
        sharding_destroy(s);
    return status;
}

void sharding_destroy(sharding *s)
{
    free(s->list);
    s->list = NULL;
    bp_plan_destroy(&s->plan);
    bp_schedule_destroy(&s->schedule);
    bp_buckets_destroy(&s->buckets);
}

size_t sharding_unit(const sharding *s, int32_t unit, bucket **buckets)
{
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->list[i].info.unit == unit)
            buckets[count++] = &s->list[i];
    }
    return count;
}

/* ---- what to expect ------------------------------------------------------------------------------------------------- */

static bool is_live(const bp_schedule *schedule, size_t request, size_t step)
{
    const bp_scheduled_request *live = &bp_schedule_get_info(schedule)->requests[request];
    for (size_t i = 0; i < live->interval_count; i++) {
        if (step >= live->intervals[i].begin && step < live->intervals[i].end)
            return true;
    }
    return false;
}

bp_status sharding_max_live(const sharding *s, uint64_t alignment, uint64_t *bytes)
{
    uint64_t max = 0;
    for (size_t step = 0; step < bp_schedule_get_info(s->schedule)->step_count; step++) {
        uint64_t live = 0;
        for (size_t i = 0; i < bp_buckets_get_info(s->buckets)->request_count; i++) {
            bp_request request = bp_buckets_get_info(s->buckets)->requests[i];
            if (is_live(s->schedule, i, step))
                live += (request.bytes + alignment - 1) / alignment * alignment;
        }
        max = live > max ? live : max;
    }
    *bytes = max;
    return BP_OK;
}
