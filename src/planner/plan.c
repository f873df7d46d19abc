/* SPDX-License-Identifier: Apache-2.0 */
/* bp_plan: contents, look-up of requests, names and options, fingerprint, creation from contents. */
#include "planner/plan.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/sha256.h"
#include "planner/model/buckets.h"

bp_status bp_plan_new(bp_plan **plan)
{
    BP_TRY(bp_new_array(1, sizeof **plan, (void **)plan));
    (*plan)->info.model = "";
    (*plan)->info.infeasible_because = "";
    return BP_OK;
}

void bp_plan_destroy(bp_plan **plan)
{
    if (plan == NULL || *plan == NULL)
        return;
    bp_plan *p = *plan;
    bp_strings_finish(&p->strings);
    free(p->requests);
    free(p->slabs);
    free(p->classes);
    free(p->roles);
    free(p->ranges);
    free(p->buffers);
    free(p->witnesses);
    free(p->options);
    bp_index_finish(&p->names);
    free(p);
    *plan = NULL;
}

void bp_plan_publish(bp_plan *plan)
{
    bp_plan_info *info = &plan->info;
    for (size_t i = 0; i < plan->role_count; i++) {
        bp_plan_role *role = &plan->roles[i];
        role->buffers = role->buffer_count > 0 ? plan->buffers + plan->ranges[i].first_buffer : NULL;
        role->witnesses = role->witness_count > 0 ? plan->witnesses + plan->ranges[i].first_witness : NULL;
    }
    info->requests = plan->requests;
    info->request_count = plan->request_count;
    info->slabs = plan->slabs;
    info->slab_count = plan->slab_count;
    info->classes = plan->classes;
    info->class_count = plan->class_count;
    info->roles = plan->roles;
    info->role_count = plan->role_count;
    info->options = plan->options;
    info->option_count = plan->option_count;
}

const bp_plan_info *bp_plan_get_info(const bp_plan *plan)
{
    return plan != NULL ? &plan->info : NULL;
}

/* ---- finding a request ---------------------------------------------------------------------------------------------- */

const char *bp_plan_describe(const bp_plan_request *request, char text[BP_PLAN_REQUEST_BYTES])
{
    char label[24];
    snprintf(text, BP_PLAN_REQUEST_BYTES, "%s of %.80s, %.60s", bp_role_name((bp_role)request->role), request->unit,
             bp_bucket_label(request->bucket, request->ordinal, label));
    return text;
}

bp_status bp_plan_fail_request(const bp_plan_info *info, size_t index, const char *what)
{
    char text[BP_PLAN_REQUEST_BYTES];
    return bp_fail(BP_ERR_MISMATCH, "request %zu (%s) %s", index, bp_plan_describe(&info->requests[index], text), what);
}

/* FNV-1a of the name, then ordinal and role. */
uint64_t bp_plan_key(const char *unit, uint32_t ordinal, uint32_t role)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *unit != '\0'; unit++)
        hash = (hash ^ (uint8_t)*unit) * 0x100000001b3u;
    hash = (hash ^ ordinal) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 29 ^ role) * 0xbf58476d1ce4e5b9u;
    return hash ^ hash >> 32;
}

static uint64_t hash_name(const char *unit, uint32_t ordinal, uint32_t role)
{
    return bp_hash_number(bp_hash(unit, strlen(unit)) ^ ((uint64_t)ordinal << 32 | role));
}

/* The request of this name, or request_count. */
static size_t find_named(const bp_plan *plan, const char *unit, uint32_t ordinal, uint32_t role,
                         bp_index_search *search)
{
    *search = bp_index_start(hash_name(unit, ordinal, role));
    for (uint32_t at = 0; bp_index_next(&plan->names, search, &at);) {
        const bp_plan_request *r = &plan->requests[at];
        if (r->ordinal == ordinal && r->role == role && strcmp(r->unit, unit) == 0)
            return at;
    }
    return plan->request_count;
}

bp_status bp_plan_make_table(bp_plan *plan)
{
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        bp_index_search search;
        char text[BP_PLAN_REQUEST_BYTES];
        if (find_named(plan, r->unit, r->ordinal, r->role, &search) < plan->request_count)
            return bp_fail(BP_ERR_MISMATCH, "request %zu (%s) occurs twice", i, bp_plan_describe(r, text));
        BP_TRY(bp_index_add(&plan->names, search.hash, (uint32_t)i));
    }
    return BP_OK;
}

