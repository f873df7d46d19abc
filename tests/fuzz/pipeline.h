/* SPDX-License-Identifier: Apache-2.0 */
/* Plans every model that a reader accepts, under every rule and policy. */
#ifndef BP_FUZZ_PIPELINE_H
#define BP_FUZZ_PIPELINE_H

#include <bucketpool/bucketpool.h>

#include <stdio.h>
#include <stdlib.h>

/* Larger models take longer and find nothing new. */
#define FUZZ_MAX_UNITS 64

static inline void fuzz_stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, bp_error_detail());
    abort();
}

/* A call may fail, but with a detail. */
static inline int fuzz_good(bp_status status)
{
    if (status != BP_OK && *bp_error_detail() == '\0')
        abort();
    if (status == BP_ERR_INTERNAL || status == BP_ERR_NO_HOST_MEMORY)
        fuzz_stop("a call failed");
    return status == BP_OK;
}

/* Requests of the plan have the indices and names of the buckets. */
static inline void fuzz_ids(const bp_buckets *buckets, const bp_plan *plan)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    if (info->request_count != bp_buckets_get_info(buckets)->request_count)
        fuzz_stop("a plan has other requests than the buckets");
    for (size_t i = 0; i < info->request_count; i++) {
        const bp_plan_request *r = &info->requests[i];
        uint32_t id = UINT32_MAX;
        bp_status status = bp_plan_find(plan, r->unit, r->ordinal, (bp_role)r->role, r->dtype, r->bytes, &id);
        if (r->placement == BP_PLACE_NONE ? status != BP_ERR_MISMATCH : status != BP_OK || id != i)
            fuzz_stop("a request is not found under its name");
    }
}

static inline void fuzz_policies(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t copies)
{
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_SCHEDULED; policy++) {
        bp_plan_config config;
        bp_plan *plan = NULL;
        bp_plan_config_init(&config, sizeof config);
        config.policy = (bp_policy)policy;
        config.copies = copies;
        config.joint = copies % 2;
        config.work = 1 << 16; /* fuzz_packing covers the search */
        if (!fuzz_good(bp_plan_create(buckets, schedule, &config, &plan)))
            continue;
        const bp_plan_info *info = bp_plan_get_info(plan);
        fuzz_ids(buckets, plan);
        if (info->feasible && info->bytes < info->lower_bound_bytes)
            fuzz_stop("a plan takes less than the bound");
        if (info->feasible && info->stable && bp_plan_check(plan, buckets, schedule) != BP_OK)
            fuzz_stop("a plan fails its check");
        bp_plan_destroy(&plan);
    }
}

/* Repeated iterations have the conflicts of one. */
static inline void fuzz_repeat(const bp_buckets *buckets, const bp_schedule *schedule)
{
    const bp_schedule *twice[] = {schedule, schedule};
    bp_schedule *united = NULL;
    if (!fuzz_good(bp_schedule_create_merged(twice, 2, &united)))
        return;
    if (bp_schedule_get_info(united)->overlap_count != bp_schedule_get_info(schedule)->overlap_count)
        fuzz_stop("a schedule has other overlaps when it runs twice");
    fuzz_policies(buckets, united, 0);
    bp_schedule_destroy(&united);
}

/* Options derived from a number. */
static inline void fuzz_options(uint32_t number, bp_schedule_config *config)
{
    bp_schedule_config_init(config, sizeof *config);
    config->prefetch = number % 3;
    config->passes = (bp_passes)(number / 2 % 3);
    config->streams = (bp_streams)(number / 3 % 2);
    config->outside = (bp_outside)(number / 4 % 2);
    config->recompute = number / 5 % 2;
    config->microbatches = number % 4;
    config->combined = number / 6 % 2;
    config->keep_after_forward = number % 5 == 4;
}

static inline void fuzz_plan_model(const bp_model *model)
{
    static const bp_padding paddings[] = {BP_PADDING_MEGATRON_LCM, BP_PADDING_MEGATRON_SPLIT, BP_PADDING_FLAT,
                                          BP_PADDING_GIVEN,        BP_PADDING_FSDP2,          BP_PADDING_FSDP2_SHARD1};
    if (bp_model_get_info(model)->unit_count > FUZZ_MAX_UNITS)
        return;
    bp_model *fused = NULL, *local = NULL;
    bp_layout layout = bp_model_get_info(model)->parameter_count % 2 == 0 ? BP_LAYOUT_MEGATRON : BP_LAYOUT_STACKED;
    if (fuzz_good(bp_model_with_layout(model, layout, &fused)))
        fuzz_good(bp_model_shard(fused, bp_model_get_info(model)->unit_count % 2 + 1, 2, &local));
    for (int i = 0; i < 18; i++) {
        uint32_t copies = i % 3 == 0 ? 0 : i % 3 == 1 ? 2 : 1u << 30;
        bp_buckets_config config;
        bp_buckets_config_init(&config, sizeof config);
        config.bucketing = (bp_bucketing)(1 + i / 6);
        config.padding = paddings[i % 6];
        config.dp = 6;
        config.ep = 2;
        config.roles = (1u << BP_ROLE_COUNT) - 1;
        bp_buckets *buckets = NULL;
        if (!fuzz_good(bp_buckets_create(local != NULL ? local : model, &config, &buckets)))
            continue;
        bp_schedule_config schedule_config;
        fuzz_options((uint32_t)i, &schedule_config);
        bp_recorded_config recorded_config;
        bp_recorded_config_init(&recorded_config, sizeof recorded_config);
        recorded_config.overlap_window = (uint32_t)i % 4;
        bp_schedule *schedule = NULL;
        if (fuzz_good(bp_schedule_create_training(buckets, &schedule_config, &schedule))) {
            fuzz_policies(buckets, schedule, copies);
            fuzz_repeat(buckets, schedule);
        }
        bp_schedule_destroy(&schedule);
        if (bp_model_get_info(model)->event_count > 0 &&
            fuzz_good(bp_schedule_create_recorded(model, buckets, &recorded_config, &schedule))) {
            fuzz_policies(buckets, schedule, copies);
            fuzz_repeat(buckets, schedule);
        }
        bp_schedule_destroy(&schedule);
        bp_buckets_destroy(&buckets);
    }
    bp_model_destroy(&local);
    bp_model_destroy(&fused);
}

#endif
