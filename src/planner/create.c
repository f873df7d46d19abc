/* SPDX-License-Identifier: Apache-2.0 */
/* Assembles a plan: asks the policy role by role, lays the classes out in the role's slab, and works out bytes, bounds and
 * witnesses. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "planner/plan.h"
#include "planner/policy.h"

typedef struct bp_assembly {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan_config *config;
    bp_plan *plan;
    bp_place *places; /* by request */
} bp_assembly;

/* ---- classes and bytes ------------------------------------------------------------------------------------------- */

static const bp_plan_config defaults = {
    .size = sizeof defaults, .policy = BP_POLICY_SCHEDULED, .fallback = BP_FALLBACK_PERSISTENT, .alignment = 256};

bp_status bp_plan_config_init(bp_plan_config *config, size_t size)
{
    return bp_struct_init("bp_plan_config_init", config, size, &defaults, sizeof defaults);
}

static const struct {
    const char *name;
    bp_policy_function *decide; /* NULL: roles other than state are packed instead of getting classes */
    bp_policy policy;
    bool stable; /* every request has one address, unless something falls back to dynamic */
} policies[] = {
    {"dynamic", bp_policy_dynamic, BP_POLICY_DYNAMIC, false},
    {"fixed", bp_policy_fixed, BP_POLICY_FIXED, true},
    {"max", bp_policy_max, BP_POLICY_MAX, true},
    {"scheduled", NULL, BP_POLICY_SCHEDULED, true},
};
#define POLICY_COUNT (sizeof policies / sizeof *policies)

const char *bp_policy_name(bp_policy policy)
{
    for (size_t i = 0; i < POLICY_COUNT; i++) {
        if (policies[i].policy == policy)
            return policies[i].name;
    }
    return "invalid";
}

bp_status bp_policy_parse(const char *name, bp_policy *policy)
{
    for (size_t i = 0; name != NULL && policy != NULL && i < POLICY_COUNT; i++) {
        if (strcmp(policies[i].name, name) == 0) {
            *policy = policies[i].policy;
            return BP_OK;
        }
    }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown policy \"%.40s\"; known: dynamic, fixed, max, scheduled",
                   name != NULL ? name : "");
}

static bp_status fail_role(uint32_t role)
{
    return bp_fail(BP_ERR_OVERFLOW, "the buffers of role %s do not fit 64 bits", bp_role_name((bp_role)role));
}

/* Lays out the copies of the shared classes set by set, then the persistent classes. Sets the classes' offsets and the role's sums, and
 * adds the buffers to the plan's report. */
static bp_status plan_create_lay_out(bp_plan *plan, bp_role_layout *layout, bp_plan_role *role)
{
    uint64_t stride = 0, at = 0;
    for (size_t i = 0; i < layout->class_count; i++) {
        if (layout->classes[i].kind == BP_BUFFER_POOLED && !bp_add_u64(stride, layout->classes[i].bytes, &stride))
            return fail_role(role->role);
    }
    if (!bp_mul_u64(stride, layout->copies, &role->pool_bytes))
        return fail_role(role->role);
    layout->stride = stride;
    uint64_t persistent = role->pool_bytes;
    for (size_t i = 0; i < layout->class_count; i++) {
        bp_class *c = &layout->classes[i];
        uint64_t *cursor = c->kind == BP_BUFFER_POOLED ? &at : &persistent;
        c->offset = *cursor;
        if (!bp_add_u64(*cursor, c->bytes, cursor))
            return fail_role(role->role);
        BP_TRY(
            bp_grow_array((void **)&plan->buffers, &plan->buffer_capacity, plan->buffer_count, sizeof *plan->buffers));
        plan->buffers[plan->buffer_count++] = (bp_plan_buffer){.kind = (bp_buffer_kind)c->kind,
                                                               .dtype = (bp_dtype)c->dtype,
                                                               .rank = c->rank,
                                                               .copies = c->copies,
                                                               .bytes = c->bytes,
                                                               .set_by = c->set_by,
                                                               .users = c->users};
    }
    role->persistent_bytes = persistent - role->pool_bytes;
    return BP_OK;
}

