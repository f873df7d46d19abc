/* Groups a model's parameters into buckets, pads them, and lists the requests for memory that follow. */
#include "model/buckets.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/padding.h"

bp_status bp_buckets_config_init(bp_buckets_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_buckets_config){.size = sizeof *config,
                                  .bucketing = BP_BUCKETING_MEGATRON,
                                  .padding = BP_PADDING_MEGATRON_LCM,
                                  .dp = 1,
                                  .ep = 1,
                                  .flat_alignment = 128,
                                  .roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD)};
    return BP_OK;
}

const char *bp_role_name(bp_role role)
{
    static const char *const names[BP_ROLE_COUNT] = {"param", "param_transpose", "grad", "grad_comm", "state"};
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
    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                   "unknown role \"%.40s\"; known: param, param_transpose, grad, grad_comm, state",
                   name != NULL ? name : "");
}

const char *bp_bucket_label(const char *name, uint32_t ordinal, char text[24])
{
    if (name != NULL)
        return name;
    snprintf(text, 24, "bucket.%u", ordinal);
    return text;
}

/* ---- grouping parameters ------------------------------------------------------------------------------------------- */

/* Parameters that will share a bucket, unless the padding rule splits them. */
typedef struct group {
    const bp_parameter **parameters;
    size_t count, capacity;
    int32_t unit;
    bp_dtype dtype; /* BP_DTYPE_NONE: mixed */
    bool expert, frozen;
} group;

typedef struct grouping {
    const bp_model *model;
    const bp_buckets_config *config;
    group *groups;
    size_t count, capacity;
    bp_parameter *local; /* the parameters with the dtypes asked for */
    int32_t *newest;     /* of each unit, and of outside at the end: the newest group, -1: none. Groups are chained: */
    int32_t *previous;   /* the group of the same unit before this one */
    size_t previous_capacity;
} grouping;

static bool is_float(bp_dtype dtype)
{
    return dtype >= BP_DTYPE_FP64 && dtype <= BP_DTYPE_FP4_E2M1;
}

static bool is_fp8(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP8_E4M3 || dtype == BP_DTYPE_FP8_E5M2;
}

static bp_dtype parameter_dtype(const bp_parameter *p, bp_dtype asked)
{
    if (asked == BP_DTYPE_NONE || !is_float(p->dtype))
        return p->dtype;
    return !is_fp8(asked) || p->flags & BP_PARAMETER_GEMM ? asked : p->dtype;
}

static int32_t outermost(const bp_model *model, int32_t unit)
{
    while (unit >= 0 && model->units[unit].parent >= 0)
        unit = model->units[unit].parent;
    return unit;
}

/* The unit's group that a parameter with this key belongs to, NULL when there is none yet. */
static group *find_group(const grouping *g, int32_t newest, const group *key)
{
    bool packs = g->config->bucketing == BP_BUCKETING_FSDP2;
    for (int32_t at = newest; at >= 0; at = g->previous[at]) {
        group *other = &g->groups[at];
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a unit with a newest group has groups
        if (other->expert == key->expert && (packs || (other->dtype == key->dtype && other->frozen == key->frozen)))
            return other;
    }
    return NULL;
}

static bp_status add_to_group(grouping *g, const bp_parameter *p, const group *key)
{
    int32_t *newest = &g->newest[key->unit >= 0 ? (size_t)key->unit : g->model->unit_count];
    group *mine = find_group(g, *newest, key);
    if (mine == NULL) {
        BP_TRY(bp_grow_array((void **)&g->groups, &g->capacity, g->count, sizeof *g->groups));
        BP_TRY(bp_grow_array((void **)&g->previous, &g->previous_capacity, g->count, sizeof *g->previous));
        mine = &g->groups[g->count];
        *mine = *key;
        g->previous[g->count] = *newest;
        *newest = (int32_t)g->count++;
    }
    BP_TRY(bp_grow_array((void **)&mine->parameters, &mine->capacity, mine->count, sizeof *mine->parameters));
    mine->parameters[mine->count++] = p;
    if (mine->dtype != key->dtype)
        mine->dtype = BP_DTYPE_NONE;
    mine->frozen = mine->frozen && key->frozen; /* a packed bucket has gradients as soon as one parameter has */
    return BP_OK;
}

