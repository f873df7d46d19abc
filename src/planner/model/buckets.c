/* SPDX-License-Identifier: Apache-2.0 */
/* Creates buckets and their memory requests by role, and merges the buckets of several models that share a pool. */
#include "planner/model/buckets.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- given buckets, order of buckets ----------------------------------------------------------------------------- */

/* Appends the buckets that the model gives, then sorts all by unit. */
static bp_status buckets_take_given(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_new_array(model->unit_count + 1, sizeof(uint32_t), &memory));
    uint32_t *ordinals = memory;
    bp_status status = BP_OK;
    for (size_t i = 0; i < buckets->bucket_count; i++) /* made from parameters */
        ordinals[buckets->buckets[i].unit >= 0 ? (size_t)buckets->buckets[i].unit : model->unit_count]++;
    for (size_t i = 0; status == BP_OK && i < model->bucket_count; i++) {
        const bp_given_bucket *given = model->buckets[i];
        uint32_t shards = given->expert ? config->dp / config->ep : config->dp;
        uint64_t padded = given->padded_numel != 0 ? given->padded_numel : given->numel, step;
        char text[24];
        uint32_t *ordinal = &ordinals[given->unit >= 0 ? (size_t)given->unit : model->unit_count];
        /* rows are unknown, so the other rules make equal shards */
        uint64_t each = config->padding == BP_PADDING_FLAT ? config->flat_alignment : 1;
        if (given->padded_numel == 0 && config->padding != BP_PADDING_GIVEN &&
            (!bp_mul_u64(each, shards, &step) || !bp_round_up_u64(given->numel, step, &padded)))
            status = bp_fail(BP_ERR_OVERFLOW, "the padded size of bucket %s does not fit 64 bits",
                             bp_bucket_label(given->name, *ordinal, text));
        if (status == BP_OK && (given->roles & ~(BP_ROLE_BIT(BP_ROLE_COUNT) - 1)) != 0)
            status = bp_fail(BP_ERR_UNSUPPORTED, "bucket %s: roles 0x%x: buckets with runtime roles cannot be planned",
                             bp_bucket_label(given->name, *ordinal, text), given->roles);
        bp_bucket bucket = {.unit = given->unit,
                            .ordinal = (*ordinal)++,
                            .numel = given->numel,
                            .padded_numel = padded,
                            .grad_numel = given->numel,
                            .grad_padded_numel = padded,
                            .shards = shards,
                            .roles = given->roles != 0 ? given->roles : ~0u,
                            .dtype = given->dtype,
                            .grad_dtype = bp_gradient_dtype(config, given->dtype),
                            .expert = given->expert != 0,
                            .frozen = given->frozen != 0 || !bp_dtype_is_float(given->dtype)};
        if (status == BP_OK && given->name != NULL)
            status = bp_strings_add(&buckets->strings, given->name, &bucket.name);
        if (status == BP_OK)
            status = bp_buckets_append(buckets, &bucket);
    }
    free(ordinals);
    return status;
}

/* Stable sort by unit, buckets of persistent parameters last: the order that the rest of the library expects. */
static bp_status buckets_order_by_unit(bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_new_array(buckets->unit_count + 2, sizeof(size_t), &memory));
    size_t *starts = memory;
    bp_status status = bp_new_array(buckets->bucket_count, sizeof *buckets->buckets, &memory);
    if (status != BP_OK) {
        free(starts);
        return status;
    }
    bp_bucket *sorted = memory;
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        int32_t unit = buckets->buckets[i].unit;
        starts[(unit >= 0 ? (size_t)unit : buckets->unit_count) + 1]++;
    }
    for (size_t u = 1; u < buckets->unit_count + 2; u++)
        starts[u] += starts[u - 1];
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        int32_t unit = buckets->buckets[i].unit;
        sorted[starts[unit >= 0 ? (size_t)unit : buckets->unit_count]++] = buckets->buckets[i];
    }
    free(buckets->buckets);
    free(starts);
    buckets->buckets = sorted;
    buckets->bucket_capacity = buckets->bucket_count;
    return BP_OK;
}

/* ---- roles and requests ------------------------------------------------------------------------------------------ */

const char *bp_role_name(bp_role role)
{
    static const char *const names[BP_ROLE_COUNT] = {"param", "param_transpose", "grad",     "grad_comm",
                                                     "state", "main_grad",       "optimizer"};
    return (unsigned)role < BP_ROLE_COUNT ? names[role] : "invalid";
}