static bp_status fail_find(const bp_plan *plan, const bp_plan_request *wanted, const char *what)
{
    char text[BP_PLAN_REQUEST_BYTES];
    return bp_fail(BP_ERR_MISMATCH, "plan of %.60s: %s %s", plan->info.model[0] != '\0' ? plan->info.model : "a model",
                   bp_plan_describe(wanted, text), what);
}

bp_status bp_plan_find(const bp_plan *plan, const char *unit, uint32_t ordinal, bp_role role, bp_dtype dtype,
                       uint64_t bytes, uint32_t *id)
{
    if (plan == NULL || unit == NULL || id == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_find: needs a plan, a unit and an output for the id");
    const bp_plan_request wanted = {.unit = unit, .ordinal = ordinal, .role = (uint32_t)role};
    bp_index_search search;
    size_t at = find_named(plan, unit, ordinal, (uint32_t)role, &search);
    if (at == plan->request_count)
        return fail_find(
            plan, &wanted,
            "is not in the plan; it has another model or bucketing, or lacks the role (frozen buckets have no "
            "gradients)");
    const bp_plan_request *found = &plan->requests[at];
    char what[160];
    if (dtype != BP_DTYPE_NONE && bp_dtype_storage(dtype) != found->dtype) {
        snprintf(what, sizeof what, "has dtype %s in the plan, not %s", bp_dtype_name(found->dtype),
                 bp_dtype_name(dtype));
        return fail_find(plan, found, what);
    }
    if (bytes != BP_BYTES_ANY && bytes != found->bytes) {
        snprintf(what, sizeof what, "has %llu bytes in the plan, not %llu", (unsigned long long)found->bytes,
                 (unsigned long long)bytes);
        return fail_find(plan, found, what);
    }
    if (found->placement == BP_PLACE_NONE && found->bytes > 0)
        return fail_find(plan, found,
                         plan->info.feasible ? "has no memory: the plan's schedule never uses it"
                                             : "has no memory: the plan is infeasible");
    *id = (uint32_t)at;
    return BP_OK;
}

/* ---- names and options ---------------------------------------------------------------------------------------------- */

bp_status bp_plan_set_group(bp_plan *plan, size_t slab, const char *group)
{
    if (plan == NULL || group == NULL || *group == '\0')
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_set_group: needs a plan and a name");
    if (slab >= plan->slab_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "release group \"%.40s\": slab %zu does not exist, the plan has %zu",
                       group, slab, plan->slab_count);
    return bp_strings_add(&plan->strings, group, &plan->slabs[slab].group);
}

bp_status bp_plan_set_model(bp_plan *plan, const char *name)
{
    if (plan == NULL || name == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_set_model: needs a plan and a name");
    return bp_strings_add(&plan->strings, name, &plan->info.model);
}

bp_status bp_plan_set_option(bp_plan *plan, const char *key, const char *value)
{
    if (plan == NULL || key == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_set_option: needs a plan and a key");
    size_t i = 0;
    while (i < plan->option_count && strcmp(plan->options[i].key, key) != 0)
        i++;
    if (value == NULL) {
        if (i < plan->option_count)
            memmove(plan->options + i, plan->options + i + 1, (--plan->option_count - i) * sizeof *plan->options);
        bp_plan_publish(plan);
        return BP_OK;
    }
    bp_plan_option option = {0};
    BP_TRY(bp_strings_add(&plan->strings, value, &option.value));
    if (i < plan->option_count) {
        plan->options[i].value = option.value;
        return BP_OK;
    }
    BP_TRY(bp_strings_add(&plan->strings, key, &option.key));
    BP_TRY(bp_grow_array((void **)&plan->options, &plan->option_capacity, i, sizeof *plan->options));
    plan->options[plan->option_count++] = option;
    bp_plan_publish(plan);
    return BP_OK;
}

/* ---- fingerprints ------------------------------------------------------------------------------------------------ */

/* SHA-256; docs/reference/formats.md specifies the bytes. */

/* Little-endian, so that fingerprints agree between machines. */
static void hash_number(bp_sha256 *sha, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    bp_sha256_update(sha, bytes, sizeof bytes);
}

/* Includes the terminator, so that consecutive texts stay separate. */
static void hash_text(bp_sha256 *sha, const char *text)
{
    bp_sha256_update(sha, text, strlen(text) + 1);
}

static void finish_hash(bp_sha256 *sha, char text[BP_FINGERPRINT_CHARS])
{
    uint8_t digest[32];
    bp_sha256_finish(sha, digest);
    for (int i = 0; i < 32; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

bp_status bp_plan_fingerprint(const bp_plan *plan, char fingerprint[BP_FINGERPRINT_CHARS])
{
    if (plan == NULL || fingerprint == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_fingerprint: needs a plan and a buffer of 65 characters");
    bp_sha256 sha;
    bp_sha256_init(&sha);
    hash_text(&sha, "bucketpool.plan/1");
    hash_text(&sha, bp_policy_name(plan->info.policy));
    const uint64_t head[] = {plan->info.copies, plan->info.lower_bound_bytes, (uint64_t)plan->info.optimal,
                             plan->info.alignment};
    for (size_t k = 0; k < sizeof head / sizeof *head; k++)
        hash_number(&sha, head[k]);
    hash_number(&sha, plan->slab_count);
    for (size_t i = 0; i < plan->slab_count; i++) {
        hash_text(&sha, plan->slabs[i].group);
        hash_number(&sha, plan->slabs[i].bytes);
    }
    hash_number(&sha, plan->request_count);
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        char text[24];
        hash_text(&sha, r->unit);
        hash_text(&sha, bp_bucket_label(r->bucket, r->ordinal, text));
        const uint64_t numbers[] = {r->ordinal, r->role,   r->dtype, r->placement,
                                    r->slab,    r->offset, r->bytes, r->used_bytes};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            hash_number(&sha, numbers[k]);
    }
    hash_number(&sha, plan->class_count);
    for (size_t i = 0; i < plan->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        const uint64_t numbers[] = {c->slab, c->dtype, c->copies, c->offset, c->stride, c->bytes};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            hash_number(&sha, numbers[k]);
    }
    finish_hash(&sha, fingerprint);
    return BP_OK;
}

bp_status bp_plan_checksum(const bp_plan *plan, char checksum[BP_FINGERPRINT_CHARS])
{
    char fingerprint[BP_FINGERPRINT_CHARS];
    BP_TRY(bp_plan_fingerprint(plan, fingerprint));
    bp_sha256 sha;
    bp_sha256_init(&sha);
    hash_text(&sha, fingerprint);
    hash_text(&sha, plan->info.model);
    hash_number(&sha, plan->option_count);
    for (size_t i = 0; i < plan->option_count; i++) {
        hash_text(&sha, plan->options[i].key);
        hash_text(&sha, plan->options[i].value);
    }
    finish_hash(&sha, checksum);
    return BP_OK;
}

/* ---- plans from contents -------------------------------------------------------------------------------------------- */

static bp_status check_request(const bp_plan_info *info, size_t index)
{
    const bp_plan_request *r = &info->requests[index];
    if (r->unit == NULL || bp_dtype_bits(r->dtype) == 0 || r->role >= BP_ROLE_COUNT ||
        (r->placement != BP_PLACE_NONE && r->placement != BP_PLACE_PLANNED && r->placement != BP_PLACE_DYNAMIC))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "request %zu: no unit, or unknown dtype %d, role %u or placement %d",
                       index, (int)r->dtype, r->role, (int)r->placement);
    if (r->used_bytes > r->bytes)
        return bp_plan_fail_request(info, index, "uses more bytes than it has");
    if (r->placement != BP_PLACE_PLANNED)
        return BP_OK;
    if (r->slab >= info->slab_count)
        return bp_plan_fail_request(info, index, "lies in a slab that does not exist");
    uint64_t room = info->slabs[r->slab].bytes;
    if (r->bytes == 0)
        return bp_plan_fail_request(info, index, "has an address but no bytes");
    if (r->offset > room || r->bytes > room - r->offset)
        return bp_plan_fail_request(info, index, "reaches beyond its slab");
    if (r->offset % info->alignment != 0)
        return bp_plan_fail_request(info, index, "has an offset that is not aligned");
    return BP_OK;
}

static bp_status check_class(const bp_plan_info *info, size_t index)
{
    const bp_plan_class *c = &info->classes[index];
    const char *what = NULL;
    uint64_t end;
    if (c->slab >= info->slab_count)
        what = "lies in a slab that does not exist";
    else if (c->copies == 0 || c->bytes == 0 || bp_dtype_bits(c->dtype) == 0)
        what = "has no copies, no bytes or no dtype";
    else if (c->copies > 1 && c->stride < c->bytes)
        what = "has copies that overlap";
    else if (c->offset % info->alignment != 0 || (c->copies > 1 && c->stride % info->alignment != 0))
        what = "is not aligned";
    else if (!bp_mul_u64(c->copies - 1, c->stride, &end) || !bp_add_u64(end, c->offset, &end) ||
             !bp_add_u64(end, c->bytes, &end) || end > info->slabs[c->slab].bytes)
        what = "reaches beyond its slab";
    return what == NULL ? BP_OK : bp_fail(BP_ERR_MISMATCH, "class %zu of the plan %s", index, what);
}

static bp_status check_info(const bp_plan_info *info)
{
    if (info->policy < BP_POLICY_DYNAMIC || info->policy > BP_POLICY_SCHEDULED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown policy %d", (int)info->policy);
    if (info->alignment == 0 || (info->alignment & (info->alignment - 1)) != 0)
        return bp_fail(BP_ERR_MISMATCH, "alignment %llu: expected a power of two", (unsigned long long)info->alignment);
    if (info->slab_count > UINT16_MAX || info->request_count >= UINT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%zu slabs and %zu requests; a plan has at most %d and %u",
                       info->slab_count, info->request_count, UINT16_MAX, UINT32_MAX - 1);
    for (size_t i = 0; i < info->slab_count; i++) {
        if (info->slabs[i].group == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "slab %zu has no release group", i);
    }
    for (size_t i = 0; i < info->request_count; i++)
        BP_TRY(check_request(info, i));
    for (size_t i = 0; i < info->class_count; i++)
        BP_TRY(check_class(info, i));
    return BP_OK;
}

static bp_status copy_array(const void *from, size_t count, size_t element_bytes, void **copy)
{
    BP_TRY(bp_new_array(count, element_bytes, copy));
    if (count > 0)
        memcpy(*copy, from, count * element_bytes);
    return BP_OK;
}

static bp_status plan_fill(bp_plan *plan, const bp_plan_info *info)
{
    const char *before = NULL, *copy = NULL;
    plan->info = *info;
    plan->info.model = plan->info.infeasible_because = "";
    if (info->model != NULL)
        BP_TRY(bp_strings_add(&plan->strings, info->model, &plan->info.model));
    if (info->infeasible_because != NULL)
        BP_TRY(bp_strings_add(&plan->strings, info->infeasible_because, &plan->info.infeasible_because));
    BP_TRY(copy_array(info->slabs, info->slab_count, sizeof *info->slabs, (void **)&plan->slabs));
    plan->slab_count = plan->slab_capacity = info->slab_count;
    BP_TRY(copy_array(info->classes, info->class_count, sizeof *info->classes, (void **)&plan->classes));
    plan->class_count = plan->class_capacity = info->class_count;
    BP_TRY(copy_array(info->requests, info->request_count, sizeof *info->requests, (void **)&plan->requests));
    plan->request_count = info->request_count;
    for (size_t i = 0; i < plan->request_count; i++) {
        bp_plan_request *r = &plan->requests[i];
        if (before == NULL ||
            strcmp(before, r->unit) != 0) /* consecutive requests of a unit share the copy of its name */
            BP_TRY(bp_strings_add(&plan->strings, r->unit, &copy));
        before = r->unit = copy;
        if (r->bucket != NULL)
            BP_TRY(bp_strings_add(&plan->strings, r->bucket, &r->bucket));
    }
    for (size_t i = 0; i < plan->slab_count; i++)
        BP_TRY(bp_strings_add(&plan->strings, plan->slabs[i].group, &plan->slabs[i].group));
    bp_plan_publish(plan);
    for (size_t i = 0; i < info->option_count; i++)
        BP_TRY(bp_plan_set_option(plan, info->options[i].key, info->options[i].value));
    return bp_plan_make_table(plan);
}

bp_status bp_plan_from_info(const bp_plan_info *info, bp_plan **plan)
{
    if (info == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_from_info: needs contents and an output");
    BP_TRY(check_info(info));
    bp_plan *made;
    BP_TRY(bp_plan_new(&made));
    bp_status status = plan_fill(made, info);
    if (status != BP_OK) {
        bp_plan_destroy(&made);
        return status;
    }
    *plan = made;
    return BP_OK;
}
