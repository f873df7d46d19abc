/* SPDX-License-Identifier: Apache-2.0 */
/* Independent check of a plan against its buckets and schedule. Shares data structures but no arithmetic with the planner;
 * bp_packing_check, which compares the addresses, shares none with the packer. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/pack.h>

#include <stdlib.h>
#include <string.h>

#include "planner/plan.h"
#include "planner/schedule/schedule.h"

typedef struct check {
    const bp_plan_info *plan;
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    bp_packing *packing; /* an item for each request */
    uint64_t *offsets;   /* by request, with the slabs concatenated */
} check;

/* ---- requests ------------------------------------------------------------------------------------------------------- */

/* Request `index` of the plan must equal that of the buckets. */
static bp_status check_identity(const check *c, size_t index)
{
    const bp_plan_request *planned = &c->plan->requests[index];
    const bp_request *r = &c->buckets->requests[index];
    const bp_bucket *b = &c->buckets->buckets[r->bucket];
    char what[200], plan_label[24], bucket_label[24];
    const char *unit = c->buckets->units[b->unit].name, *label = bp_bucket_label(b->name, b->ordinal, bucket_label);
    if (strcmp(planned->unit, unit) != 0 || planned->ordinal != b->ordinal || planned->role != r->role ||
        strcmp(bp_bucket_label(planned->bucket, planned->ordinal, plan_label), label) != 0) {
        snprintf(what, sizeof what, "is %s of %.80s, %.60s in the buckets", bp_role_name((bp_role)r->role), unit,
                 label);
        return bp_plan_fail_request(c->plan, index, what);
    }
    if (planned->dtype != (bp_dtype)r->dtype) {
        snprintf(what, sizeof what, "has dtype %s; the buckets have %s", bp_dtype_name(planned->dtype),
                 bp_dtype_name((bp_dtype)r->dtype));
        return bp_plan_fail_request(c->plan, index, what);
    }
    if (planned->bytes != r->bytes) {
        snprintf(what, sizeof what, "has %llu bytes; the buckets have %llu", (unsigned long long)planned->bytes,
                 (unsigned long long)r->bytes);
        return bp_plan_fail_request(c->plan, index, what);
    }
    uint64_t used;
    BP_TRY(bp_dtype_bytes((bp_dtype)r->dtype, r->numel, &used));
    used = used < r->bytes ? used : r->bytes;
    if (planned->used_bytes != used) {
        snprintf(what, sizeof what, "uses %llu bytes; the buckets use %llu", (unsigned long long)planned->used_bytes,
                 (unsigned long long)used);
        return bp_plan_fail_request(c->plan, index, what);
    }
    return BP_OK;
}

static bp_status check_address(const check *c, size_t index)
{
    const bp_plan_request *r = &c->plan->requests[index];
    char what[160];
    size_t intervals;
    bp_schedule_intervals(c->schedule, index, &intervals);
    if (r->placement != BP_PLACE_PLANNED)
        return intervals == 0 || r->bytes == 0 ? BP_OK
                                               : bp_plan_fail_request(c->plan, index, "is live but has no address");
    if (r->slab >= c->plan->slab_count) {
        snprintf(what, sizeof what, "is in slab %u; the plan has %zu", r->slab, c->plan->slab_count);
        return bp_plan_fail_request(c->plan, index, what);
    }
    if (r->offset % c->plan->alignment != 0) {
        snprintf(what, sizeof what, "is at offset %llu, which is not a multiple of the alignment %llu",
                 (unsigned long long)r->offset, (unsigned long long)c->plan->alignment);
        return bp_plan_fail_request(c->plan, index, what);
    }
    uint64_t room = c->plan->slabs[r->slab].bytes;
    if (r->offset > room || r->bytes > room - r->offset) {
        snprintf(what, sizeof what, "has %llu bytes at %llu, beyond slab %u of %llu bytes",
                 (unsigned long long)r->bytes, (unsigned long long)r->offset, r->slab, (unsigned long long)room);
        return bp_plan_fail_request(c->plan, index, what);
    }
    return BP_OK;
}

/* ---- conflicts ------------------------------------------------------------------------------------------------------ */

/* Adds a packing item for each request, with the schedule's live range if the request has an address. */
static bp_status plan_check_add_items(check *c)
{
    for (size_t i = 0; i < c->plan->request_count; i++) {
        size_t count;
        const bp_interval *intervals = bp_schedule_intervals(c->schedule, i, &count);
        const bool placed = c->plan->requests[i].placement == BP_PLACE_PLANNED;
        BP_TRY(bp_packing_add_item(c->packing, c->plan->requests[i].bytes, NULL));
        for (size_t k = 0; placed && k < count; k++)
            BP_TRY(bp_packing_add_interval(c->packing, i, intervals[k].begin, intervals[k].end));
    }
    for (size_t i = 0; i < c->schedule->overlap_count; i++) {
        const bp_overlap *pair = &c->schedule->overlaps[i];
        if (c->plan->requests[pair->earlier].placement == BP_PLACE_PLANNED &&
            c->plan->requests[pair->later].placement == BP_PLACE_PLANNED)
            BP_TRY(bp_packing_add_conflict(c->packing, pair->earlier, pair->later));
    }
    return BP_OK;
}