static bp_status group_parameters(grouping *g)
{
    const bp_model *model = g->model;
    void *memory;
    BP_TRY(bp_new_array(model->parameter_count, sizeof *g->local, &memory));
    g->local = memory;
    BP_TRY(bp_new_array(model->unit_count + 1, sizeof *g->newest, &memory));
    g->newest = memset(memory, 0xff, (model->unit_count + 1) * sizeof *g->newest);
    bool packs = g->config->bucketing == BP_BUCKETING_FSDP2;
    for (size_t i = 0; i < model->parameter_count; i++) {
        bp_parameter *p = &g->local[i];
        *p = model->parameters[i];
        p->dtype = parameter_dtype(p, g->config->param_dtype);
        /* expert parameters are told by name, as Megatron does; packed buckets part only where experts are on other ranks */
        bool expert = strstr(p->name, ".experts.") != NULL && (!packs || g->config->ep > 1);
        group key = {.unit = packs ? p->unit : outermost(model, p->unit),
                     .dtype = p->dtype,
                     .expert = expert,
                     .frozen = (p->flags & BP_PARAMETER_FROZEN) != 0 || !is_float(p->dtype)};
        BP_TRY(add_to_group(g, p, &key));
    }
    return BP_OK;
}

static void finish_grouping(grouping *g)
{
    for (size_t i = 0; i < g->count; i++)
        free(g->groups[i].parameters);
    free(g->groups);
    free(g->local);
    free(g->newest);
    free(g->previous);
}

/* ---- making buckets ------------------------------------------------------------------------------------------------- */

static bp_dtype gradient_dtype(const bp_buckets_config *config, bp_dtype dtype)
{
    if (config->grad_comm_dtype != BP_DTYPE_NONE)
        return config->grad_comm_dtype;
    if (config->grad_dtype != BP_DTYPE_NONE)
        return config->grad_dtype;
    return bp_dtype_is_gradient(dtype) ? dtype : BP_DTYPE_BF16;
}

static bp_status append_bucket(bp_buckets *buckets, const bp_bucket_data *bucket)
{
    BP_TRY(bp_grow_array((void **)&buckets->buckets, &buckets->bucket_capacity, buckets->bucket_count,
                         sizeof *buckets->buckets));
    buckets->buckets[buckets->bucket_count++] = *bucket;
    return BP_OK;
}

/* "experts", and when a bucket of the unit has that name already "experts.<dtype>" or "experts.<n>". */
static bp_status name_bucket(bp_buckets *buckets, bp_bucket_data *bucket, uint32_t before)
{
    char base[32], name[64];
    snprintf(base, sizeof base, "%s%s", bucket->expert ? "experts" : "dense", bucket->frozen ? ".frozen" : "");
    snprintf(name, sizeof name, "%s", base);
    const bp_bucket_data *unit_buckets = buckets->buckets + buckets->bucket_count - before;
    for (uint32_t attempt = 0;; attempt++) {
        const bp_bucket_data *holder = NULL;
        for (uint32_t i = 0; i < before && holder == NULL; i++)
            holder = strcmp(unit_buckets[i].name, name) == 0 ? &unit_buckets[i] : NULL;
        if (holder == NULL)
            return bp_strings_add(&buckets->strings, name, &bucket->name);
        if (attempt == 0 && holder->dtype != bucket->dtype)
            snprintf(base, sizeof base, "%.20s.%s", name, bp_dtype_name((bp_dtype)bucket->dtype));
        if (attempt == 0 && holder->dtype != bucket->dtype)
            snprintf(name, sizeof name, "%s", base);
        else
            snprintf(name, sizeof name, "%s.%u", base, attempt > 0 ? attempt : 1);
    }
}