/* Adds a slab with release group `group`. */
static bp_status add_slab(bp_plan *plan, const char *group, uint64_t bytes)
{
    BP_TRY(bp_grow_array((void **)&plan->slabs, &plan->slab_capacity, plan->slab_count, sizeof *plan->slabs));
    bp_plan_slab *slab = &plan->slabs[plan->slab_count];
    *slab = (bp_plan_slab){.bytes = bytes};
    BP_TRY(bp_strings_add(&plan->strings, group, &slab->group));
    plan->slab_count++;
    return BP_OK;
}

/* Places the request in the slab that is added next. */
static void place_request(bp_plan *plan, uint32_t request, uint64_t offset)
{
    bp_plan_request *r = &plan->requests[request];
    r->placement = BP_PLACE_PLANNED;
    r->slab = (uint32_t)plan->slab_count;
    r->offset = offset;
}

/* Adds the role's slab, its requests' addresses, and the classes from which a runtime may choose copies. */
static bp_status assign(bp_assembly *a, const bp_role_layout *layout, const bp_plan_role *role)
{
    bp_plan *plan = a->plan;
    for (uint32_t r = 0; r < plan->request_count; r++) {
        if (plan->requests[r].role != role->role || plan->requests[r].bytes == 0 ||
            a->places[r].class_index == BP_NO_CLASS)
            continue;
        const bp_class *c = &layout->classes[a->places[r].class_index];
        uint64_t stride = c->kind == BP_BUFFER_POOLED ? layout->stride : 0;
        place_request(plan, r, c->offset + a->places[r].copy * stride);
    }
    for (size_t i = 0; i < layout->class_count; i++) {
        const bp_class *c = &layout->classes[i];
        if (c->kind != BP_BUFFER_POOLED || c->copies == 0)
            continue;
        BP_TRY(bp_grow_array((void **)&plan->classes, &plan->class_capacity, plan->class_count, sizeof *plan->classes));
        plan->classes[plan->class_count++] = (bp_plan_class){.slab = (uint32_t)plan->slab_count,
                                                             .dtype = (bp_dtype)c->dtype,
                                                             .copies = c->copies,
                                                             .offset = c->offset,
                                                             .stride = layout->stride,
                                                             .bytes = c->bytes};
    }
    return add_slab(plan, bp_role_name((bp_role)role->role), role->pool_bytes + role->persistent_bytes);
}

/* Appends a witness of the role that is added next. */
static bp_status add_witness(bp_plan *plan, uint32_t request)
{
    BP_TRY(bp_grow_array((void **)&plan->witnesses, &plan->witness_capacity, plan->witness_count,
                         sizeof *plan->witnesses));
    plan->witnesses[plan->witness_count++] = request;
    return BP_OK;
}

/* Adds the requests that are live in the step that sets the role's lower bound. */
static bp_status bp_add_witnesses(bp_assembly *a, const bp_plan_role *role)
{
    for (size_t i = 0; i < a->schedule->span_count; i++) {
        const bp_span *span = &a->schedule->spans[i];
        if (!(role->roles & BP_ROLE_BIT(a->buckets->requests[span->first_request].role)) ||
            !bp_span_is_live(a->schedule, span, role->lower_bound_step))
            continue;
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++)
            BP_TRY(add_witness(a->plan, r));
    }
    return BP_OK;
}

/* Adds a role with the plan's buffers and witnesses from `begin` on, and adds its sums to the plan's totals. */
static bp_status bp_add_role(bp_plan *plan, bp_plan_role *role, bp_role_ranges begin)
{
    if (!bp_add_u64(plan->info.bytes, role->bytes, &plan->info.bytes) ||
        !bp_add_u64(plan->info.lower_bound_bytes, role->lower_bound_bytes, &plan->info.lower_bound_bytes))
        return fail_role(role->role);
    role->buffer_count = plan->buffer_count - begin.first_buffer;
    role->witness_count = plan->witness_count - begin.first_witness;
    BP_TRY(bp_grow_array((void **)&plan->roles, &plan->role_capacity, plan->role_count, sizeof *plan->roles));
    BP_TRY(bp_grow_array((void **)&plan->ranges, &plan->range_capacity, plan->role_count, sizeof *plan->ranges));
    plan->ranges[plan->role_count] = begin;
    plan->roles[plan->role_count++] = *role;
    return BP_OK;
}

