/* Assembles a plan: asks the policy role by role, lays the classes out in the role's slab, and works out bytes, bounds,
 * witnesses and predecessors. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "planner/assembly.h"
#include "planner/bound.h"
#include "planner/predecessors.h"

bp_status bp_plan_config_init(bp_plan_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_plan_config){
        .size = sizeof *config, .policy = BP_POLICY_MAX, .fallback = BP_FALLBACK_PERSISTENT, .alignment = 256};
    return BP_OK;
}

static const struct {
    const char *name;
    bp_policy_function *decide; /* NULL: the roles but those of state are packed, not given classes */
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

/* Copies of the shared classes one set after the other, then the persistent ones. Fills offsets and the role's sums. */
static bp_status lay_out(const bp_role_layout *layout, bp_buffer_data *buffers, bp_plan_role *info)
{
    uint64_t stride = 0, at = 0;
    for (size_t i = 0; i < layout->class_count; i++) {
        if (layout->classes[i].kind == BP_BUFFER_POOLED && !bp_add_u64(stride, layout->classes[i].bytes, &stride))
            return fail_role(info->role);
    }
    if (!bp_mul_u64(stride, layout->copies, &info->pool_bytes))
        return fail_role(info->role);
    uint64_t persistent = info->pool_bytes;
    for (size_t i = 0; i < layout->class_count; i++) {
        const bp_class *c = &layout->classes[i];
        bool pooled = c->kind == BP_BUFFER_POOLED;
        uint64_t *cursor = pooled ? &at : &persistent;
        buffers[i] = (bp_buffer_data){.bytes = c->bytes,
                                      .offset = *cursor,
                                      .stride = pooled ? stride : 0,
                                      .copies = c->copies,
                                      .rank = c->rank,
                                      .tenants = c->users,
                                      .kind = c->kind,
                                      .dtype = c->dtype};
        if (!bp_add_u64(*cursor, c->bytes, cursor))
            return fail_role(info->role);
    }
    info->persistent_bytes = persistent - info->pool_bytes;
    return BP_OK;
}

void bp_name_request(const bp_assembly *a, uint32_t request, const char **bucket, uint32_t *unit, uint32_t *ordinal)
{
    const bp_bucket_data *b = &a->buckets->buckets[a->buckets->requests[request].bucket];
    *bucket = b->name; /* copied to the plan's strings by keep_names */
    *unit = (uint32_t)b->unit;
    *ordinal = b->ordinal;
}

static bp_status add_buffers(bp_assembly *a, const bp_role_layout *layout, bp_role_data *role)
{
    bp_plan *plan = a->plan;
    size_t total = plan->buffer_count + layout->class_count;
    role->first_buffer = plan->buffer_count;
    role->info.buffers = layout->class_count;
    if (layout->class_count == 0)
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&plan->buffers, &plan->buffer_capacity, total, sizeof *plan->buffers));
    bp_buffer_data *buffers = plan->buffers + plan->buffer_count;
    BP_TRY(lay_out(layout, buffers, &role->info));
    for (size_t i = 0; i < layout->class_count; i++)
        bp_name_request(a, layout->classes[i].set_by, &buffers[i].set_by_bucket, &buffers[i].set_by_unit,
                        &buffers[i].set_by_ordinal);
    plan->buffer_count = total;
    return BP_OK;
}

/* The classes that a runtime may choose copies from. */
static bp_status add_classes(bp_plan *plan, const bp_role_data *role)
{
    for (size_t i = role->first_buffer; i < role->first_buffer + role->info.buffers; i++) {
        const bp_buffer_data *b = &plan->buffers[i];
        if (b->kind != BP_BUFFER_POOLED || b->copies == 0)
            continue;
        BP_TRY(bp_grow_array((void **)&plan->classes, &plan->class_capacity, plan->class_count, sizeof *plan->classes));
        plan->classes[plan->class_count++] = (bp_plan_class){.size = sizeof *plan->classes,
                                                             .slab = (uint32_t)plan->slab_count,
                                                             .dtype = (bp_dtype)b->dtype,
                                                             .copies = b->copies,
                                                             .offset = b->offset,
                                                             .stride = b->stride,
                                                             .bytes = b->bytes};
    }
    return BP_OK;
}

static bool is_dynamic(const void *context, uint32_t request)
{
    return ((const bp_place *)context)[request].class_index == BP_NO_CLASS;
}

bp_status bp_add_slab(bp_plan *plan, const char *group, uint64_t bytes)
{
    BP_TRY(bp_grow_array((void **)&plan->slabs, &plan->slab_capacity, plan->slab_count, sizeof *plan->slabs));
    bp_plan_slab *slab = &plan->slabs[plan->slab_count];
    *slab = (bp_plan_slab){.size = sizeof *slab, .bytes = bytes};
    BP_TRY(bp_strings_add(&plan->strings, group, &slab->group));
    plan->slab_count++;
    return BP_OK;
}