/* Sizes of a bucket that holds parameters of several dtypes as bytes. */
static bp_status size_packed(const grouping *g, const group *from, size_t count, uint32_t shards,
                             bp_bucket_data *bucket)
{
    bucket->dtype = BP_DTYPE_UINT8;
    bucket->grad_dtype = BP_DTYPE_NONE;
    for (size_t i = 0; i < count; i++) {
        const bp_parameter *p = from->parameters[i];
        uint64_t padded, bytes, padded_bytes, numel = bp_parameter_numel(p) * p->copies;
        BP_TRY(bp_padded_numel(g->config->padding, &p, 1, shards, g->config->flat_alignment, &padded));
        BP_TRY(bp_dtype_bytes(p->dtype, numel, &bytes));
        BP_TRY(bp_dtype_bytes(p->dtype, padded, &padded_bytes));
        bool has_gradient = !(p->flags & BP_PARAMETER_FROZEN) && is_float(p->dtype);
        if (has_gradient && bucket->grad_dtype == BP_DTYPE_NONE)
            bucket->grad_dtype = (uint8_t)gradient_dtype(g->config, p->dtype);
        if (!bp_add_u64(bucket->numel, bytes, &bucket->numel) ||
            !bp_add_u64(bucket->padded_numel, padded_bytes, &bucket->padded_numel) ||
            !bp_add_u64(bucket->grad_padded_numel, has_gradient ? padded : 0, &bucket->grad_padded_numel))
            return bp_fail(BP_ERR_OVERFLOW, "the bucket of parameter %s does not fit 64 bits", p->name);
        bucket->grad_numel += has_gradient ? numel : 0;
    }
    return BP_OK;
}

static bp_status size_uniform(const grouping *g, const group *from, size_t count, uint32_t shards,
                              bp_bucket_data *bucket)
{
    const bp_buckets_config *config = g->config;
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *from->parameters, &memory));
    const bp_parameter **trainable = memory;
    size_t trainable_count = 0;
    for (size_t i = 0; i < count; i++) {
        const bp_parameter *p = from->parameters[i];
        bucket->numel += bp_parameter_numel(p) * p->copies;
        if (!(p->flags & BP_PARAMETER_FROZEN)) {
            trainable[trainable_count++] = p;
            bucket->grad_numel += bp_parameter_numel(p) * p->copies;
        }
    }
    bucket->dtype = (uint8_t)from->dtype;
    bucket->grad_dtype = (uint8_t)gradient_dtype(config, from->dtype);
    bp_status status = bp_padded_numel(config->padding, from->parameters, count, shards, config->flat_alignment,
                                       &bucket->padded_numel);
    if (status == BP_OK)
        status = bp_padded_numel(config->padding, trainable, trainable_count, shards, config->flat_alignment,
                                 &bucket->grad_padded_numel);
    free(memory);
    return status;
}

/* Makes the buckets of one group; `before` counts the unit's buckets so far. */
static bp_status make_buckets(const grouping *g, group *from, bp_buckets *buckets, uint32_t *before)
{
    while (from->count > 0) {
        size_t together = from->count;
        if (g->config->padding == BP_PADDING_MEGATRON_SPLIT && from->dtype != BP_DTYPE_NONE)
            BP_TRY(bp_split_by_rows(from->parameters, from->count, &together));
        uint32_t shards = from->expert ? g->config->dp / g->config->ep : g->config->dp;
        bp_bucket_data bucket = {.unit = from->unit,
                                 .ordinal = *before,
                                 .shards = shards,
                                 .parameter_count = (uint32_t)together,
                                 .expert = from->expert,
                                 .frozen = from->frozen,
                                 .roles = ~0u};
        if (from->dtype != BP_DTYPE_NONE)
            BP_TRY(size_uniform(g, from, together, shards, &bucket));
        else
            BP_TRY(size_packed(g, from, together, shards, &bucket));
        BP_TRY(name_bucket(buckets, &bucket, *before));
        BP_TRY(append_bucket(buckets, &bucket));
        (*before)++;
        from->count -= together;
        memmove(from->parameters, from->parameters + together, from->count * sizeof *from->parameters);
    }
    return BP_OK;
}