bp_status bp_role_parse(const char *name, bp_role *role)
{
    for (unsigned i = 0; name != NULL && role != NULL && i < BP_ROLE_COUNT; i++) {
        if (strcmp(name, bp_role_name((bp_role)i)) == 0) {
            *role = (bp_role)i;
            return BP_OK;
        }
    }
    return bp_fail(
        BP_ERR_INVALID_ARGUMENT,
        "unknown role \"%.40s\"; known: param, param_transpose, grad, grad_comm, state, main_grad, optimizer",
        name != NULL ? name : "");
}

static uint64_t ceil_divide(uint64_t value, uint64_t by)
{
    return value / by + (value % by != 0);
}

/* Request for the shard of the trained parameters in role main_grad or optimizer. It has as many elements as the gradients, also where
 * parameters are packed as bytes; 0 bytes if every parameter is frozen. */
static bp_status trained_shard(const bp_bucket *b, const bp_buckets_config *config, uint32_t role, bp_request *request)
{
    bool optimizer = role == BP_ROLE_OPTIMIZER;
    bp_dtype dtype = optimizer ? config->optimizer_dtype : config->main_grad_dtype;
    uint64_t tensors = optimizer ? config->optimizer_tensors : 1, each;
    dtype = dtype != BP_DTYPE_NONE ? dtype : BP_DTYPE_FP32;
    request->role = role;
    request->dtype = bp_dtype_storage(dtype);
    request->numel = b->frozen ? 0 : b->grad_numel;
    request->bytes = 0;
    if (request->numel == 0)
        return BP_OK;
    BP_TRY(bp_dtype_bytes(dtype, ceil_divide(b->grad_padded_numel, b->shards), &each));
    if (!bp_mul_u64(each, tensors, &request->bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%llu optimizer tensors of %llu bytes each do not fit 64 bits",
                       (unsigned long long)tensors, (unsigned long long)each);
    return BP_OK;
}

/* One rank communicates nothing: its shard is the parameter. Runtimes list given buckets because they allocate them. */
static bool is_communicated(const bp_bucket *b, const bp_buckets_config *config)
{
    return b->shards > 1 || b->parameter_count == 0 || config->single_rank;
}

/* The request of a bucket in a role; false if the bucket does not have the role. */
static bool request_of(const bp_bucket *b, const bp_buckets_config *config, uint32_t role, bp_request *request)
{
    uint64_t padded;
    if (!(config->roles & b->roles & BP_ROLE_BIT(role)) || b->numel == 0 ||
        (!is_communicated(b, config) && !(BP_ROLES_STATE & BP_ROLE_BIT(role))))
        return false;
    switch (role) {
    case BP_ROLE_PARAM:
    case BP_ROLE_STATE:
    case BP_ROLE_PARAM_TRANSPOSE:
        /* FSDP2 gathers the same bytes in both directions */
        if (role == BP_ROLE_PARAM_TRANSPOSE && (!bp_dtype_is_fp8(b->dtype) || config->bucketing == BP_BUCKETING_FSDP2))
            return false;
        request->numel = b->numel;
        request->dtype = bp_dtype_storage(b->dtype);
        padded = role == BP_ROLE_STATE ? ceil_divide(b->padded_numel, b->shards) : b->padded_numel;
        break;
    case BP_ROLE_MAIN_GRAD:
    case BP_ROLE_OPTIMIZER: return trained_shard(b, config, role, request) == BP_OK && request->bytes > 0;
    default: /* gradients, and their reduced shard, which the collective of the outer group copies */
        if (b->frozen || b->grad_numel == 0)
            return false;
        request->numel = b->grad_numel;
        request->dtype = b->grad_dtype;
        padded = b->grad_padded_numel;
        if (role == BP_ROLE_GRAD_COMM)
            padded = ceil_divide(padded, b->shards);
    }
    request->role = role;
    return bp_dtype_bytes(request->dtype, padded, &request->bytes) == BP_OK;
}

static bp_status buckets_make_requests(bp_buckets *buckets, const bp_buckets_config *config)
{
    size_t max = 0;
    bp_request request = {0};
    for (size_t i = 0; i < buckets->bucket_count && buckets->buckets[i].unit >= 0; i++) {
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++)
            max += request_of(&buckets->buckets[i], config, role, &request);
    }
    void *memory;
    BP_TRY(bp_new_array(max, sizeof *buckets->requests, &memory));
    buckets->requests = memory;
    BP_TRY(bp_new_array(max < buckets->unit_count * BP_ROLE_COUNT ? max : buckets->unit_count * BP_ROLE_COUNT,
                        sizeof *buckets->groups, &memory));
    buckets->groups = memory;
    size_t begin = 0;
    while (begin < buckets->bucket_count && buckets->buckets[begin].unit >= 0) {
        size_t end = begin;
        while (end < buckets->bucket_count && buckets->buckets[end].unit == buckets->buckets[begin].unit)
            end++;
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
            bp_request_group g = {(uint32_t)buckets->buckets[begin].unit, role, (uint32_t)buckets->request_count, 0};
            for (size_t i = begin; i < end; i++) {
                request.bucket = (uint32_t)i;
                if (request_of(&buckets->buckets[i], config, role, &request)) {
                    buckets->requests[buckets->request_count++] = request;
                    g.count++;
                }
            }
            if (g.count > 0)
                buckets->groups[buckets->group_count++] = g;
        }
        begin = end;
    }
    return BP_OK;
}

