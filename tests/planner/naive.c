/* The naive references: the checker, the lower bound, the policies' rules and the fingerprint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sha256.h"
#include "naive.h"
#include "worlds.h"

#define MOST_UNITS 64

void naive_collect(const world *w, naive_requests *all)
{
    all->count = 0;
    for (size_t i = 0; i < bp_buckets_request_count(w->buckets); i++) {
        bp_request request = {.size = sizeof request};
        bp_bucket bucket = {.size = sizeof bucket};
        assert_ok(bp_buckets_request(w->buckets, i, &request));
        assert_ok(bp_buckets_get(w->buckets, request.bucket, &bucket));
        naive_request naive = {bp_buckets_unit_name(w->buckets, (size_t)bucket.unit),
                               bucket.unit,
                               request.role,
                               bucket.ordinal,
                               request.dtype,
                               request.numel,
                               request.bytes,
                               NULL,
                               0};
        naive.intervals = intervals_of(w->schedule, i, &naive.interval_count);
        if (naive.interval_count == 0 || naive.bytes == 0)
            continue;
        assert_true(all->count < MOST_REQUESTS);
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

/* An interval of an assignment in the first or the second of two repetitions of the step. */
typedef struct naive_event {
    uint32_t request, assignment, begin, end;
} naive_event;

#define MOST_EVENTS 1024

static int compare_events(const void *left, const void *right)
{
    const naive_event *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->request > b->request) - (a->request < b->request);
}

/* The event's acquire waits for the latest release of each predecessor, and so for all that this one had waited for. */
static void naive_wait(const bp_plan *plan, const naive_event *events, uint32_t event,
                       bool ordered[MOST_EVENTS][MOST_EVENTS])
{
    bp_assignment a = assignment_at(plan, events[event].assignment);
    memset(ordered[event], 0, sizeof ordered[event]);
    for (size_t i = 0; i < a.predecessor_count; i++) {
        int32_t latest = -1;
        for (uint32_t e = 0; e < event; e++)
            if (events[e].assignment == a.predecessors[i] && events[e].end <= events[event].begin)
                latest = (int32_t)e;
        for (uint32_t e = 0; latest >= 0 && e < event; e++)
            ordered[event][e] = ordered[event][e] || ordered[latest][e];
        if (latest >= 0)
            ordered[event][latest] = true;
    }
}