/* Buckets of all groups, unit by unit, outside last; within a unit in the order in which the groups appeared. */
static bp_status derive_buckets(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets)
{
    grouping g = {.model = model, .config = config};
    bp_status status = group_parameters(&g);
    for (size_t u = 0; status == BP_OK && u <= model->unit_count; u++) {
        /* the chain runs from the newest to the oldest group; turn it */
        int32_t oldest = -1;
        for (int32_t at = g.newest[u]; at >= 0;) {
            int32_t next = g.previous[at];
            g.previous[at] = oldest;
            oldest = at;
            at = next;
        }
        uint32_t before = 0;
        for (int32_t at = oldest; status == BP_OK && at >= 0; at = g.previous[at])
            status = make_buckets(&g, &g.groups[at], buckets, &before);
    }
    finish_grouping(&g);
    return status;
}

/* Buckets as the model gives them. */
static bp_status take_buckets(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_new_array(model->unit_count + 1, sizeof(uint32_t), &memory));
    uint32_t *ordinals = memory;
    bp_status status = BP_OK;
    for (size_t i = 0; i < buckets->bucket_count; i++) /* made of parameters before */
        ordinals[buckets->buckets[i].unit >= 0 ? (size_t)buckets->buckets[i].unit : model->unit_count]++;
    for (size_t i = 0; status == BP_OK && i < model->bucket_count; i++) {
        const bp_given_bucket *given = &model->buckets[i];
        uint32_t shards = given->expert ? config->dp / config->ep : config->dp;
        uint64_t padded = given->padded_numel != 0 ? given->padded_numel : given->numel, step;
        char text[24];
        uint32_t *ordinal = &ordinals[given->unit >= 0 ? (size_t)given->unit : model->unit_count];
        if (given->padded_numel == 0 && config->padding == BP_PADDING_FLAT &&
            (!bp_mul_u64(config->flat_alignment, shards, &step) || !bp_round_up_u64(given->numel, step, &padded)))
            status = bp_fail(BP_ERR_OVERFLOW, "the padded size of bucket %s does not fit 64 bits",
                             bp_bucket_label(given->name, *ordinal, text));
        if (status == BP_OK && (given->roles & ~(BP_ROLE_BIT(BP_ROLE_COUNT) - 1)) != 0)
            status = bp_fail(BP_ERR_UNSUPPORTED, "bucket %s: roles 0x%x: roles of a runtime's own are not planned",
                             bp_bucket_label(given->name, *ordinal, text), given->roles);
        bp_dtype dtype =
            config->param_dtype != BP_DTYPE_NONE && is_float(given->dtype) ? config->param_dtype : given->dtype;
        bp_bucket_data bucket = {.unit = given->unit,
                                 .ordinal = (*ordinal)++,
                                 .numel = given->numel,
                                 .padded_numel = padded,
                                 .grad_numel = given->numel,
                                 .grad_padded_numel = padded,
                                 .shards = shards,
                                 .roles = given->roles != 0 ? given->roles : ~0u,
                                 .dtype = (uint8_t)dtype,
                                 .grad_dtype = (uint8_t)gradient_dtype(config, dtype),
                                 .expert = given->expert != 0,
                                 .frozen = given->frozen != 0 || !is_float(given->dtype)};
        if (status == BP_OK && given->name != NULL)
            status = bp_strings_add(&buckets->strings, given->name, &bucket.name);
        if (status == BP_OK)
            status = append_bucket(buckets, &bucket);
    }
    free(ordinals);
    return status;
}

/* Given buckets may come in any order: the rest of the library has them by unit, outside last. Stable. */
static bp_status order_by_unit(bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_new_array(buckets->unit_count + 2, sizeof(size_t), &memory));
    size_t *starts = memory;
    bp_status status = bp_new_array(buckets->bucket_count, sizeof *buckets->buckets, &memory);
    if (status != BP_OK) {
        free(starts);
        return status;
    }
    bp_bucket_data *sorted = memory;
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

/* ---- requests ------------------------------------------------------------------------------------------------------- */

static uint64_t ceil_divide(uint64_t value, uint64_t by)
{
    return value / by + (value % by != 0);
}

