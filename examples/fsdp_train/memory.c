/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: planned requests as the plan has them, and separate memory for what lies outside units and for activations. */
#include <stdlib.h>

#include "trainer.h"
#include "try.h"

#define ALIGNMENT 256 /* of everything in the pool: what plans are made with by default, too */

static const bp_role outside_roles[] = {BP_ROLE_PARAM, BP_ROLE_GRAD, BP_ROLE_STATE, BP_ROLE_MAIN_GRAD,
                                        BP_ROLE_OPTIMIZER};
#define OUTSIDE_ROLES (sizeof outside_roles / sizeof *outside_roles)

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t activation_bytes(trainer *t)
{
    net measured;
    return net_lay_out(&measured, &t->model, &t->engine, t->net.tokens, NULL);
}

static uint64_t persistent_bytes(trainer *t)
{
    bucket *outside[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, BP_OUTSIDE, outside);
    uint64_t bytes = rounded(activation_bytes(t));
    for (size_t i = 0; i < count; i++) {
        for (size_t r = 0; r < OUTSIDE_ROLES; r++)
            bytes += rounded(outside[i]->bytes[outside_roles[r]]);
    }
    return bytes;
}

/* ---- binding -------------------------------------------------------------------------------------------------------- */

/* Ids of the plan's requests are those of the buckets. */
static bp_status find_planned(trainer *t)
{
    sharding *s = &t->sharding;
    for (uint32_t id = 0; id < bp_buckets_get_info(s->buckets)->request_count; id++) {
        bp_request request = bp_buckets_get_info(s->buckets)->requests[id];
        s->list[request.bucket].ids[request.role] = id;
        if ((BP_ROLES_STATE & BP_ROLE_BIT(request.role)) != 0)
            t->lasting[t->lasting_count++] = id;
    }
    t->lasting_planned = t->lasting_count;
    return BP_OK;
}

/* Gathered requests are acquired on the gather stream, others on compute: releases there need no event. */
static bp_status promise_streams(trainer *t)
{
    const bp_plan_info *plan = bp_plan_get_info(t->sharding.plan);
    uint32_t *ids = malloc((plan->request_count + 1) * sizeof *ids);
    bp_status status = ids != NULL ? BP_OK : fail_memory();
    for (int gathered = 0; status == BP_OK && gathered < 2; gathered++) {
        size_t count = 0;
        for (uint32_t id = 0; id < plan->request_count; id++) {
            if ((plan->requests[id].role == BP_ROLE_PARAM) == gathered)
                ids[count++] = id;
        }
        status = bp_pool_set_stream(t->pool, ids, count, gathered ? t->gather : t->compute);
    }
    free(ids);
    return status;
}

static bp_status bind_persistent(trainer *t, bp_bind *bind, uint32_t *id)
{
    bind->placement = BP_PLACE_PERSISTENT;
    TRY(bp_pool_bind(t->pool, bind, id));
    t->lasting[t->lasting_count++] = *id;
    return BP_OK;
}

static bp_status bind_outside(trainer *t)
{
    bucket *outside[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, BP_OUTSIDE, outside);
    for (size_t i = 0; i < count; i++) {
        bucket *b = outside[i];
        for (size_t r = 0; r < OUTSIDE_ROLES; r++) {
            bp_role role = outside_roles[r];
            bp_bind bind;
            TRY(bp_bind_init(&bind, sizeof bind));
            bind.ordinal = b->info.ordinal;
            bind.role = role;
            bind.dtype = role == BP_ROLE_MAIN_GRAD || role == BP_ROLE_OPTIMIZER ? BP_DTYPE_FP32 : b->info.dtype;
            bind.bytes = bind.used_bytes = b->bytes[role];
            TRY(bind_persistent(t, &bind, &b->ids[role]));
        }
    }
    return BP_OK;
}

static bp_status bind_activations(trainer *t, uint32_t *id)
{
    bp_bind bind;
    TRY(bp_bind_init(&bind, sizeof bind));
    bind.unit = "activations";
    bind.role = BP_ROLE_STATE;
    bind.dtype = BP_DTYPE_UINT8;
    bind.bytes = bind.used_bytes = activation_bytes(t);
    return bind_persistent(t, &bind, id);
}

/* ---- addresses ------------------------------------------------------------------------------------------------------ */

static bp_status address(const trainer *t, uint32_t id, void **where)
{
    uint64_t bytes;
    return bp_pool_address(t->pool, id, where, &bytes);
}

