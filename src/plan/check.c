/* Checks a plan against its buckets and schedule. Shares the data structures with the planner but none of its arithmetic: addresses are
 * compared by the checker of packings, which shares none with the packer either, so that a mistake there shows here. */
#include <bucketpool/pack.h>

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

typedef struct check {
    const bp_plan_info *plan;
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    bp_packing *packing; /* an item for each request */
    uint64_t *offsets;   /* by request, slabs one after the other */
} check;

/* ---- requests ------------------------------------------------------------------------------------------------------- */

static bp_status plan_check_fail_request(const check *c, size_t index, const char *what)
{
    char text[BP_PLAN_REQUEST_BYTES];
    return bp_fail(BP_ERR_MISMATCH, "request %zu (%s) %s", index, bp_plan_describe(&c->plan->requests[index], text),
                   what);
}

/* The plan's request must be the buckets' request of the same number. */
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
        return plan_check_fail_request(c, index, what);
    }
    if (planned->dtype != (bp_dtype)r->dtype) {
        snprintf(what, sizeof what, "has dtype %s; the buckets have %s", bp_dtype_name(planned->dtype),
                 bp_dtype_name((bp_dtype)r->dtype));
        return plan_check_fail_request(c, index, what);
    }
    if (planned->bytes != r->bytes) {
        snprintf(what, sizeof what, "has %llu bytes; the buckets have %llu", (unsigned long long)planned->bytes,
                 (unsigned long long)r->bytes);
        return plan_check_fail_request(c, index, what);
    }
    uint64_t used;
    BP_TRY(bp_dtype_bytes((bp_dtype)r->dtype, r->numel, &used));
    used = used < r->bytes ? used : r->bytes;
    if (planned->used_bytes != used) {
        snprintf(what, sizeof what, "uses %llu bytes; the buckets use %llu", (unsigned long long)planned->used_bytes,
                 (unsigned long long)used);
        return plan_check_fail_request(c, index, what);
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
                                               : plan_check_fail_request(c, index, "is live but has no address");
    if (r->slab >= c->plan->slab_count) {
        snprintf(what, sizeof what, "is in slab %u; there are %zu", r->slab, c->plan->slab_count);
        return plan_check_fail_request(c, index, what);
    }
    if (r->offset % c->plan->alignment != 0) {
        snprintf(what, sizeof what, "is at offset %llu, which is no multiple of %llu", (unsigned long long)r->offset,
                 (unsigned long long)c->plan->alignment);
        return plan_check_fail_request(c, index, what);
    }
    uint64_t room = c->plan->slabs[r->slab].bytes;
    if (r->offset > room || r->bytes > room - r->offset) {
        snprintf(what, sizeof what, "has %llu bytes at %llu, beyond slab %u of %llu bytes",
                 (unsigned long long)r->bytes, (unsigned long long)r->offset, r->slab, (unsigned long long)room);
        return plan_check_fail_request(c, index, what);
    }
    return BP_OK;
}

/* ---- conflicts ------------------------------------------------------------------------------------------------------ */

/* An item of the packing for each request, live as in the schedule where it has an address. */
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
    size_t count = c->schedule->overlap_count;
    const bp_overlap *overlaps = c->schedule->overlaps;
    for (size_t i = 0; i < count; i++) {
        const bp_plan_request *earlier = &c->plan->requests[overlaps[i].earlier];
        const bp_plan_request *later = &c->plan->requests[overlaps[i].later];
        if (earlier->placement == BP_PLACE_PLANNED && later->placement == BP_PLACE_PLANNED)
            BP_TRY(bp_packing_add_conflict(c->packing, overlaps[i].earlier, overlaps[i].later));
    }
    return BP_OK;
}

/* Slabs one after the other, so that one packing has them all. */
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

/* The first step in which both are live; the step count where there is none. */
static uint32_t common_step(const check *c, uint32_t one, uint32_t other)
{
    size_t counts[2], i = 0, k = 0;
    const bp_interval *a = bp_schedule_intervals(c->schedule, one, &counts[0]);
    const bp_interval *b = bp_schedule_intervals(c->schedule, other, &counts[1]);
    while (i < counts[0] && k < counts[1]) {
        uint32_t begin = a[i].begin > b[k].begin ? a[i].begin : b[k].begin;
        if (begin < a[i].end && begin < b[k].end)
            return begin;
        if (a[i].end < b[k].end)
            i++;
        else
            k++;
    }
    return (uint32_t)c->schedule->step_count;
}

static bp_status fail_conflict(const check *c, uint32_t one, uint32_t other)
{
    char first[BP_PLAN_REQUEST_BYTES], second[BP_PLAN_REQUEST_BYTES];
    const bp_plan_request *a = &c->plan->requests[one], *b = &c->plan->requests[other];
    uint32_t step = common_step(c, one, other);
    unsigned long long offset = a->offset > b->offset ? a->offset : b->offset;
    if (step < c->schedule->step_count)
        return bp_fail(BP_ERR_MISMATCH,
                       "requests %u (%s) and %u (%s) are both live at step %u and share byte %llu of slab %u", one,
                       bp_plan_describe(a, first), other, bp_plan_describe(b, second), step, offset, a->slab);
    return bp_fail(BP_ERR_MISMATCH,
                   "requests %u (%s) and %u (%s) share byte %llu of slab %u: one would wait for the other where the "
                   "schedule wants them to overlap",
                   one, bp_plan_describe(a, first), other, bp_plan_describe(b, second), offset, a->slab);
}

static bp_status check_conflicts(check *c)
{
    uint64_t bytes;
    bp_packing_fault fault = {.size = sizeof fault};
    BP_TRY(plan_check_add_items(c));
    BP_TRY(add_offsets(c, &bytes));
    BP_TRY(bp_packing_find_fault(c->packing, c->offsets, bytes, &fault));
    return fault.found ? fail_conflict(c, fault.item, fault.other) : BP_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

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
    return check_conflicts(c);
}

bp_status bp_plan_check(const bp_plan *plan, const bp_buckets *buckets, const bp_schedule *schedule)
{
    if (plan == NULL || buckets == NULL || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_check: needs a plan, buckets and a schedule");
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_check: the schedule is of %zu requests, the buckets have %zu",
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