/* What a bucket needs in a role; false when it takes no part. */
static bool request_of(const bp_bucket_data *b, const bp_buckets_config *config, uint32_t role,
                       bp_request_data *request)
{
    uint64_t padded;
    if (!(config->roles & b->roles & BP_ROLE_BIT(role)) || b->numel == 0)
        return false;
    switch (role) {
    case BP_ROLE_PARAM:
    case BP_ROLE_STATE:
    case BP_ROLE_PARAM_TRANSPOSE:
        if (role == BP_ROLE_PARAM_TRANSPOSE && !is_fp8((bp_dtype)b->dtype))
            return false;
        request->numel = b->numel;
        request->dtype = (uint8_t)bp_dtype_storage((bp_dtype)b->dtype);
        padded = role == BP_ROLE_STATE ? ceil_divide(b->padded_numel, b->shards) : b->padded_numel;
        break;
    default: /* gradients, and the reduced shard of them that the outer reduction copies */
        if (b->frozen || b->grad_numel == 0)
            return false;
        request->numel = b->grad_numel;
        request->dtype = b->grad_dtype;
        padded = b->grad_padded_numel;
        if (role == BP_ROLE_GRAD_COMM)
            padded = ceil_divide(padded, b->shards);
    }
    request->role = (uint8_t)role;
    return bp_dtype_bytes((bp_dtype)request->dtype, padded, &request->bytes) == BP_OK;
}

