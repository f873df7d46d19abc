/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "try.h"

void report_begin(const trainer *t)
{
    const options *o = t->options;
    printf("model %s: %u units, %" PRIu64 " parameters in %zu buckets, %" PRIu64 " tokens a step\n", o->stack,
           t->model.units, model_numel(&t->model), t->sharding.count, o->rows * o->length);
    printf("ranks %u, collectives of %s, on device %s\n", t->sharding.ranks, bp_comm_get_info(t->comm)->name,
           bp_device_name(t->device));
}

bp_status report_registration(const trainer *t)
{
    char text[4096], *rest = NULL;
    size_t needed;
    TRY(bp_registration_report(t->registration, text, sizeof text, &needed));
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        printf("register %s\n", line);
    return BP_OK;
}

static bp_status report_pool(const trainer *t)
{
    const bp_plan_info *plan = bp_plan_get_info(t->sharding.plan);
    bp_pool_statistics statistics = {.size = sizeof statistics};
    uint64_t peak;
    TRY(bp_pool_statistics_get(t->pool, &statistics));
    TRY(memory_peak(t, &peak));
    printf("pool %s: peak %" PRIu64 " bytes, planned %" PRIu64 ", bound %" PRIu64 ", live at once %" PRIu64
           "; outside units and activations %" PRIu64 "\n",
           bp_policy_name(plan->policy), peak, plan->bytes, plan->lower_bound_bytes,
           statistics.peak_live_bytes - t->persistent_bytes, t->persistent_bytes);
    printf("order %" PRIu64 " acquires, %" PRIu64 " waits, %" PRIu64 " release events, %" PRIu64 " elided, %" PRIu64
           " deviations\n",
           statistics.acquires, statistics.waits, statistics.records, statistics.elided, statistics.deviations);
    return BP_OK;
}

bp_status report_end(const trainer *t, double seconds_a_step)
{
    const options *o = t->options;
    TRY(memory_check(t));
    TRY(report_pool(t));
    if (o->check_gradients && o->steps > 0)
        printf("gradients of %u tensors: at most %.3g of the norm apart in fp32, %.3g in bf16\n", t->gradients.tensors,
               t->gradients.fp32, t->gradients.bf16);
    if (o->graph)
        printf("graphs %" PRIu64 " captured, %" PRIu64 " launches\n", t->captures, t->replays);
    if (t->offloads > 0)
        printf("offload %" PRIu64 " times, of %" PRIu64 " bytes committed %" PRIu64 " left\n", t->offloads,
               t->away_before, t->away_bytes);
    if (t->profile != NULL && o->steps > 0)
        printf("profile %s\n", bp_profile_get_info(t->profile)->pickle_path);
    printf("time %.3f ms a step, the median\n", 1e3 * seconds_a_step);
    return BP_OK;
}
