/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of the planner: checker, lower bound, rules of the policies, fingerprint. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sha256.h"
#include "naive.h"
#include "support/scenarios.h"

#define MAX_UNITS 64

void naive_collect(const scenario *s, naive_requests *all)
{
    all->count = 0;
    for (size_t i = 0; i < bp_buckets_get_info(s->buckets)->request_count; i++) {
        bp_request request = bp_buckets_get_info(s->buckets)->requests[i];
        bp_bucket bucket = bp_buckets_get_info(s->buckets)->buckets[request.bucket];
        naive_request naive = {(uint32_t)i,    bp_buckets_get_info(s->buckets)->units[bucket.unit].name,
                               bucket.unit,    request.role,
                               bucket.ordinal, request.dtype,
                               request.numel,  request.bytes,
                               NULL,           0};
        naive.intervals = intervals_of(s->schedule, i, &naive.interval_count);
        if (naive.interval_count == 0 || naive.bytes == 0)
            continue;
        assert_true(all->count < MAX_REQUESTS);
        all->items[all->count++] = naive;
    }
}

bool live_at(const naive_request *request, uint32_t step)
{
    for (size_t i = 0; i < request->interval_count; i++)
        if (request->intervals[i].begin <= step && step < request->intervals[i].end)
            return true;
    return false;
}

/* ---- the checker --------------------------------------------------------------------------------------------------- */

static uint64_t naive_used_bytes(const bp_request *request)
{
    uint64_t bytes = (request->numel * bp_dtype_bits(request->dtype) + 7) / 8;
    return bytes < request->bytes ? bytes : request->bytes;
}

/* True if the plan's request equals that of the buckets and its address, if any, lies in its slab. */
static bool naive_place(const bp_plan_info *plan, const scenario *s, uint32_t id)
{
    const bp_plan_request *planned = &plan->requests[id];
    char label[32], planned_label[32];
    size_t intervals;
    bp_request request = bp_buckets_get_info(s->buckets)->requests[id];
    bp_bucket bucket = bp_buckets_get_info(s->buckets)->buckets[request.bucket];
    intervals_of(s->schedule, id, &intervals);
    snprintf(label, sizeof label, "bucket.%u", bucket.ordinal);
    snprintf(planned_label, sizeof planned_label, "bucket.%u", planned->ordinal);
    if (strcmp(planned->unit, bp_buckets_get_info(s->buckets)->units[bucket.unit].name) != 0 ||
        strcmp(planned->bucket != NULL ? planned->bucket : planned_label, bucket.name != NULL ? bucket.name : label) !=
            0 ||
        planned->ordinal != bucket.ordinal || planned->role != request.role || planned->dtype != request.dtype ||
        planned->bytes != request.bytes || planned->used_bytes != naive_used_bytes(&request))
        return false;
    if (planned->placement != BP_PLACE_PLANNED)
        return intervals == 0 || request.bytes == 0;
    return planned->slab < plan->slab_count && planned->offset % ALIGNMENT == 0 &&
           planned->offset + planned->bytes <= plan->slabs[planned->slab].bytes;
}

static bool naive_share_block(const bp_plan_request *a, const bp_plan_request *b)
{
    for (uint64_t x = a->offset / ALIGNMENT; x < (a->offset + aligned(a->bytes)) / ALIGNMENT; x++)
        for (uint64_t y = b->offset / ALIGNMENT; y < (b->offset + aligned(b->bytes)) / ALIGNMENT; y++)
            if (a->slab == b->slab && x == y)
                return true;
    return false;
}

bool naive_check(const bp_plan *plan, const scenario *s)
{
    static naive_requests all;
    const bp_plan_info *info = bp_plan_get_info(plan);
    naive_collect(s, &all);
    if (info->request_count != bp_buckets_get_info(s->buckets)->request_count)
        return false;
    for (uint32_t i = 0; i < info->request_count; i++)
        if (!naive_place(info, s, i))
            return false;
    for (size_t i = 0; i < all.count; i++) {
        for (size_t k = 0; k < i; k++) {
            const naive_request *a = &all.items[i], *b = &all.items[k];
            bool conflict = false;
            for (uint32_t step = 0; step < bp_schedule_get_info(s->schedule)->step_count; step++)
                conflict = conflict || (live_at(a, step) && live_at(b, step));
            for (size_t o = 0; o < bp_schedule_get_info(s->schedule)->overlap_count; o++) {
                const bp_overlap *overlap = &bp_schedule_get_info(s->schedule)->overlaps[o];
                conflict = conflict || (overlap->earlier == a->id && overlap->later == b->id) ||
                           (overlap->earlier == b->id && overlap->later == a->id);
            }
            if (conflict && naive_share_block(&info->requests[a->id], &info->requests[b->id]))
                return false;
        }
    }
    return true;
}