static bp_status make_requests(bp_buckets *buckets, const bp_buckets_config *config)
{
    size_t most = 0;
    bp_request_data request = {0};
    for (size_t i = 0; i < buckets->bucket_count && buckets->buckets[i].unit >= 0; i++) {
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++)
            most += request_of(&buckets->buckets[i], config, role, &request);
    }
    void *memory;
    BP_TRY(bp_new_array(most, sizeof *buckets->requests, &memory));
    buckets->requests = memory;
    BP_TRY(bp_new_array(most < buckets->unit_count * BP_ROLE_COUNT ? most : buckets->unit_count * BP_ROLE_COUNT,
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

/* Sizes in bytes were not looked at while grouping: every bucket must have one, and outside parameters a sum. */
static bp_status check_bytes(bp_buckets *buckets)
{
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        const bp_bucket_data *b = &buckets->buckets[i];
        uint64_t bytes;
        BP_TRY(bp_dtype_bytes((bp_dtype)b->dtype, b->padded_numel, &bytes));
        if (!b->frozen && b->grad_numel > 0) {
            uint64_t grad_bytes;
            BP_TRY(bp_dtype_bytes((bp_dtype)b->grad_dtype, b->grad_padded_numel, &grad_bytes));
        }
        if (b->unit < 0 && !bp_add_u64(buckets->outside_bytes, bytes, &buckets->outside_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the parameters outside units do not fit 64 bits");
    }
    return BP_OK;
}

/* ---- the object ----------------------------------------------------------------------------------------------------- */

static bp_status check_config(const bp_model *model, const bp_buckets_config *c)
{
    if (c->dp == 0 || c->ep == 0 || c->dp % c->ep != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "dp %u must be a positive multiple of ep %u", c->dp, c->ep);
    if (c->bucketing < BP_BUCKETING_MEGATRON || c->bucketing > BP_BUCKETING_GIVEN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%d is no bucketing rule", (int)c->bucketing);
    if (c->padding < BP_PADDING_MEGATRON_LCM || c->padding > BP_PADDING_FSDP2)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%d is no padding rule", (int)c->padding);
    if (c->padding == BP_PADDING_FLAT && c->flat_alignment == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "flat_alignment must be at least 1 element");
    const bp_dtype grads[2] = {c->grad_dtype, c->grad_comm_dtype};
    for (int i = 0; i < 2; i++) {
        if (grads[i] != BP_DTYPE_NONE && !bp_dtype_is_gradient(grads[i]))
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s cannot hold gradients; fp64, fp32, fp16 and bf16 can",
                           bp_dtype_name(grads[i]));
    }
    if (c->param_dtype != BP_DTYPE_NONE && !is_float(c->param_dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameters cannot be turned into %s", bp_dtype_name(c->param_dtype));
    if ((c->roles & ~(BP_ROLE_BIT(BP_ROLE_COUNT) - 1)) != 0 || c->roles == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "roles 0x%x: expected a mask of known roles", c->roles);
    if (model->parameter_count == 0 && model->bucket_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" is empty: it has no parameters and no buckets",
                       model->name);
    return BP_OK;
}

static bp_status copy_units(const bp_model *model, bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_strings_add(&buckets->strings, model->name, &buckets->model));
    BP_TRY(bp_new_array(model->unit_count, sizeof *buckets->units, &memory));
    buckets->units = memory;
    buckets->unit_count = model->unit_count;
    for (size_t i = 0; i < model->unit_count; i++) {
        buckets->units[i].parent = model->units[i].parent;
        BP_TRY(bp_strings_add(&buckets->strings, model->units[i].name, &buckets->units[i].name));
    }
    BP_TRY(bp_new_array(model->order_count, sizeof *buckets->order, &memory));
    buckets->order = memory;
    buckets->order_count = model->order_count;
    if (model->order_count > 0)
        memcpy(buckets->order, model->order, model->order_count * sizeof *buckets->order);
    return BP_OK;
}

bp_status bp_buckets_create(const bp_model *model, const bp_buckets_config *config, bp_buckets **out)
{
    if (model == NULL || config == NULL || out == NULL || config->size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_create: needs a model and an initialised configuration");
    BP_TRY(check_config(model, config));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **out, &memory));
    bp_buckets *buckets = memory;
    bp_status status = copy_units(model, buckets);
    if (status == BP_OK && model->parameter_count > 0)
        status = derive_buckets(model, config, buckets);
    if (status == BP_OK && model->bucket_count > 0) {
        status = take_buckets(model, config, buckets);
        if (status == BP_OK)
            status = order_by_unit(buckets);
    }
    if (status == BP_OK)
        status = check_bytes(buckets);
    if (status == BP_OK)
        status = make_requests(buckets, config);
    if (status != BP_OK) {
        bp_buckets_destroy(&buckets);
        return status;
    }
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
    free(*buckets);
    *buckets = NULL;
}

size_t bp_buckets_count(const bp_buckets *buckets)
{
    return buckets->bucket_count;
}

bp_status bp_buckets_get(const bp_buckets *buckets, size_t index, bp_bucket *bucket)
{
    if (index >= buckets->bucket_count || bucket->size < sizeof *bucket)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bucket %zu of %zu, size %zu", index, buckets->bucket_count,
                       bucket->size);
    const bp_bucket_data *b = &buckets->buckets[index];
    *bucket = (bp_bucket){.size = sizeof *bucket,
                          .unit = b->unit,
                          .ordinal = b->ordinal,
                          .name = b->name,
                          .dtype = (bp_dtype)b->dtype,
                          .numel = b->numel,
                          .padded_numel = b->padded_numel,
                          .expert = b->expert,
                          .frozen = b->frozen,
                          .shards = b->shards,
                          .parameter_count = b->parameter_count};
    return BP_OK;
}

size_t bp_buckets_unit_count(const bp_buckets *buckets)
{
    return buckets->unit_count;
}

const char *bp_buckets_unit_name(const bp_buckets *buckets, size_t unit)
{
    return unit < buckets->unit_count ? buckets->units[unit].name : NULL;
}

uint64_t bp_buckets_outside_bytes(const bp_buckets *buckets)
{
    return buckets->outside_bytes;
}

size_t bp_buckets_request_count(const bp_buckets *buckets)
{
    return buckets->request_count;
}

bp_status bp_buckets_request(const bp_buckets *buckets, size_t index, bp_request *request)
{
    if (index >= buckets->request_count || request->size < sizeof *request)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "request %zu of %zu, size %zu", index, buckets->request_count,
                       request->size);
    const bp_request_data *r = &buckets->requests[index];
    *request = (bp_request){.size = sizeof *request,
                            .bucket = r->bucket,
                            .role = r->role,
                            .dtype = (bp_dtype)r->dtype,
                            .numel = r->numel,
                            .bytes = r->bytes};
    return BP_OK;
}