/* ---- the object ----------------------------------------------------------------------------------------------------- */

static const bp_buckets_config defaults = {.size = sizeof defaults,
                                           .bucketing = BP_BUCKETING_MEGATRON,
                                           .padding = BP_PADDING_BY_BUCKETING,
                                           .dp = 64,
                                           .ep = 1,
                                           .flat_alignment = 128,
                                           .roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD),
                                           .optimizer_tensors = 3};

bp_status bp_buckets_config_init(bp_buckets_config *config, size_t size)
{
    return bp_struct_init("bp_buckets_config_init", config, size, &defaults, sizeof defaults);
}

const char *bp_bucket_label(const char *name, uint32_t ordinal, char text[24])
{
    if (name != NULL)
        return name;
    snprintf(text, 24, "bucket.%u", ordinal);
    return text;
}

bp_dtype bp_gradient_dtype(const bp_buckets_config *config, bp_dtype dtype)
{
    if (config->grad_comm_dtype != BP_DTYPE_NONE)
        return config->grad_comm_dtype;
    if (config->grad_dtype != BP_DTYPE_NONE)
        return config->grad_dtype;
    return bp_dtype_is_gradient(dtype) ? dtype : BP_DTYPE_BF16;
}

bp_status bp_buckets_append(bp_buckets *buckets, const bp_bucket *bucket)
{
    BP_TRY(bp_grow_array((void **)&buckets->buckets, &buckets->bucket_capacity, buckets->bucket_count,
                         sizeof *buckets->buckets));
    bp_bucket *added = &buckets->buckets[buckets->bucket_count++];
    *added = *bucket;
    if (added->frozen)
        added->grad_numel = added->grad_padded_numel = 0;
    return BP_OK;
}

