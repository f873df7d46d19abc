/* Assembles the pools of policy scheduled: an entry and a slab for each role, or one for all that share. */
#include "core/fail.h"
#include "planner/assembly.h"
#include "planner/bound.h"
#include "planner/scheduled_pool.h"

#define JOINT_GROUP "joint"

/* Roles of the mask in which anything is live at once, and how many units at most. */
static bp_status count_live_units(const bp_assembly *a, uint32_t roles, uint32_t *live_units)
{
    *live_units = 0;
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (!(roles & BP_ROLE_BIT(role)))
            continue;
        bp_tenants tenants = {0};
        BP_TRY(bp_tenants_init(a->buckets, a->schedule, role, &tenants));
        *live_units = tenants.most_live > *live_units ? tenants.most_live : *live_units;
        bp_tenants_finish(&tenants);
    }
    return BP_OK;
}

/* The step in which the last of the requests that set the bound comes in first. */
static uint32_t witness_step(const bp_assembly *a, const bp_scheduled_pool *pool)
{
    uint32_t step = 0;
    for (size_t i = 0; i < pool->witness_count; i++) {
        size_t count;
        const bp_interval *intervals = bp_schedule_intervals(a->schedule, pool->witness[i], &count);
        step = count > 0 && intervals[0].begin > step ? intervals[0].begin : step;
    }
    return step;
}

/* The bound is what is live in one step, or, where overlap windows add conflicts, a larger set of requests in conflict. */
static bp_status plan_scheduled_find_bound(bp_assembly *a, const bp_scheduled_pool *pool, bp_plan_role *role)
{
    bp_bound live;
    BP_TRY(bp_bound_of(a->buckets, a->schedule, role->roles, a->config->alignment, NULL, NULL, &live));
    role->lower_bound_bytes = pool->result.bound;
    role->lower_bound_step = live.step;
    if (live.bytes == pool->result.bound)
        return bp_add_witnesses(a, role);
    role->lower_bound_step = witness_step(a, pool);
    for (size_t i = 0; i < pool->witness_count; i++)
        BP_TRY(bp_add_witness(a->plan, pool->witness[i]));
    return BP_OK;
}

static bp_status add_pool(bp_assembly *a, uint32_t roles, const bp_scheduled_pool *pool)
{
    bool joint = (roles & (roles - 1)) != 0;
    uint32_t first = (uint32_t)__builtin_ctz(roles);
    const bp_role_ranges begin = {a->plan->buffer_count, a->plan->witness_count};
    bp_plan_role role = {.role = first,
                         .roles = roles,
                         .bytes = pool->result.bytes,
                         .pool_bytes = pool->result.bytes,
                         .proven_bytes = pool->result.proven,
                         .optimal = pool->result.optimal != 0,
                         .method = pool->result.method};
    BP_TRY(count_live_units(a, roles, &role.live_units));
    BP_TRY(plan_scheduled_find_bound(a, pool, &role));
    for (size_t i = 0; i < pool->count; i++)
        bp_place_request(a->plan, pool->requests[i], pool->offsets[i]);
    if (pool->count > 0)
        BP_TRY(bp_add_slab(a->plan, joint ? JOINT_GROUP : bp_role_name((bp_role)first), pool->result.bytes));
    return bp_add_role(a->plan, &role, begin);
}

static bp_status assemble_pool(bp_assembly *a, uint32_t roles)
{
    bp_scheduled_pool pool;
    BP_TRY(bp_scheduled_pool_init(a->buckets, a->schedule, a->config, roles, &pool));
    bp_status status = add_pool(a, roles, &pool);
    bp_scheduled_pool_finish(&pool);
    return status;
}

bp_status bp_assemble_scheduled(bp_assembly *a, uint32_t roles)
{
    if (a->config->joint)
        return roles != 0 ? assemble_pool(a, roles) : BP_OK;
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (roles & BP_ROLE_BIT(role))
            BP_TRY(assemble_pool(a, BP_ROLE_BIT(role)));
    }
    return BP_OK;
}
