/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a pool's trace into a model with a recorded schedule. */
#include "run/run.h"

#include <stdio.h>
#include <stdlib.h>

#define GRADIENT_ROLES (BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLE_BIT(BP_ROLE_GRAD_COMM))
/* Roles whose buckets have only the trained elements. */
#define TRAINED_ROLES (GRADIENT_ROLES | BP_ROLE_BIT(BP_ROLE_MAIN_GRAD) | BP_ROLE_BIT(BP_ROLE_OPTIMIZER))
#define NOT_SPLIT UINT32_MAX

/* Roles of a bucket in the run. */
typedef struct used_bucket {
    uint32_t roles;
    bp_dtype grad_dtype;   /* BP_DTYPE_NONE: no gradients */
    uint32_t grad_ordinal; /* bucket of its gradients; NOT_SPLIT: the bucket itself */
} used_bucket;

typedef struct tracing {
    const bp_buckets_info *buckets;
    used_bucket *used;     /* by bucket */
    size_t *first_of_unit; /* buckets are ordered by unit */
    bp_model *model;
} tracing;

/* A given bucket has one size and dtype, so gradients that differ from their bucket (packed, partly frozen, another
 * dtype) need another one. */
static bool needs_split(const bp_bucket *b, const used_bucket *used)
{
    bool is_float = bp_dtype_is_gradient(b->dtype) || bp_dtype_storage(b->dtype) != b->dtype;
    bp_dtype unasked = bp_dtype_is_gradient(b->dtype) ? b->dtype : BP_DTYPE_BF16;
    bp_dtype asked = used->grad_dtype != BP_DTYPE_NONE ? used->grad_dtype : unasked;
    return (used->roles & TRAINED_ROLES) != 0 &&
           (!is_float || asked != unasked || b->grad_numel != b->numel || b->grad_padded_numel != b->padded_numel);
}

static bp_status add_bucket(const tracing *t, const bp_bucket *b, const used_bucket *used)
{
    bool split = used->grad_ordinal != NOT_SPLIT;
    bp_given_bucket given = {.size = sizeof given,
                             .name = b->name,
                             .unit = b->unit,
                             .dtype = b->dtype,
                             .numel = b->numel,
                             .padded_numel = b->padded_numel,
                             .expert = b->expert,
                             .frozen = b->frozen,
                             .roles = split ? used->roles & ~TRAINED_ROLES : used->roles};
    if (b->unit >= 0 && given.roles == 0) /* keeps its number, but has no events */
        given.numel = given.padded_numel = 0;
    return bp_model_add_bucket(t->model, &given);
}

/* Adds the buckets of the unit that begins at `first`, then its gradient buckets. *next: the first bucket of the
 * next unit. */
static bp_status add_unit_buckets(tracing *t, size_t first, size_t *next)
{
    const bp_bucket *buckets = t->buckets->buckets;
    size_t count = t->buckets->bucket_count, end = first;
    int32_t unit = buckets[first].unit;
    uint32_t split = 0;
    for (; end < count && buckets[end].unit == unit; end++) {
        t->used[end].grad_ordinal = needs_split(&buckets[end], &t->used[end]) ? split++ : NOT_SPLIT;
        bp_status status = add_bucket(t, &buckets[end], &t->used[end]);
        if (status != BP_OK)
            return status;
    }
    if (unit >= 0)
        t->first_of_unit[unit] = first;
    for (size_t i = first; i < end; i++) {
        if (t->used[i].grad_ordinal == NOT_SPLIT)
            continue;
        t->used[i].grad_ordinal += (uint32_t)(end - first);

        const bp_bucket *b = &buckets[i];
        const used_bucket *used = &t->used[i];
        char name[512];
        if (b->name != NULL)
            snprintf(name, sizeof name, "%s.grad", b->name);
        else
            snprintf(name, sizeof name, "bucket.%u.grad", b->ordinal);
        const bp_given_bucket given = {.size = sizeof given,
                                       .name = name,
                                       .unit = b->unit,
                                       .dtype = used->grad_dtype != BP_DTYPE_NONE ? used->grad_dtype : BP_DTYPE_FP32,
                                       .numel = b->grad_numel,
                                       .padded_numel = b->grad_padded_numel,
                                       .expert = b->expert,
                                       .roles = used->roles & TRAINED_ROLES};
        bp_status status = bp_model_add_bucket(t->model, &given);

        if (status != BP_OK)
            return status;
    }
    *next = end;
    return BP_OK;
}