static bp_status find_bucket(const trainer *t, bucket *b)
{
    void *main_grad, *optimizer;
    TRY(address(t, b->ids[BP_ROLE_STATE], &b->state));
    TRY(address(t, b->ids[BP_ROLE_MAIN_GRAD], &main_grad));
    TRY(address(t, b->ids[BP_ROLE_OPTIMIZER], &optimizer));
    b->main_grad = main_grad;
    b->optimizer = optimizer;
    if (b->info.unit != BP_OUTSIDE)
        return BP_OK;
    TRY(address(t, b->ids[BP_ROLE_PARAM], &b->param));
    return address(t, b->ids[BP_ROLE_GRAD], &b->grad);
}

static void count_lasting(trainer *t, const bucket *b)
{
    for (size_t r = 0; b->info.unit != BP_OUTSIDE && r < OUTSIDE_ROLES; r++) {
        if ((BP_ROLES_STATE & BP_ROLE_BIT(outside_roles[r])) != 0)
            memory_count_held(t, b, outside_roles[r]);
    }
}

static void *element(const bucket *b, void *base, uint64_t offset)
{
    return base != NULL ? (uint8_t *)base + offset * b->element_bytes : NULL;
}

weights memory_weights(const trainer *t, int32_t unit)
{
    weights w = {{NULL}, {NULL}};
    uint32_t first = model_tensor(&t->model, unit, 0);
    for (uint32_t i = 0; first + i < t->model.count && t->model.tensors[first + i].unit == unit; i++) {
        const tensor *of = &t->model.tensors[first + i];
        const bucket *b = &t->sharding.list[of->bucket];
        w.at[i] = element(b, b->param, of->offset);
        w.grad[i] = element(b, b->grad, of->offset);
    }
    return w;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bp_status make_pool(trainer *t)
{
    bp_pool_config config;
    TRY(bp_pool_config_init(&config, sizeof config));
    t->persistent_bytes = config.persistent_bytes = persistent_bytes(t);
    t->lasting = malloc((t->sharding.count * OUTSIDE_ROLES + 1) * sizeof *t->lasting);
    return t->lasting != NULL ? bp_pool_create(t->device, t->sharding.plan, &config, &t->pool) : fail_memory();
}

bp_status memory_create(trainer *t)
{
    uint32_t activations;
    TRY(make_pool(t));
    TRY(find_planned(t));
    TRY(bind_outside(t));
    TRY(bind_activations(t, &activations));
    TRY(promise_streams(t));
    TRY(bp_pool_acquire(t->pool, t->lasting, t->lasting_count, t->compute, NULL));
    for (size_t i = 0; i < t->sharding.count; i++) {
        TRY(find_bucket(t, &t->sharding.list[i]));
        count_lasting(t, &t->sharding.list[i]);
    }
    TRY(address(t, activations, &t->activations));
    net_lay_out(&t->net, &t->model, &t->engine, t->net.tokens, t->activations);
    return BP_OK;
}

/* ---- bytes taken ---------------------------------------------------------------------------------------------------- */

static uint64_t held_bytes(const bucket *b, bp_role role)
{
    return rounded(b->bytes[role]);
}

void memory_count_held(trainer *t, const bucket *b, bp_role role)
{
    t->held_bytes[role] += held_bytes(b, role);
    if (t->held_bytes[role] > t->max_bytes[role])
        t->max_bytes[role] = t->held_bytes[role];
}

void memory_count_released(trainer *t, const bucket *b, bp_role role)
{
    t->held_bytes[role] -= held_bytes(b, role);
}

bp_status memory_peak(const trainer *t, uint64_t *bytes)
{
    *bytes = 0;
    for (int role = 0; t->options->policy == BP_POLICY_DYNAMIC && role < BP_ROLE_COUNT; role++)
        *bytes += t->max_bytes[role];
    const bp_pool_info *pool = bp_pool_get_info(t->pool);
    for (size_t i = 0; i < pool->slab_count; i++)
        *bytes += pool->slabs[i].planned_bytes;
    return BP_OK;
}

bp_status memory_check(const trainer *t)
{
    const bp_plan_info *plan = bp_plan_get_info(t->sharding.plan);
    bp_pool_statistics statistics = {.size = sizeof statistics};
    uint64_t peak, live;
    if (t->options->steps == 0)
        return BP_OK;
    TRY(bp_pool_statistics_get(t->pool, &statistics));
    TRY(memory_peak(t, &peak));
    TRY(sharding_max_live(&t->sharding, ALIGNMENT, &live));
    live += t->persistent_bytes;
    if (peak != plan->bytes)
        return fail(BP_ERR_MISMATCH, "the pool took %llu bytes, the plan has %llu", (unsigned long long)peak,
                    (unsigned long long)plan->bytes);
    if (statistics.peak_live_bytes != live)
        return fail(BP_ERR_MISMATCH, "%llu bytes were live at most, the schedule has %llu",
                    (unsigned long long)statistics.peak_live_bytes, (unsigned long long)live);
    return BP_OK;
}