static bp_status plan_role(bp_assembly *a, uint32_t role_id, bp_policy_function *decide, bp_live_units *units,
                           bp_role_layout *layout)
{
    bp_plan *plan = a->plan;
    bp_policy_input input = {a->buckets, a->schedule, a->config, units};
    BP_TRY(bp_live_units_init(a->buckets, a->schedule, role_id, units));
    layout->places = a->places;
    BP_TRY(decide(&input, layout));
    const bp_role_ranges begin = {plan->buffer_count, plan->witness_count};
    bp_plan_role role = {.role = role_id,
                         .roles = BP_ROLE_BIT(role_id),
                         .copies = layout->copies,
                         .live_units = units->max_live,
                         .method = ""};
    bp_bound bound, dynamic;
    BP_TRY(bp_bound_of(a->buckets, a->schedule, role.roles, a->config->alignment, NULL, &bound));
    BP_TRY(bp_bound_of(a->buckets, a->schedule, role.roles, a->config->alignment, a->places, &dynamic));
    role.lower_bound_bytes = role.proven_bytes = bound.bytes;
    role.lower_bound_step = bound.step;
    role.dynamic_bytes = dynamic.bytes;
    BP_TRY(plan_create_lay_out(plan, layout, &role));
    if (!bp_add_u64(role.pool_bytes, role.persistent_bytes, &role.bytes) ||
        !bp_add_u64(role.bytes, dynamic.bytes, &role.bytes))
        return fail_role(role_id);
    role.optimal = layout->feasible && role.bytes == bound.bytes;
    if (dynamic.bytes > 0)
        plan->info.stable = 0;
    if (layout->feasible && layout->class_count > 0)
        BP_TRY(assign(a, layout, &role));
    BP_TRY(bp_add_witnesses(a, &role));
    plan->info.copies = layout->copies > plan->info.copies ? layout->copies : plan->info.copies;
    if (!layout->feasible && plan->info.feasible) { /* the reason for the first role that does not fit */
        char text[256];
        const char *why = layout->live_units > layout->copies ? ""
                          : layout->proven                    ? ", and no assignment keeps every unit at one address"
                                                              : ", and the search for an assignment ran out of budget";
        snprintf(text, sizeof text,
                 "%u buffer set%s too few for role %s: %u units that share buffers are live at once in step %u%s",
                 layout->copies, layout->copies == 1 ? " is" : "s are", bp_role_name((bp_role)role_id),
                 layout->live_units, layout->live_step, why);
        plan->info.feasible = 0;
        BP_TRY(bp_strings_add(&plan->strings, text, &plan->info.infeasible_because));
    }
    return bp_add_role(plan, &role, begin);
}

/* Replaces a name of the buckets by a copy in the plan; consecutive equal names share a copy. */
static bp_status keep_name(bp_plan *plan, const char **name, const char **newest, const char **newest_copy)
{
    if (*name == NULL)
        return BP_OK;
    if (*name != *newest) {
        *newest = *name;
        BP_TRY(bp_strings_add(&plan->strings, *name, newest_copy));
    }
    *name = *newest_copy;
    return BP_OK;
}