static bool has_address(const bp_assembly *a, uint32_t role, uint32_t request)
{
    return a->buckets->requests[request].role == role && a->places[request].class_index != BP_NO_CLASS;
}

/* Numbers the (class, copy) pairs that requests use, copy by copy: classes x copies may be many more. Linear in requests and classes. */
static bp_status number_slots(bp_assembly *a, size_t class_count, uint32_t role)
{
    uint32_t count = (uint32_t)a->buckets->request_count, copies = 0;
    for (uint32_t r = 0; r < count; r++) {
        if (has_address(a, role, r))
            copies = a->places[r].copy + 1 > copies ? a->places[r].copy + 1 : copies;
    }
    void *memory;
    BP_TRY(bp_new_array(copies + class_count, sizeof(uint32_t), &memory));
    uint32_t *first = memory, *slot_of_class = first + copies;
    for (uint32_t copy = 0; copy < copies; copy++)
        first[copy] = UINT32_MAX;
    for (uint32_t r = count; r-- > 0;) { /* a list for each copy, linked through the slots */
        if (has_address(a, role, r)) {
            a->slots[r] = first[a->places[r].copy];
            first[a->places[r].copy] = r;
        }
    }
    size_t begin = a->slot_count;
    for (uint32_t copy = 0; copy < copies; copy++, begin = a->slot_count) {
        for (uint32_t r = first[copy], next; r != UINT32_MAX; r = next) {
            uint32_t *slot = &slot_of_class[a->places[r].class_index];
            next = a->slots[r];
            if (*slot <= begin) /* 1 more than a slot of this copy would be */
                *slot = (uint32_t)++a->slot_count;
            a->slots[r] = *slot - 1;
        }
    }
    free(memory);
    return BP_OK;
}

/* The addresses of the role's requests, and its slab. */
static bp_status assign(bp_assembly *a, const bp_role_layout *layout, const bp_role_data *role)
{
    bp_plan *plan = a->plan;
    const bp_buffer_data *buffers = plan->buffers + role->first_buffer;
    BP_TRY(number_slots(a, layout->class_count, role->info.role));
    for (uint32_t r = 0; r < a->buckets->request_count; r++) {
        if (!has_address(a, role->info.role, r))
            continue;
        const bp_buffer_data *buffer = &buffers[a->places[r].class_index];
        bp_assignment_data *assignment = &plan->assignments[a->assignments[r]];
        assignment->offset = buffer->offset + a->places[r].copy * buffer->stride;
        assignment->slab = (uint16_t)plan->slab_count;
    }
    return bp_add_slab(plan, bp_role_name((bp_role)role->info.role),
                       role->info.pool_bytes + role->info.persistent_bytes);
}

bp_status bp_add_witness(bp_assembly *a, uint32_t request)
{
    bp_plan *plan = a->plan;
    BP_TRY(bp_grow_array((void **)&plan->witnesses, &plan->witness_capacity, plan->witness_count,
                         sizeof *plan->witnesses));
    bp_witness_data *witness = &plan->witnesses[plan->witness_count++];
    bp_round_up_u64(a->buckets->requests[request].bytes, a->config->alignment,
                    &witness->bytes); /* the bound checked it */
    bp_name_request(a, request, &witness->bucket, &witness->unit, &witness->ordinal);
    witness->role = a->buckets->requests[request].role;
    return BP_OK;
}

bp_status bp_add_witnesses(bp_assembly *a, bp_role_data *role)
{
    role->first_witness = a->plan->witness_count;
    for (size_t i = 0; i < a->schedule->span_count; i++) {
        const bp_span *span = &a->schedule->spans[i];
        if (!(role->info.roles & BP_ROLE_BIT(a->buckets->requests[span->first_request].role)) ||
            !bp_span_is_live(a->schedule, span, role->info.lower_bound_step))
            continue;
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++)
            BP_TRY(bp_add_witness(a, r));
    }
    role->witness_count = a->plan->witness_count - role->first_witness;
    return BP_OK;
}

bp_status bp_add_role(bp_plan *plan, const bp_role_data *role)
{
    if (!bp_add_u64(plan->summary.bytes, role->info.bytes, &plan->summary.bytes) ||
        !bp_add_u64(plan->summary.lower_bound_bytes, role->info.lower_bound_bytes, &plan->summary.lower_bound_bytes))
        return fail_role(role->info.role);
    BP_TRY(bp_grow_array((void **)&plan->roles, &plan->role_capacity, plan->role_count, sizeof *plan->roles));
    plan->roles[plan->role_count++] = *role;
    return BP_OK;
}

