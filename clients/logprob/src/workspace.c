/* SPDX-License-Identifier: Apache-2.0 */
/* Workspaces of a client: planned as requests and served by a private pool. */
#include "base.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/cuda.h>
#include <bucketpool/model.h>
#include <bucketpool/plan.h>
#include <bucketpool/schedule.h>
#include <unistd.h>

#define STAGES 32u
#define NO_ID UINT32_MAX

/* Temporary objects of the planning; only the pool is kept. */
typedef struct planning {
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
} planning;

static bp_status workspace_add_events(bp_model *model, const bp_workspace_need *needs, size_t count, uint32_t stage,
                                      uint32_t acquire)
{
    int32_t unit = 0;
    for (size_t i = 0; i < count; i++) {
        if (needs[i].bytes == 0)
            continue;
        bp_model_event event = {.size = sizeof event,
                                .acquire = acquire,
                                .unit = unit++,
                                .role = BP_ROLE_PARAM,
                                .lane = BP_MODEL_EVENT_NO_LANE};
        if (needs[i].stages >> stage & 1)
            BP_TRY(bp_model_add_event(model, &event));
    }
    return BP_OK;
}

/* Plans one unit with one bucket per non-empty need, in their order, and creates the pool. Requests of the plan have the same order. */
static bp_status workspace_make(planning *p, bp_device *device, const char *name, const bp_workspace_need *needs,
                                size_t count, bp_workspace *w)
{
    bp_buckets_config buckets;
    bp_plan_config plan;
    bp_pool_config pool;
    BP_TRY(bp_buckets_config_init(&buckets, sizeof buckets));
    BP_TRY(bp_plan_config_init(&plan, sizeof plan));
    BP_TRY(bp_pool_config_init(&pool, sizeof pool));
    buckets.bucketing = BP_BUCKETING_GIVEN;
    buckets.padding = BP_PADDING_GIVEN;
    buckets.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    plan.policy = BP_POLICY_SCHEDULED;
    pool.name = name;
    pool.extra_requests = 0;
    /* the device's granularity, if known, so that the plan's sizes are exact */
    const bp_cuda_info *info = bp_cuda_get_info(device);
    const long page = sysconf(_SC_PAGESIZE);
    plan.alignment = page > 0 ? (uint64_t)page : 4096;
    if (info != NULL)
        plan.alignment = info->multicast_granularity > info->recommended_granularity ? info->multicast_granularity
                                                                                     : info->recommended_granularity;
    BP_TRY(bp_model_create(name, &p->model));
    uint32_t unit = 0, next = 0;
    for (size_t i = 0; i < count; i++) {
        w->ids[i] = needs[i].bytes > 0 ? next++ : NO_ID;
        if (needs[i].bytes == 0)
            continue;
        BP_TRY(bp_model_add_unit(p->model, needs[i].name, BP_OUTSIDE, &unit));
        bp_given_bucket bucket = {
            .size = sizeof bucket, .unit = (int32_t)unit, .dtype = BP_DTYPE_UINT8, .numel = needs[i].bytes};
        BP_TRY(bp_model_add_bucket(p->model, &bucket));
    }
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        BP_TRY(workspace_add_events(p->model, needs, count, stage, 1));
        BP_TRY(workspace_add_events(p->model, needs, count, stage, 0));
    }
    BP_TRY(bp_buckets_create(p->model, &buckets, &p->buckets));
    BP_TRY(bp_schedule_create_recorded(p->model, p->buckets, NULL, &p->schedule));
    BP_TRY(bp_plan_create(p->buckets, p->schedule, &plan, &p->plan));

    bp_pool_statistics statistics = {.size = sizeof statistics};
    BP_TRY(bp_pool_create(device, p->plan, &pool, &w->pool));
    BP_TRY(bp_pool_statistics_get(w->pool, &statistics));
    w->planned_bytes = bp_plan_get_info(p->plan)->bytes;
    w->bytes = statistics.slab_bytes;
    return BP_OK;
}

bp_status bp_workspace_init(bp_device *device, const char *name, const bp_workspace_need *needs, size_t count,
                            bp_workspace *workspace)
{
    planning p = {NULL};
    bp_workspace w = {NULL};
    if (count > BP_WORKSPACES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %zu workspaces exceed the limit of %d", name, count,
                       BP_WORKSPACES);
    bool is_empty = true;
    for (size_t i = 0; i < count; i++) {
        w.ids[i] = NO_ID;
        is_empty = is_empty && needs[i].bytes == 0;
    }
    bp_status status = is_empty ? BP_OK : workspace_make(&p, device, name, needs, count, &w);
    bp_plan_destroy(&p.plan);
    bp_schedule_destroy(&p.schedule);
    bp_buckets_destroy(&p.buckets);
    bp_model_destroy(&p.model);
    if (status != BP_OK) {
        bp_pool_destroy(&w.pool);
        return status;
    }
    *workspace = w;
    return BP_OK;
}

void bp_workspace_finish(bp_workspace *workspace)
{
    bp_pool_destroy(&workspace->pool);
}

bp_status bp_workspace_give(bp_workspace *workspace, uint32_t which, bp_stream *stream)
{
    if (workspace->ids[which] == NO_ID)
        return BP_OK;
    BP_TRY(bp_pool_release(workspace->pool, &workspace->ids[which], 1, stream));
    workspace->held &= ~(1u << which);
    return BP_OK;
}

/* Forgets the workspaces that the pool has freed: those acquired in a capture that was abandoned. */
static void forget_abandoned(bp_workspace *workspace)
{
    bp_live_request live[BP_WORKSPACES] = {{.size = sizeof *live}};
    size_t count = 0;
    uint32_t held = 0;
    if (bp_pool_live(workspace->pool, live, BP_WORKSPACES, &count) != BP_OK)
        return;
    for (size_t l = 0; l < count && l < BP_WORKSPACES; l++)
        for (uint32_t i = 0; i < BP_WORKSPACES; i++)
            held |= (uint32_t)(workspace->ids[i] == live[l].id) << i;
    workspace->held &= held;
}

static bp_status give_if_live(bp_workspace *workspace, uint32_t which, bp_stream *stream)
{
    const bp_kept_error kept = bp_error_keep();
    const bp_status status = bp_workspace_give(workspace, which, stream);
    if (status != BP_ERR_SCHEDULE)
        return status;
    forget_abandoned(workspace);
    if ((workspace->held >> which & 1) != 0)
        return status;
    return bp_error_record(BP_OK, kept.detail);
}

bp_status bp_workspace_take(bp_workspace *workspace, uint32_t which, bp_stream *stream, void **address)
{
    if (workspace->ids[which] == NO_ID) {
        *address = NULL;
        return BP_OK;
    }
    if ((workspace->held >> which & 1) != 0) /* left by a failed call */
        BP_TRY(give_if_live(workspace, which, stream));
    BP_TRY(bp_pool_acquire(workspace->pool, &workspace->ids[which], 1, stream, address));
    workspace->held |= 1u << which;
    return BP_OK;
}

bp_status bp_workspace_drop(bp_workspace *workspace, uint32_t which, bp_stream *stream, bp_status status)
{
    for (uint32_t i = 0; i < BP_WORKSPACES; i++) {
        if (((workspace->held & which) >> i & 1) == 0)
            continue;
        if (status == BP_OK) {
            status = give_if_live(workspace, i, stream);
        } else {
            BP_KEEP_ERROR;
            (void)give_if_live(workspace, i, stream);
        }
    }
    return status;
}
