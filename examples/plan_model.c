/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a model with the library: docs/start/pool.md shows this program. */
#include <bucketpool/bucketpool.h>
#include <bucketpool/formats.h>
#include <stdio.h>

int main(void)
{
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
    bp_buckets_config buckets_config;
    bp_schedule_config schedule_config;
    bp_plan_config plan_config;
    bp_buckets_config_init(&buckets_config, sizeof buckets_config);
    bp_schedule_config_init(&schedule_config, sizeof schedule_config);
    bp_plan_config_init(&plan_config, sizeof plan_config);
    buckets_config.dp = 64;
    if (bp_model_read("config.json", NULL, &model) || bp_buckets_create(model, &buckets_config, &buckets) ||
        bp_schedule_create_training(buckets, &schedule_config, &schedule) ||
        bp_plan_create(buckets, schedule, &plan_config, &plan)) {
        fprintf(stderr, "%s\n", bp_error_detail());
        return 1;
    }
    const bp_plan_info *info = bp_plan_get_info(plan);
    printf("%llu bytes, at least %llu\n", (unsigned long long)info->bytes, (unsigned long long)info->lower_bound_bytes);
    bp_plan_destroy(&plan);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}