/* ---- the bound and the policies ------------------------------------------------------------------------------------ */

uint64_t naive_bound(const naive_requests *all, uint32_t steps, uint32_t role, uint32_t *first_step)
{
    uint64_t largest = 0;
    *first_step = 0;
    for (uint32_t step = 0; step < steps; step++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < all->count; i++)
            if (all->items[i].role == role && live_at(&all->items[i], step))
                sum += aligned(all->items[i].bytes);
        if (sum > largest) {
            largest = sum;
            *first_step = step;
        }
    }
    return largest;
}

/* Conflict graph of a role's units, restricted to `chosen`. */
typedef struct conflicts {
    bool exists[MAX_UNITS], with[MAX_UNITS][MAX_UNITS];
} conflicts;

static void naive_conflicts(const naive_requests *all, uint32_t role, uint64_t chosen, uint32_t steps, conflicts *graph)
{
    memset(graph, 0, sizeof *graph);
    for (size_t i = 0; i < all->count; i++) {
        const naive_request *a = &all->items[i];
        if (a->role != role || !(chosen >> a->unit & 1))
            continue;
        graph->exists[a->unit] = true;
        for (size_t k = 0; k < all->count; k++) {
            const naive_request *b = &all->items[k];
            if (b->role != role || b->unit == a->unit || !(chosen >> b->unit & 1))
                continue;
            for (uint32_t step = 0; step < steps; step++)
                if (live_at(a, step) && live_at(b, step))
                    graph->with[a->unit][b->unit] = true;
        }
    }
}

/* True if the units from `unit` on can be assigned copies; exhaustive. */
static bool naive_assign(const conflicts *graph, uint32_t *copy_of, uint32_t unit, uint32_t copies)
{
    while (unit < MAX_UNITS && !graph->exists[unit])
        unit++;
    if (unit == MAX_UNITS)
        return true;
    for (uint32_t copy = 0; copy < copies; copy++) {
        bool free_copy = true;
        for (uint32_t other = 0; other < unit; other++)
            free_copy = free_copy && !(graph->with[unit][other] && copy_of[other] == copy);
        copy_of[unit] = copy;
        if (free_copy && naive_assign(graph, copy_of, unit + 1, copies))
            return true;
    }
    return false;
}

uint32_t naive_copies(const naive_requests *all, uint32_t role, uint64_t chosen, uint32_t steps)
{
    conflicts graph;
    uint32_t copy_of[MAX_UNITS], copies = 0;
    naive_conflicts(all, role, chosen, steps, &graph);
    while (!naive_assign(&graph, copy_of, 0, copies))
        copies++;
    return copies;
}

uint32_t naive_rank(const naive_requests *all, const naive_request *request)
{
    uint32_t rank = 0;
    for (size_t i = 0; i < all->count; i++) {
        const naive_request *other = &all->items[i];
        if (other->role == request->role && other->unit == request->unit && other->dtype == request->dtype)
            rank +=
                other->numel > request->numel || (other->numel == request->numel && other->ordinal > request->ordinal);
    }
    return rank;
}

uint64_t naive_class(const naive_requests *all, const naive_request *like, uint32_t *users)
{
    uint64_t bytes = 0;
    *users = 0;
    for (size_t i = 0; i < all->count; i++) {
        const naive_request *other = &all->items[i];
        if (other->role != like->role || other->dtype != like->dtype || naive_rank(all, other) != naive_rank(all, like))
            continue;
        ++*users;
        if (aligned(other->bytes) > bytes)
            bytes = aligned(other->bytes);
    }
    return bytes;
}