/* The plan says of the first role that does not fit why it does not. */
static bp_status note_infeasible(bp_plan *plan, uint32_t role, const bp_role_layout *layout)
{
    char text[256];
    const char *why = layout->live_units > layout->copies ? ""
                      : layout->proven                    ? ", and no assignment keeps every unit at one address"
                                                          : ", and the search for an assignment ran out of budget";
    snprintf(text, sizeof text,
             "%u buffer set%s too few for role %s: %u units that share buffers are live at once in step %u%s",
             layout->copies, layout->copies == 1 ? " is" : "s are", bp_role_name((bp_role)role), layout->live_units,
             layout->live_step, why);
    plan->summary.feasible = 0;
    return bp_strings_add(&plan->strings, text, &plan->summary.infeasible_because);
}

static bp_status plan_role(bp_assembly *a, uint32_t role_id, bp_policy_function *decide, bp_tenants *tenants,
                           bp_role_layout *layout)
{
    bp_plan *plan = a->plan;
    bp_policy_input input = {a->buckets, a->schedule, a->config, tenants};
    BP_TRY(bp_tenants_init(a->buckets, a->schedule, role_id, tenants));
    layout->places = a->places;
    BP_TRY(decide(&input, layout));
    bp_role_data role = {.info = {.size = sizeof role.info,
                                  .role = role_id,
                                  .roles = BP_ROLE_BIT(role_id),
                                  .copies = layout->copies,
                                  .method = ""}};
    role.info.live_units = tenants->most_live;
    bp_bound bound, dynamic;
    BP_TRY(bp_bound_of(a->buckets, a->schedule, role.info.roles, a->config->alignment, NULL, NULL, &bound));
    BP_TRY(
        bp_bound_of(a->buckets, a->schedule, role.info.roles, a->config->alignment, is_dynamic, a->places, &dynamic));
    role.info.lower_bound_bytes = bound.bytes;
    role.info.lower_bound_step = bound.step;
    role.info.dynamic_bytes = dynamic.bytes;
    BP_TRY(add_buffers(a, layout, &role));
    if (!bp_add_u64(role.info.pool_bytes, role.info.persistent_bytes, &role.info.bytes) ||
        !bp_add_u64(role.info.bytes, dynamic.bytes, &role.info.bytes))
        return fail_role(role_id);
    role.info.proven_bytes = bound.bytes;
    role.info.optimal = layout->feasible && role.info.bytes == bound.bytes;
    if (dynamic.bytes > 0)
        plan->summary.stable = 0;
    if (layout->feasible && layout->class_count > 0) {
        BP_TRY(add_classes(plan, &role));
        BP_TRY(assign(a, layout, &role));
    }
    BP_TRY(bp_add_witnesses(a, &role));
    plan->summary.copies = layout->copies > plan->summary.copies ? layout->copies : plan->summary.copies;
    if (!layout->feasible && plan->summary.feasible)
        BP_TRY(note_infeasible(plan, role_id, layout));
    return bp_add_role(plan, &role);
}

/* Entries for all requests that are ever live and that the policy gives an address, in the order of the requests. */
static bp_status prepare(bp_assembly *a)
{
    size_t count = a->buckets->request_count;
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *a->places, &memory));
    a->places = memory;
    BP_TRY(bp_new_array(count, sizeof *a->slots, &memory));
    a->slots = memory;
    BP_TRY(bp_new_array(count, sizeof *a->assignments, &memory));
    a->assignments = memory;
    BP_TRY(bp_new_array(count, sizeof *a->plan->assignments, &memory));
    a->plan->assignments = memory;
    a->plan->assignment_count = a->plan->assignment_capacity = count;
    for (uint32_t r = 0; r < count; r++) {
        const bp_request_data *request = &a->buckets->requests[r];
        bp_assignment_data *assignment = &a->plan->assignments[r];
        assignment->bytes = request->bytes;
        assignment->role = request->role;
        assignment->dtype = request->dtype;
        bp_name_request(a, r, &assignment->bucket, &assignment->unit, &assignment->ordinal);
        a->places[r] = (bp_place){BP_NO_CLASS, 0};
        a->slots[r] = UINT32_MAX;
        a->assignments[r] = r;
    }
    return BP_OK;
}

/* Drops requests without an address, and renumbers. */
static void compact(bp_assembly *a)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < a->buckets->request_count; r++) {
        a->assignments[r] = kept;
        if (a->slots[r] != UINT32_MAX)
            a->plan->assignments[kept++] = a->plan->assignments[r];
    }
    a->plan->assignment_count = kept;
}