static bp_status add_units(const bp_buckets_info *buckets, bp_model *model)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < buckets->unit_count; i++) {
        uint32_t unit;
        status = bp_model_add_unit(model, buckets->units[i].name, BP_OUTSIDE, &unit);
    }
    return status;
}

/* Adds an event with the bucket's number in the model. */
static bp_status add_event(const tracing *t, bp_model_event event)
{
    if (event.bucket >= 0 && (BP_ROLE_BIT(event.role) & TRAINED_ROLES)) {
        const used_bucket *used = &t->used[t->first_of_unit[event.unit] + (size_t)event.bucket];
        if (used->grad_ordinal != NOT_SPLIT)
            event.bucket = (int32_t)used->grad_ordinal;
    }
    return bp_model_add_event(t->model, &event);
}

static bp_status add_held(const tracing *t, const program *p, uint32_t acquires)
{
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < p->held_count; i++) {
        bp_request r = t->buckets->requests[p->held[i].request];
        bp_bucket b = t->buckets->buckets[r.bucket];
        status = add_event(t, (bp_model_event){sizeof(bp_model_event), acquires, b.unit, (int32_t)b.ordinal, r.role,
                                               BP_MODEL_EVENT_NO_LANE});
    }
    return status;
}

static bp_status add_events(const tracing *t, const program *p, const bp_model *recorded)
{
    bp_status status = add_held(t, p, 1);
    const bp_model_info *info = bp_model_get_info(recorded);
    for (size_t i = 0; status == BP_OK && i < info->event_count; i++)
        status = add_event(t, *info->events[i]);
    return status == BP_OK ? add_held(t, p, 0) : status;
}

static bp_status build(tracing *t, const program *p, const bp_model *recorded)
{
    for (uint32_t i = 0; i < p->requests; i++) {
        bp_request r = t->buckets->requests[i];
        t->used[r.bucket].roles |= BP_ROLE_BIT(r.role);
        if (BP_ROLE_BIT(r.role) & GRADIENT_ROLES)
            t->used[r.bucket].grad_dtype = r.dtype;
    }

    bp_status status = add_units(t->buckets, t->model);
    for (size_t i = 0; status == BP_OK && i < t->buckets->bucket_count;)
        status = add_unit_buckets(t, i, &i);
    return status == BP_OK ? add_events(t, p, recorded) : status;
}

bp_status trace_model(const char *name, const bp_buckets *buckets, const bp_pool *pool, const program *p,
                      uint64_t first_step, uint64_t last_step, bp_model **model)
{
    bp_model *recorded = NULL; /* units and events only; buckets are numbered below */
    const bp_buckets_info *info = bp_buckets_get_info(buckets);
    tracing t = {.buckets = info,
                 .used = calloc(info->bucket_count + 1, sizeof *t.used),
                 .first_of_unit = calloc(info->unit_count + 1, sizeof *t.first_of_unit)};
    bp_status status = BP_OK;
    if (t.used == NULL || t.first_of_unit == NULL)
        status = bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the trace");
    if (status == BP_OK)
        status = bp_model_create(name, &recorded);
    if (status == BP_OK)
        status = add_units(info, recorded);
    if (status == BP_OK)
        status = bp_pool_trace_to_model(pool, first_step, last_step, recorded);
    if (status == BP_OK)
        status = bp_model_create(name, &t.model);
    if (status == BP_OK)
        status = build(&t, p, recorded);
    bp_model_destroy(&recorded);
    free(t.used);
    free(t.first_of_unit);
    if (status == BP_OK)
        *model = t.model;
    else
        bp_model_destroy(&t.model);
    return status;
}