uint64_t naive_set_bytes(const naive_requests *all, uint32_t role)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < all->count; i++) {
        const naive_request *request = &all->items[i];
        bool counted = request->role != role;
        for (size_t k = 0; k < i; k++)
            counted = counted || (all->items[k].role == role && all->items[k].dtype == request->dtype &&
                                  naive_rank(all, &all->items[k]) == naive_rank(all, request));
        uint32_t users;
        if (!counted)
            bytes += naive_class(all, request, &users);
    }
    return bytes;
}

/* True if two units have equal buckets in a role: unpadded elements and dtypes in order. */
static bool naive_equal_units(const naive_requests *all, uint32_t role, int32_t a, int32_t b)
{
    const naive_request *items[2][MAX_REQUESTS];
    size_t counts[2] = {0, 0};
    for (size_t i = 0; i < all->count; i++)
        for (int side = 0; side < 2; side++)
            if (all->items[i].role == role && all->items[i].unit == (side == 0 ? a : b))
                items[side][counts[side]++] = &all->items[i];
    if (counts[0] != counts[1])
        return false;
    for (size_t i = 0; i < counts[0]; i++)
        if (items[0][i]->numel != items[1][i]->numel || items[0][i]->dtype != items[1][i]->dtype)
            return false;
    return true;
}

uint64_t naive_pooled_units(const naive_requests *all, uint32_t role)
{
    uint64_t best = 0, present = 0;
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i].role == role)
            present |= UINT64_C(1) << all->items[i].unit;
    for (int32_t u = 0; u < MAX_UNITS; u++) {
        uint64_t same = 0;
        for (int32_t v = 0; v < MAX_UNITS; v++)
            if ((present >> u & 1) && (present >> v & 1) && naive_equal_units(all, role, u, v))
                same |= UINT64_C(1) << v;
        if (__builtin_popcountll(same) > __builtin_popcountll(best))
            best = same;
    }
    return best;
}

/* ---- the fingerprint ----------------------------------------------------------------------------------------------- */

static void hash_number(bp_sha256 *sha, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
    bp_sha256_update(sha, bytes, sizeof bytes);
}

void naive_fingerprint(const bp_plan *plan, char text[BP_FINGERPRINT_CHARS])
{
    bp_sha256 sha;
    bp_sha256_init(&sha);
    bp_sha256_update(&sha, "bucketpool.plan/1", sizeof "bucketpool.plan/1");
    const bp_plan_info *info = bp_plan_get_info(plan);
    const char *policy = bp_policy_name(info->policy);
    bp_sha256_update(&sha, policy, strlen(policy) + 1);
    hash_number(&sha, info->copies);
    hash_number(&sha, info->lower_bound_bytes);
    hash_number(&sha, info->optimal ? 1 : 0);
    hash_number(&sha, info->alignment);
    hash_number(&sha, info->slab_count);
    for (size_t i = 0; i < info->slab_count; i++) {
        bp_sha256_update(&sha, info->slabs[i].group, strlen(info->slabs[i].group) + 1);
        hash_number(&sha, info->slabs[i].bytes);
    }
    hash_number(&sha, info->request_count);
    for (size_t i = 0; i < info->request_count; i++) {
        const bp_plan_request *r = &info->requests[i];
        char label[32];
        snprintf(label, sizeof label, "bucket.%u", r->ordinal);
        const char *bucket = r->bucket != NULL ? r->bucket : label;
        bp_sha256_update(&sha, r->unit, strlen(r->unit) + 1);
        bp_sha256_update(&sha, bucket, strlen(bucket) + 1);
        hash_number(&sha, r->ordinal);
        hash_number(&sha, r->role);
        hash_number(&sha, (uint64_t)r->dtype);
        hash_number(&sha, (uint64_t)r->placement);
        hash_number(&sha, r->slab);
        hash_number(&sha, r->offset);
        hash_number(&sha, r->bytes);
        hash_number(&sha, r->used_bytes);
    }
    hash_number(&sha, info->class_count);
    for (size_t i = 0; i < info->class_count; i++) {
        const bp_plan_class *c = &info->classes[i];
        hash_number(&sha, c->slab);
        hash_number(&sha, (uint64_t)c->dtype);
        hash_number(&sha, c->copies);
        hash_number(&sha, c->offset);
        hash_number(&sha, c->stride);
        hash_number(&sha, c->bytes);
    }
    uint8_t digest[32];
    bp_sha256_finish(&sha, digest);
    for (int i = 0; i < 32; i++)
        sprintf(text + 2 * i, "%02x", digest[i]);
}