/* Grouping does not check sizes in bytes: each bucket's, and the sum of the persistent parameters, must fit 64 bits. */
static bp_status buckets_check_bytes(bp_buckets *buckets, const bp_buckets_config *config)
{
    bp_request trained;
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        const bp_bucket *b = &buckets->buckets[i];
        uint64_t bytes;
        BP_TRY(bp_dtype_bytes(b->dtype, b->padded_numel, &bytes));
        if (!b->frozen && b->grad_numel > 0) {
            uint64_t grad_bytes;
            BP_TRY(bp_dtype_bytes(b->grad_dtype, b->grad_padded_numel, &grad_bytes));
        }
        if (config->roles & BP_ROLE_BIT(BP_ROLE_MAIN_GRAD))
            BP_TRY(trained_shard(b, config, BP_ROLE_MAIN_GRAD, &trained));
        if (config->roles & BP_ROLE_BIT(BP_ROLE_OPTIMIZER))
            BP_TRY(trained_shard(b, config, BP_ROLE_OPTIMIZER, &trained));
        if (b->unit < 0 && is_communicated(b, config) &&
            !bp_add_u64(buckets->persistent_bytes, bytes, &buckets->persistent_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the persistent parameters do not fit 64 bits");
    }
    return BP_OK;
}

static bp_status buckets_check_config(const bp_model *model, const bp_buckets_config *c)
{
    if (c->dp == 0 || c->ep == 0 || c->dp % c->ep != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "dp %u: expected a positive multiple of ep, which is %u", c->dp, c->ep);
    if (c->bucketing < BP_BUCKETING_MEGATRON || c->bucketing > BP_BUCKETING_GIVEN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown bucketing rule %d", (int)c->bucketing);
    if (c->padding > BP_PADDING_FSDP2_SHARD1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown padding rule %d", (int)c->padding);
    if (c->padding == BP_PADDING_FLAT && c->flat_alignment == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "flat_alignment: expected at least 1 element, got 0");
    const bp_dtype grads[] = {c->grad_dtype, c->grad_comm_dtype, c->main_grad_dtype};
    for (size_t i = 0; i < sizeof grads / sizeof *grads; i++) {
        if (grads[i] != BP_DTYPE_NONE && !bp_dtype_is_gradient(grads[i]))
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s cannot hold gradients; fp64, fp32, fp16 and bf16 can",
                           bp_dtype_name(grads[i]));
    }
    if (c->param_dtype != BP_DTYPE_NONE && !bp_dtype_is_float(c->param_dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "param_dtype: parameters cannot be converted to %s",
                       bp_dtype_name(c->param_dtype));
    if (c->optimizer_dtype != BP_DTYPE_NONE && bp_dtype_bits(c->optimizer_dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "optimizer_dtype: unknown dtype %d", (int)c->optimizer_dtype);
    if ((c->roles & ~(BP_ROLE_BIT(BP_ROLE_COUNT) - 1)) != 0 || c->roles == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "roles 0x%x: expected a mask of known roles", c->roles);
    if (model->parameter_count == 0 && model->bucket_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" is empty: it has no parameters and no buckets",
                       model->name);
    return BP_OK;
}

/* FSDP2 gathers and reduces the parameters outside units as the group of fully_shard(model). A recording says by itself what is gathered. */
static bool has_root_group(const bp_model *model, const bp_buckets_config *config)
{
    bool outside = false;
    for (size_t i = 0; i < model->parameter_count && !outside; i++)
        outside = model->parameters[i]->unit < 0;
    return outside && config->bucketing == BP_BUCKETING_FSDP2 && model->event_count == 0;
}

static bp_status copy_units(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_strings_add(&buckets->strings, model->name, &buckets->model));
    BP_TRY(bp_new_array(model->unit_count + 1, sizeof *buckets->units, &memory));
    buckets->units = memory;
    buckets->unit_count = model->unit_count;
    buckets->fsdp2 = config->bucketing == BP_BUCKETING_FSDP2;
    buckets->root = BP_OUTSIDE;
    for (size_t i = 0; i < model->unit_count; i++) {
        buckets->units[i].parent = model->units[i].parent;
        BP_TRY(bp_strings_add(&buckets->strings, model->units[i].name, &buckets->units[i].name));
    }
    if (has_root_group(model, config)) {
        for (size_t i = 0; i < model->unit_count; i++) {
            if (strcmp(model->units[i].name, BP_ROOT_GROUP) == 0)
                return bp_fail(BP_ERR_INVALID_ARGUMENT,
                               "model \"%s\" has a unit \"%s\" and parameters outside units, which are FSDP2's root "
                               "group, too; move them into that unit",
                               model->name, BP_ROOT_GROUP);
        }
        buckets->root = (int32_t)buckets->unit_count;
        buckets->units[buckets->unit_count++] = (bp_unit){BP_ROOT_GROUP, BP_OUTSIDE};
    }
    BP_TRY(bp_new_array(model->order_count, sizeof *buckets->order, &memory));
    buckets->order = memory;
    buckets->order_count = model->order_count;
    if (model->order_count > 0)
        memcpy(buckets->order, model->order, model->order_count * sizeof *buckets->order);
    return BP_OK;
}

/* Points the public info at the arrays; called last. */
static void buckets_publish(bp_buckets *buckets)
{
    buckets->info = (bp_buckets_info){.unit_count = buckets->unit_count,
                                      .units = buckets->units,
                                      .bucket_count = buckets->bucket_count,
                                      .buckets = buckets->buckets,
                                      .request_count = buckets->request_count,
                                      .requests = buckets->requests,
                                      .persistent_bytes = buckets->persistent_bytes,
                                      .root = buckets->root};
}

bp_status bp_buckets_create(const bp_model *model, const bp_buckets_config *given, bp_buckets **out)
{
    if (model == NULL || out == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_create: model and buckets must not be NULL");
    bp_buckets_config taken = defaults;
    const bp_buckets_config *config = &taken;
    BP_TRY(bp_struct_read("bp_buckets_create", given, true, &taken, sizeof taken));
    if (taken.padding == BP_PADDING_BY_BUCKETING)
        taken.padding = taken.bucketing == BP_BUCKETING_FSDP2   ? BP_PADDING_FSDP2
                        : taken.bucketing == BP_BUCKETING_GIVEN ? BP_PADDING_GIVEN
                                                                : BP_PADDING_MEGATRON_LCM;
    BP_TRY(buckets_check_config(model, config));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **out, &memory));
    bp_buckets *buckets = memory;
    bp_status status = copy_units(model, config, buckets);
    if (status == BP_OK && model->parameter_count > 0)
        status = bp_buckets_derive(model, config, buckets);
    if (status == BP_OK && model->bucket_count > 0) {
        status = buckets_take_given(model, config, buckets);
        if (status == BP_OK)
            status = buckets_order_by_unit(buckets);
    }
    if (status == BP_OK)
        status = buckets_check_bytes(buckets, config);
    if (status == BP_OK)
        status = buckets_make_requests(buckets, config);
    if (status != BP_OK) {
        bp_buckets_destroy(&buckets);
        return status;
    }
    buckets_publish(buckets);
    *out = buckets;
    return BP_OK;
}

void bp_buckets_destroy(bp_buckets **buckets)
{
    if (buckets == NULL || *buckets == NULL)
        return;
    bp_strings_finish(&(*buckets)->strings);
    free((*buckets)->units);
    free((*buckets)->order);
    free((*buckets)->buckets);
    free((*buckets)->requests);
    free((*buckets)->groups);
    free((*buckets)->parts);
    free(*buckets);
    *buckets = NULL;
}

const bp_buckets_info *bp_buckets_get_info(const bp_buckets *buckets)
{
    return buckets != NULL ? &buckets->info : NULL;
}

/* ---- merged buckets ------------------------------------------------------------------------------------------------- */

static int merged_buckets_compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Units are named "<part>/<unit>": part names without '/' keep them distinct. */
static bp_status check_names(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL || *names[i] == '\0')
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "part %zu has no name", i);
        if (strchr(names[i], '/') != NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "part \"%s\": a '/' separates the names of parts and units",
                           names[i]);
    }
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *names, &memory));
    const char **sorted = memcpy(memory, names, count * sizeof *names);
    qsort(sorted, count, sizeof *sorted, merged_buckets_compare_names);
    bp_status status = BP_OK;
    for (size_t i = 1; status == BP_OK && i < count; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status =
                bp_fail(BP_ERR_INVALID_ARGUMENT, "two parts have the name \"%s\"; give each part its name", sorted[i]);
    }
    free(sorted);
    return status;
}