/* Names so far point into the buckets: give the plan copies. Equal neighbours share one. */
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

static bp_status keep_names(bp_assembly *a)
{
    bp_plan *plan = a->plan;
    const char *newest = NULL, *copy = NULL;
    for (size_t i = 0; i < plan->assignment_count; i++)
        BP_TRY(keep_name(plan, &plan->assignments[i].bucket, &newest, &copy));
    for (size_t i = 0; i < plan->buffer_count; i++)
        BP_TRY(keep_name(plan, &plan->buffers[i].set_by_bucket, &newest, &copy));
    for (size_t i = 0; i < plan->witness_count; i++)
        BP_TRY(keep_name(plan, &plan->witnesses[i].bucket, &newest, &copy));
    void *memory;
    BP_TRY(bp_new_array(a->buckets->unit_count, sizeof *plan->units, &memory));
    plan->units = memory;
    plan->unit_count = plan->unit_capacity = a->buckets->unit_count;
    for (size_t u = 0; u < plan->unit_count; u++)
        BP_TRY(bp_strings_add(&plan->strings, a->buckets->units[u].name, &plan->units[u]));
    return bp_plan_set_model(plan, a->buckets->model);
}

static bp_status assemble(bp_assembly *a, bp_policy_function *decide)
{
    bp_plan *plan = a->plan;
    BP_TRY(prepare(a));
    uint32_t present = 0;
    for (size_t g = 0; g < a->buckets->group_count; g++)
        present |= BP_ROLE_BIT(a->buckets->groups[g].role);
    uint32_t packed = decide == NULL ? present & ~BP_ROLES_STATE : 0;
    BP_TRY(bp_assemble_scheduled(a, packed));
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (!(present & ~packed & BP_ROLE_BIT(role)))
            continue;
        bp_tenants tenants = {0};
        bp_role_layout layout = {0};
        bool persistent = decide == NULL || ((BP_ROLES_STATE & BP_ROLE_BIT(role)) && decide != bp_policy_dynamic);
        bp_status status = plan_role(a, role, persistent ? bp_policy_persistent : decide, &tenants, &layout);
        bp_tenants_finish(&tenants);
        free(layout.classes);
        BP_TRY(status);
    }
    if (!plan->summary.feasible) {
        plan->summary.stable = 0;
        plan->slab_count = 0;
        plan->class_count = 0;
        for (size_t r = 0; r < a->buckets->request_count; r++)
            a->slots[r] = UINT32_MAX;
    }
    compact(a);
    plan->summary.optimal = plan->summary.feasible;
    for (size_t r = 0; r < plan->role_count; r++)
        plan->summary.optimal = plan->summary.optimal && plan->roles[r].info.optimal;
    BP_TRY(keep_names(a));
    if (packed != 0)
        return bp_find_range_predecessors(a->schedule, a->slots, a->assignments, plan);
    return bp_find_predecessors(a->schedule, a->slots, a->slot_count, a->assignments, plan);
}

bp_status bp_plan_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                         bp_plan **plan)
{
    if (buckets == NULL || schedule == NULL || config == NULL || plan == NULL || config->size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_plan_create: needs buckets, a schedule and an initialised configuration");
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the schedule was made for %zu requests, these buckets have %zu",
                       schedule->request_count, buckets->request_count);
    if (buckets->request_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" has no requests in the roles asked for: nothing to place",
                       buckets->model);
    if (config->alignment == 0 || (config->alignment & (config->alignment - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "alignment %llu is no power of two",
                       (unsigned long long)config->alignment);
    if (config->fallback != BP_FALLBACK_PERSISTENT && config->fallback != BP_FALLBACK_DYNAMIC)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%d is no fallback", (int)config->fallback);
    size_t p = 0;
    while (p < POLICY_COUNT && policies[p].policy != config->policy)
        p++;
    if (p == POLICY_COUNT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%d is no policy", (int)config->policy);
    bp_assembly a = {.buckets = buckets, .schedule = schedule, .config = config};
    BP_TRY(bp_plan_new(&a.plan));
    a.plan->summary.policy = config->policy;
    a.plan->summary.alignment = config->alignment;
    a.plan->summary.feasible = 1;
    a.plan->summary.stable = policies[p].stable;
    a.plan->summary.infeasible_because = "";
    bp_status status = assemble(&a, policies[p].decide);
    free(a.places);
    free(a.slots);
    free(a.assignments);
    if (status != BP_OK) {
        bp_plan_destroy(&a.plan);
        return status;
    }
    *plan = a.plan;
    return BP_OK;
}