bool naive_check(const bp_plan *plan, const world *w)
{
    static naive_requests all;
    naive_collect(w, &all);
    size_t assignments = bp_plan_assignment_count(plan), blocks = 0;
    int32_t assignment_of[MOST_REQUESTS];
    memset(assignment_of, -1, sizeof assignment_of);
    if (assignments != all.count)
        return false;
    for (size_t i = 0; i < assignments; i++) {
        bp_assignment a = assignment_at(plan, i);
        size_t r = 0;
        while (r < all.count && (strcmp(all.items[r].unit_name, a.unit) != 0 || all.items[r].role != a.role ||
                                 all.items[r].ordinal != a.ordinal))
            r++;
        if (r == all.count || assignment_of[r] >= 0 || all.items[r].bytes != a.bytes || all.items[r].dtype != a.dtype)
            return false;
        assignment_of[r] = (int32_t)i;
        if (a.slab >= bp_plan_slab_count(plan) || a.offset % ALIGNMENT != 0 ||
            a.offset + a.bytes > slab_at(plan, a.slab).bytes)
            return false;
        if ((a.offset + aligned(a.bytes)) / ALIGNMENT > blocks)
            blocks = (a.offset + aligned(a.bytes)) / ALIGNMENT;
    }
    static naive_event events[MOST_EVENTS];
    static bool ordered[MOST_EVENTS][MOST_EVENTS];
    uint32_t event_count = 0, steps = (uint32_t)bp_schedule_get_info(w->schedule)->step_count;
    for (uint32_t r = 0; r < all.count; r++) {
        for (size_t i = 0; i < 2 * all.items[r].interval_count; i++) {
            const bp_interval *interval = &all.items[r].intervals[i / 2];
            uint32_t passed = i % 2 * steps;
            assert_true(event_count < MOST_EVENTS && interval->begin < interval->end && interval->end <= steps);
            events[event_count++] =
                (naive_event){r, (uint32_t)assignment_of[r], passed + interval->begin, passed + interval->end};
        }
    }
    qsort(events, event_count, sizeof *events, compare_events);
    size_t slabs = bp_plan_slab_count(plan);
    int32_t *user = malloc((blocks * slabs + 1) * sizeof *user); /* by block: its latest event, -1: none yet */
    assert_non_null(user);
    memset(user, -1, blocks * slabs * sizeof *user);
    bool good = true;
    for (uint32_t e = 0; e < event_count; e++) {
        bp_assignment a = assignment_at(plan, events[e].assignment);
        naive_wait(plan, events, e, ordered);
        for (size_t b = 0; b < aligned(a.bytes) / ALIGNMENT; b++) {
            int32_t *block = &user[(a.offset / ALIGNMENT + b) * slabs + a.slab];
            const naive_event *before = *block < 0 ? NULL : &events[*block];
            if (before != NULL && before->request != events[e].request &&
                (before->end > events[e].begin || (events[e].begin >= steps && !ordered[e][*block])))
                good = false;
            *block = (int32_t)e;
        }
    }
    free(user);
    return good;
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

/* Which units are live together in a role; only those in `chosen`. */
typedef struct conflicts {
    bool exists[MOST_UNITS], with[MOST_UNITS][MOST_UNITS];
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

/* Whether the units from `unit` on can be given copies; tries all. */
static bool naive_assign(const conflicts *graph, uint32_t *copy_of, uint32_t unit, uint32_t copies)
{
    while (unit < MOST_UNITS && !graph->exists[unit])
        unit++;
    if (unit == MOST_UNITS)
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
    uint32_t copy_of[MOST_UNITS], copies = 0;
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

uint64_t naive_class(const naive_requests *all, const naive_request *like, uint32_t *tenants)
{
    uint64_t bytes = 0;
    *tenants = 0;
    for (size_t i = 0; i < all->count; i++) {
        const naive_request *other = &all->items[i];
        if (other->role != like->role || other->dtype != like->dtype || naive_rank(all, other) != naive_rank(all, like))
            continue;
        ++*tenants;
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
        uint32_t tenants;
        if (!counted)
            bytes += naive_class(all, request, &tenants);
    }
    return bytes;
}

/* Whether two units have equal buckets in a role: unpadded elements and dtypes in order. */
static bool naive_equal_units(const naive_requests *all, uint32_t role, int32_t a, int32_t b)
{
    const naive_request *items[2][MOST_REQUESTS];
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
    for (int32_t u = 0; u < MOST_UNITS; u++) {
        uint64_t same = 0;
        for (int32_t v = 0; v < MOST_UNITS; v++)
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
    hash_number(&sha, summary_of(plan).alignment);
    hash_number(&sha, bp_plan_slab_count(plan));
    for (size_t i = 0; i < bp_plan_slab_count(plan); i++) {
        bp_plan_slab slab = slab_at(plan, i);
        bp_sha256_update(&sha, slab.group, strlen(slab.group) + 1);
        hash_number(&sha, slab.bytes);
    }
    hash_number(&sha, bp_plan_assignment_count(plan));
    for (size_t i = 0; i < bp_plan_assignment_count(plan); i++) {
        bp_assignment a = assignment_at(plan, i);
        char label[32];
        snprintf(label, sizeof label, "bucket.%u", a.ordinal);
        const char *bucket = a.bucket != NULL ? a.bucket : label;
        bp_sha256_update(&sha, a.unit, strlen(a.unit) + 1);
        bp_sha256_update(&sha, bucket, strlen(bucket) + 1);
        hash_number(&sha, a.ordinal);
        hash_number(&sha, a.role);
        hash_number(&sha, (uint64_t)a.dtype);
        hash_number(&sha, a.bytes);
        hash_number(&sha, a.slab);
        hash_number(&sha, a.offset);
        hash_number(&sha, a.predecessor_count);
        for (size_t k = 0; k < a.predecessor_count; k++)
            hash_number(&sha, a.predecessors[k]);
    }
    hash_number(&sha, bp_plan_class_count(plan));
    for (size_t i = 0; i < bp_plan_class_count(plan); i++) {
        bp_plan_class c = {.size = sizeof c};
        assert_int_equal(bp_plan_class_get(plan, i, &c), BP_OK);
        hash_number(&sha, c.slab);
        hash_number(&sha, (uint64_t)c.dtype);
        hash_number(&sha, c.copies);
        hash_number(&sha, c.offset);
        hash_number(&sha, c.stride);
        hash_number(&sha, c.bytes);
    }
    uint8_t digest[32];
    bp_sha256_finish(&sha, digest);
    for (int i = 0; i < 32; i++)
        sprintf(text + 2 * i, "%02x", digest[i]);
}