/* Computes each part's range in the arrays, then allocates them. */
static bp_status merged_buckets_allocate(bp_buckets *m, const bp_buckets *const *parts, size_t count)
{
    m->part_count = count;
    BP_TRY(bp_new_array(count, sizeof *m->parts, (void **)&m->parts));
    for (size_t i = 0; i < count; i++) {
        const bp_buckets *part = parts[i];
        m->parts[i] = (bp_buckets_part){(uint32_t)m->unit_count, (uint32_t)part->unit_count, (uint32_t)m->request_count,
                                        (uint32_t)part->request_count};
        m->unit_count += part->unit_count;
        m->order_count += part->order_count;
        m->bucket_count += part->bucket_count;
        m->request_count += part->request_count;
        m->group_count += part->group_count;
        if (m->unit_count > INT32_MAX || m->bucket_count > INT32_MAX || m->request_count > INT32_MAX)
            return bp_fail(BP_ERR_OVERFLOW, "%zu parts have more than %d units, buckets or requests", i + 1, INT32_MAX);
        if (!bp_add_u64(m->persistent_bytes, part->persistent_bytes, &m->persistent_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the persistent parameters of %zu parts do not fit 64 bits", i + 1);
    }
    BP_TRY(bp_new_array(m->unit_count, sizeof *m->units, (void **)&m->units));
    BP_TRY(bp_new_array(m->order_count, sizeof *m->order, (void **)&m->order));
    BP_TRY(bp_new_array(m->bucket_count, sizeof *m->buckets, (void **)&m->buckets));
    BP_TRY(bp_new_array(m->request_count, sizeof *m->requests, (void **)&m->requests));
    return bp_new_array(m->group_count, sizeof *m->groups, (void **)&m->groups);
}

/* Copies a part's buckets that belong to units, or those of persistent parameters, which come last. `filled` is the number of buckets so
 * far. */
static bp_status add_buckets(bp_buckets *m, const bp_buckets *part, uint32_t first_unit, bool persistent,
                             size_t *filled)
{
    for (size_t i = 0; i < part->bucket_count; i++) {
        const bp_bucket *from = &part->buckets[i];
        if ((from->unit < 0) != persistent)
            continue;
        bp_bucket *bucket = &m->buckets[(*filled)++];
        *bucket = *from;
        if (!persistent)
            bucket->unit += (int32_t)first_unit;
        if (from->name != NULL)
            BP_TRY(bp_strings_add(&m->strings, from->name, &bucket->name));
    }
    return BP_OK;
}

/* Copies the units of one part as "<part>/<unit>". */
static bp_status merged_buckets_add_units(bp_buckets *m, const bp_buckets *part, const char *name, uint32_t first)
{
    for (size_t i = 0; i < part->unit_count; i++) {
        bp_unit *unit = &m->units[first + i];
        int32_t parent = part->units[i].parent;
        unit->parent = parent < 0 ? parent : parent + (int32_t)first;
        size_t bytes = strlen(name) + strlen(part->units[i].name) + 2;
        void *memory;
        BP_TRY(bp_new_array(bytes, 1, &memory));
        snprintf(memory, bytes, "%s/%s", name, part->units[i].name);
        bp_status status = bp_strings_add(&m->strings, memory, &unit->name);
        free(memory);
        BP_TRY(status);
    }
    return BP_OK;
}

static bp_status merged_buckets_fill(bp_buckets *m, const bp_buckets *const *parts, const char *const *names,
                                     size_t count)
{
    char text[128]; /* the model's name in messages */
    snprintf(text, sizeof text, "%.80s and %zu more", names[0], count - 1);
    BP_TRY(bp_strings_add(&m->strings, count == 1 ? names[0] : text, &m->model));
    size_t order = 0, buckets = 0, groups = 0;
    m->root = count == 1 ? parts[0]->root : BP_OUTSIDE;
    for (size_t i = 0; i < count; i++) {
        const bp_buckets *part = parts[i];
        const bp_buckets_part *at = &m->parts[i];
        m->fsdp2 = m->fsdp2 || part->fsdp2;
        size_t first_bucket = buckets;
        BP_TRY(merged_buckets_add_units(m, part, names[i], at->first_unit));
        for (size_t k = 0; k < part->order_count; k++)
            m->order[order++] = part->order[k] + at->first_unit;
        BP_TRY(add_buckets(m, part, at->first_unit, false, &buckets));
        for (size_t k = 0; k < part->request_count; k++) {
            bp_request *request = &m->requests[at->first_request + k];
            *request = part->requests[k];
            request->bucket += (uint32_t)first_bucket; /* buckets of units come first */
        }
        for (size_t k = 0; k < part->group_count; k++) {
            bp_request_group *group = &m->groups[groups++];
            *group = part->groups[k];
            group->unit += at->first_unit;
            group->first += at->first_request;
        }
    }
    for (size_t i = 0; i < count; i++)
        BP_TRY(add_buckets(m, parts[i], 0, true, &buckets));
    return BP_OK;
}

bp_status bp_buckets_create_merged(const bp_buckets *const *parts, const char *const *names, size_t count,
                                   bp_buckets **merged)
{
    if (parts == NULL || names == NULL || count == 0 || merged == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_create_merged: needs at least one part and its name");
    for (size_t i = 0; i < count; i++) {
        if (parts[i] == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_create_merged: part %zu is missing", i);
    }
    BP_TRY(check_names(names, count));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **merged, &memory));
    bp_buckets *m = memory;
    bp_status status = merged_buckets_allocate(m, parts, count);
    if (status == BP_OK)
        status = merged_buckets_fill(m, parts, names, count);
    if (status != BP_OK) {
        bp_buckets_destroy(&m);
        return status;
    }
    buckets_publish(m);
    *merged = m;
    return BP_OK;
}