/* Concatenates the slabs, so that one packing checks all. */
static bp_status add_offsets(check *c, uint64_t *bytes)
{
    uint64_t *first;
    BP_TRY(bp_new_array(c->plan->slab_count, sizeof(uint64_t), (void **)&first));
    bool fits = true;
    *bytes = 0;
    for (size_t s = 0; fits && s < c->plan->slab_count; s++) {
        first[s] = *bytes;
        fits = bp_add_u64(*bytes, c->plan->slabs[s].bytes, bytes);
    }
    for (size_t i = 0; fits && i < c->plan->request_count; i++) {
        const bp_plan_request *r = &c->plan->requests[i];
        c->offsets[i] = r->placement == BP_PLACE_PLANNED ? first[r->slab] + r->offset : 0;
    }
    free(first);
    return fits ? BP_OK : bp_fail(BP_ERR_MISMATCH, "the slabs of the plan do not fit 64 bits");
}

static bp_status fail_conflict(const check *c, uint32_t one, uint32_t other)
{
    char first[BP_PLAN_REQUEST_BYTES], second[BP_PLAN_REQUEST_BYTES];
    const bp_plan_request *a = &c->plan->requests[one], *b = &c->plan->requests[other];
    unsigned long long offset = a->offset > b->offset ? a->offset : b->offset;
    bp_plan_describe(a, first);
    bp_plan_describe(b, second);

    /* the first step in which both are live */
    size_t x_count, y_count, i = 0, k = 0;
    const bp_interval *x = bp_schedule_intervals(c->schedule, one, &x_count);
    const bp_interval *y = bp_schedule_intervals(c->schedule, other, &y_count);
    while (i < x_count && k < y_count) {
        uint32_t step = x[i].begin > y[k].begin ? x[i].begin : y[k].begin;
        if (step < x[i].end && step < y[k].end)
            return bp_fail(BP_ERR_MISMATCH,
                           "requests %u (%s) and %u (%s) are both live at step %u and share byte %llu of slab %u", one,
                           first, other, second, step, offset, a->slab);
        if (x[i].end < y[k].end)
            i++;
        else
            k++;
    }
    return bp_fail(BP_ERR_MISMATCH,
                   "requests %u (%s) and %u (%s) share byte %llu of slab %u: one would wait for the other, but the "
                   "schedule overlaps them",
                   one, first, other, second, offset, a->slab);
}

static bp_status check_all(check *c)
{
    if (c->plan->request_count != c->buckets->request_count)
        return bp_fail(BP_ERR_MISMATCH, "the plan has %zu requests, the buckets have %zu", c->plan->request_count,
                       c->buckets->request_count);
    for (size_t i = 0; i < c->plan->request_count; i++) {
        BP_TRY(check_identity(c, i));
        BP_TRY(check_address(c, i));
    }
    BP_TRY(bp_new_array(c->plan->request_count, sizeof *c->offsets, (void **)&c->offsets));
    BP_TRY(bp_packing_create(&c->packing));
    uint64_t bytes;
    bp_packing_fault fault = {.size = sizeof fault};
    BP_TRY(plan_check_add_items(c));
    BP_TRY(add_offsets(c, &bytes));
    BP_TRY(bp_packing_find_fault(c->packing, c->offsets, bytes, &fault));
    return fault.found ? fail_conflict(c, fault.item, fault.other) : BP_OK;
}

bp_status bp_plan_check(const bp_plan *plan, const bp_buckets *buckets, const bp_schedule *schedule)
{
    if (plan == NULL || buckets == NULL || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_check: needs a plan, buckets and a schedule");
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_plan_check: the schedule was made for %zu requests, the buckets have %zu",
                       schedule->request_count, buckets->request_count);
    if (!plan->info.feasible)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_plan_check: the plan is infeasible and has no addresses: %s",
                       plan->info.infeasible_because);
    if (!plan->info.stable)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_plan_check: not every request of the plan has an address (policy %s)",
                       bp_policy_name(plan->info.policy));
    check c = {.plan = &plan->info, .buckets = buckets, .schedule = schedule};
    bp_status status = check_all(&c);
    bp_packing_destroy(&c.packing);
    free(c.offsets);
    return status;
}