/* Adds all requests, without memory. */
static bp_status plan_create_add_requests(bp_assembly *a)
{
    bp_plan *plan = a->plan;
    size_t count = a->buckets->request_count;
    BP_TRY(bp_new_array(count, sizeof *a->places, (void **)&a->places));
    BP_TRY(bp_new_array(count, sizeof *plan->requests, (void **)&plan->requests));
    plan->request_count = count;
    const char *unit = NULL, *unit_copy = NULL, *bucket = NULL, *bucket_copy = NULL;
    for (size_t i = 0; i < count; i++) {
        const bp_request *request = &a->buckets->requests[i];
        const bp_bucket *b = &a->buckets->buckets[request->bucket];
        bp_plan_request *r = &plan->requests[i];
        *r = (bp_plan_request){.unit = a->buckets->units[b->unit].name,
                               .bucket = b->name,
                               .ordinal = b->ordinal,
                               .role = request->role,
                               .dtype = (bp_dtype)request->dtype,
                               .bytes = request->bytes};
        BP_TRY(keep_name(plan, &r->unit, &unit, &unit_copy));
        BP_TRY(keep_name(plan, &r->bucket, &bucket, &bucket_copy));
        BP_TRY(bp_dtype_bytes(r->dtype, request->numel, &r->used_bytes));
        r->used_bytes = r->used_bytes < r->bytes ? r->used_bytes : r->bytes;
        a->places[i] = (bp_place){BP_NO_CLASS, 0};
    }
    return bp_plan_set_model(plan, a->buckets->model);
}

/* ---- scheduled --------------------------------------------------------------------------------------------------- */

#define JOINT_GROUP "joint"

/* Adds a role entry and a slab for the pool of `roles`. The lower bound is the peak live bytes or, with overlap windows, a larger clique of
 * conflicts. */
static bp_status add_pool(bp_assembly *a, uint32_t roles, const bp_scheduled_pool *pool)
{
    bool joint = (roles & (roles - 1)) != 0;
    uint32_t first = (uint32_t)__builtin_ctz(roles);
    const bp_role_ranges begin = {a->plan->buffer_count, a->plan->witness_count};
    bp_plan_role role = {.role = first,
                         .roles = roles,
                         .bytes = pool->result.bytes,
                         .pool_bytes = pool->result.bytes,
                         .lower_bound_bytes = pool->result.bound,
                         .proven_bytes = pool->result.proven,
                         .optimal = pool->result.optimal != 0,
                         .method = pool->result.method};
    for (uint32_t id = first; id < BP_ROLE_COUNT; id++) {
        if (!(roles & BP_ROLE_BIT(id)))
            continue;
        bp_live_units units = {0};
        BP_TRY(bp_live_units_init(a->buckets, a->schedule, id, &units));
        role.live_units = units.max_live > role.live_units ? units.max_live : role.live_units;
        bp_live_units_finish(&units);
    }

    bp_bound live;
    BP_TRY(bp_bound_of(a->buckets, a->schedule, roles, a->config->alignment, NULL, &live));
    bool of_step = live.bytes == pool->result.bound;
    role.lower_bound_step = of_step ? live.step : 0;
    for (size_t i = 0; i < pool->witness_count && !of_step; i++) {
        size_t count; /* the step in which the last witness becomes live */
        const bp_interval *intervals = bp_schedule_intervals(a->schedule, pool->witness[i], &count);
        if (count > 0 && intervals[0].begin > role.lower_bound_step)
            role.lower_bound_step = intervals[0].begin;
        BP_TRY(add_witness(a->plan, pool->witness[i]));
    }
    if (of_step)
        BP_TRY(bp_add_witnesses(a, &role));

    for (size_t i = 0; i < pool->count; i++)
        place_request(a->plan, pool->requests[i], pool->offsets[i]);
    if (pool->count > 0)
        BP_TRY(add_slab(a->plan, joint ? JOINT_GROUP : bp_role_name((bp_role)first), pool->result.bytes));
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

/* ---- assembly ---------------------------------------------------------------------------------------------------- */

static bp_status assemble(bp_assembly *a, bp_policy_function *decide)
{
    bp_plan *plan = a->plan;
    BP_TRY(plan_create_add_requests(a));
    uint32_t present = 0;
    for (size_t g = 0; g < a->buckets->group_count; g++)
        present |= BP_ROLE_BIT(a->buckets->groups[g].role);
    uint32_t packed = decide == NULL ? present & ~BP_ROLES_STATE : 0;
    if (a->config->joint && packed != 0)
        BP_TRY(assemble_pool(a, packed));
    for (uint32_t role = 0; role < BP_ROLE_COUNT && !a->config->joint; role++) {
        if (packed & BP_ROLE_BIT(role))
            BP_TRY(assemble_pool(a, BP_ROLE_BIT(role)));
    }
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (!(present & ~packed & BP_ROLE_BIT(role)))
            continue;
        bp_live_units units = {0};
        bp_role_layout layout = {0};
        bool persistent = decide == NULL || ((BP_ROLES_STATE & BP_ROLE_BIT(role)) && decide != bp_policy_dynamic);
        bp_status status = plan_role(a, role, persistent ? bp_policy_persistent : decide, &units, &layout);
        bp_live_units_finish(&units);
        free(layout.classes);
        BP_TRY(status);
    }
    if (!plan->info.feasible) { /* no request has memory */
        plan->info.stable = 0;
        plan->slab_count = 0;
        plan->class_count = 0;
    }
    for (size_t i = 0; i < plan->request_count && !plan->info.feasible; i++) {
        bp_plan_request *r = &plan->requests[i];
        r->placement = BP_PLACE_NONE;
        r->slab = 0;
        r->offset = 0;
    }
    /* live requests without an address are dynamic */
    for (size_t s = 0; s < a->schedule->span_count && plan->info.feasible; s++) {
        const bp_span *span = &a->schedule->spans[s];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            bp_plan_request *request = &plan->requests[r];
            if (span->interval_count > 0 && request->bytes > 0 && request->placement == BP_PLACE_NONE)
                request->placement = BP_PLACE_DYNAMIC;
        }
    }
    plan->info.optimal = plan->info.feasible;
    for (size_t r = 0; r < plan->role_count; r++)
        plan->info.optimal = plan->info.optimal && plan->roles[r].optimal;
    bp_plan_publish(plan);
    return bp_plan_make_table(plan);
}

static bp_status fail_empty(const bp_buckets *buckets)
{
    bool single = true;
    for (size_t i = 0; i < buckets->bucket_count; i++)
        single = single && buckets->buckets[i].shards == 1 && buckets->buckets[i].parameter_count > 0;
    if (single)
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "model \"%s\": groups of one rank communicate nothing, so there is nothing to plan; plan for more "
            "ranks",
            buckets->model);
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" has no requests in the selected roles; select others",
                   buckets->model);
}

bp_status bp_plan_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                         bp_plan **plan)
{
    if (buckets == NULL || schedule == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_create: needs buckets, a schedule and an output");
    bp_plan_config full = defaults;
    BP_TRY(bp_struct_read("bp_plan_create", config, true, &full, sizeof full));
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the schedule was made for %zu requests, these buckets have %zu",
                       schedule->request_count, buckets->request_count);
    if (buckets->request_count == 0)
        return fail_empty(buckets);
    if (full.alignment == 0 || (full.alignment & (full.alignment - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "alignment %llu: expected a power of two",
                       (unsigned long long)full.alignment);
    if (full.fallback != BP_FALLBACK_PERSISTENT && full.fallback != BP_FALLBACK_DYNAMIC)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown fallback %d", (int)full.fallback);
    size_t p = 0;
    while (p < POLICY_COUNT && policies[p].policy != full.policy)
        p++;
    if (p == POLICY_COUNT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown policy %d", (int)full.policy);
    bp_assembly a = {.buckets = buckets, .schedule = schedule, .config = &full};
    BP_TRY(bp_plan_new(&a.plan));
    a.plan->info.policy = full.policy;
    a.plan->info.alignment = full.alignment;
    a.plan->info.feasible = 1;
    a.plan->info.stable = policies[p].stable;
    bp_status status = assemble(&a, policies[p].decide);
    free(a.places);
    if (status != BP_OK) {
        bp_plan_destroy(&a.plan);
        return status;
    }
    *plan = a.plan;
    return BP_OK;
}
