/* Policies, plans and their checks against naive references: tiny models by brute force, hand-made ones by their numbers. */
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
#include "planner/plan.h"

#define PARAM BP_ROLE_BIT(BP_ROLE_PARAM)
#define TRANSPOSE BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE)
#define GRAD BP_ROLE_BIT(BP_ROLE_GRAD)
#define GRAD_COMM BP_ROLE_BIT(BP_ROLE_GRAD_COMM)
#define STATE BP_ROLE_BIT(BP_ROLE_STATE)
#define ALIGNMENT 256

#define MOST_REQUESTS 256 /* of what the naive references below are given */
#define MOST_UNITS 64

/* ---- shorthands ---------------------------------------------------------------------------------------------------- */

#define assert_ok(status) check_ok(status, #status, __FILE__, __LINE__)
#define assert_fails(status, expected, ...)                                                                            \
    check_failure(status, expected, (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)

static void check_ok(bp_status status, const char *call, const char *file, int line)
{
    if (status == BP_OK)
        return;
    print_error("%s\n%s: %s\n", call, bp_status_name(status), bp_error_detail());
    _fail(file, line);
}

/* The status, and what the detail must mention. */
static void check_failure(bp_status status, bp_status expected, const char *const *words, const char *file, int line)
{
    if (status != expected) {
        print_error("status \"%s\", expected \"%s\": %s\n", bp_status_name(status), bp_status_name(expected),
                    bp_error_detail());
        _fail(file, line);
    }
    for (; *words != NULL; words++) {
        if (strstr(bp_error_detail(), *words) == NULL) {
            print_error("\"%s\" is not in: %s\n", *words, bp_error_detail());
            _fail(file, line);
        }
    }
}

/* xorshift64*: the same cases on every machine. */
static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * UINT64_C(0x2545F4914F6CDD1D) >> 32) % limit);
}

static void seed(uint64_t value)
{
    random_state = value * UINT64_C(0x9E3779B97F4A7C15) + 1;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bp_model *new_model(void)
{
    bp_model *model = NULL;
    assert_ok(bp_model_create("hand-made", &model));
    return model;
}

static int32_t add_unit(bp_model *model, const char *name, int32_t parent)
{
    uint32_t unit;
    assert_ok(bp_model_add_unit(model, name, parent, &unit));
    return (int32_t)unit;
}

/* A unit called "u<number>". */
static int32_t add_numbered_unit(bp_model *model, uint32_t number)
{
    char name[16];
    snprintf(name, sizeof name, "u%u", number);
    return add_unit(model, name, BP_OUTSIDE);
}

static void add_bucket(bp_model *model, int32_t unit, bp_dtype dtype, uint64_t numel, uint64_t padded_numel)
{
    bp_given_bucket bucket = {
        .size = sizeof bucket, .unit = unit, .dtype = dtype, .numel = numel, .padded_numel = padded_numel};
    assert_ok(bp_model_add_bucket(model, &bucket));
}

static bp_status try_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket)
{
    bp_model_event event = {
        .size = sizeof event, .acquire = acquire, .unit = unit, .bucket = bucket, .role = BP_ROLE_PARAM};
    return bp_model_add_event(model, &event);
}

static void add_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket)
{
    assert_ok(try_event(model, acquire, unit, bucket));
}

typedef struct world_options {
    uint32_t roles, prefetch, grad_units, eval, recorded;
    bp_dtype grad_dtype, grad_comm_dtype;
} world_options;

static const world_options DEFAULTS = {.roles = PARAM | GRAD, .prefetch = 1, .grad_units = 2};

/* What a plan is made of. */
typedef struct world {
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
} world;

/* Takes the model over. */
static world make_world(bp_model *model, world_options options)
{
    world w = {.model = model};
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.roles = options.roles;
    config.grad_dtype = options.grad_dtype;
    config.grad_comm_dtype = options.grad_comm_dtype;
    assert_ok(bp_buckets_create(model, &config, &w.buckets));
    if (options.recorded) {
        assert_ok(bp_schedule_create_recorded(model, w.buckets, &w.schedule));
        return w;
    }
    bp_schedule_config timing;
    assert_ok(bp_schedule_config_init(&timing, sizeof timing));
    timing.prefetch = options.prefetch;
    timing.grad_units = options.grad_units;
    timing.eval = options.eval;
    assert_ok(bp_schedule_create_training(w.buckets, &timing, &w.schedule));
    return w;
}

static void end_world(world *w)
{
    bp_schedule_destroy(&w->schedule);
    bp_buckets_destroy(&w->buckets);
    bp_model_destroy(&w->model);
}

static bp_plan_config plan_config(bp_policy policy, uint32_t copies, bp_fallback fallback)
{
    bp_plan_config config;
    assert_ok(bp_plan_config_init(&config, sizeof config));
    assert_int_equal(config.alignment, ALIGNMENT);
    config.policy = policy;
    config.copies = copies;
    config.fallback = fallback;
    return config;
}

static bp_plan *make_plan(const world *w, bp_policy policy, uint32_t copies, bp_fallback fallback)
{
    bp_plan_config config = plan_config(policy, copies, fallback);
    bp_plan *plan = NULL;
    assert_ok(bp_plan_create(w->buckets, w->schedule, &config, &plan));
    return plan;
}

static bp_plan *make_max(const world *w, uint32_t copies)
{
    return make_plan(w, BP_POLICY_MAX, copies, BP_FALLBACK_PERSISTENT);
}

static bp_plan_summary summary_of(const bp_plan *plan)
{
    bp_plan_summary summary = {.size = sizeof summary};
    assert_ok(bp_plan_summary_get(plan, &summary));
    return summary;
}

static bp_plan_role role_at(const bp_plan *plan, size_t index)
{
    bp_plan_role role = {.size = sizeof role};
    assert_ok(bp_plan_role_get(plan, index, &role));
    return role;
}

static bp_plan_buffer buffer_at(const bp_plan *plan, size_t role, size_t index)
{
    bp_plan_buffer buffer = {.size = sizeof buffer};
    assert_ok(bp_plan_buffer_get(plan, role, index, &buffer));
    return buffer;
}

static bp_assignment assignment_at(const bp_plan *plan, size_t index)
{
    bp_assignment assignment = {.size = sizeof assignment};
    assert_ok(bp_plan_assignment_get(plan, index, &assignment));
    return assignment;
}

static bp_plan_slab slab_at(const bp_plan *plan, size_t index)
{
    bp_plan_slab slab = {.size = sizeof slab};
    assert_ok(bp_plan_slab_get(plan, index, &slab));
    return slab;
}

/* ---- naive references ---------------------------------------------------------------------------------------------- */

typedef struct naive_request {
    const char *unit_name;
    int32_t unit;
    uint32_t role, ordinal;
    bp_dtype dtype; /* of its memory */
    uint64_t numel, bytes;
    const bp_interval *intervals;
    size_t interval_count;
} naive_request;

/* All requests that are ever live and not empty. */
typedef struct naive_requests {
    size_t count;
    naive_request items[MOST_REQUESTS];
} naive_requests;

static void naive_collect(const world *w, naive_requests *all)
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
        naive.intervals = bp_schedule_intervals(w->schedule, i, &naive.interval_count);
        if (naive.interval_count == 0 || naive.bytes == 0)
            continue;
        assert_true(all->count < MOST_REQUESTS);
        all->items[all->count++] = naive;
    }
}

static bool live_at(const naive_request *request, uint32_t step)
{
    for (size_t i = 0; i < request->interval_count; i++)
        if (request->intervals[i].begin <= step && step < request->intervals[i].end)
            return true;
    return false;
}

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

/* What bp_plan_check promises, told for each block of ALIGNMENT bytes. As offsets are aligned, two
 * assignments share bytes just when they share a block. */
static bool naive_check(const bp_plan *plan, const world *w)
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
    uint32_t event_count = 0, steps = (uint32_t)bp_schedule_step_count(w->schedule);
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

static uint64_t naive_bound(const naive_requests *all, uint32_t steps, uint32_t role, uint32_t *first_step)
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

static uint32_t naive_copies(const naive_requests *all, uint32_t role, uint64_t chosen, uint32_t steps)
{
    conflicts graph;
    uint32_t copy_of[MOST_UNITS], copies = 0;
    naive_conflicts(all, role, chosen, steps, &graph);
    while (!naive_assign(&graph, copy_of, 0, copies))
        copies++;
    return copies;
}

/* The rank of a request among those of its unit, role and storage dtype: unpadded elements, then larger ordinal first. */
static uint32_t naive_rank(const naive_requests *all, const naive_request *request)
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

/* Max's class for `like`: its bytes and how many use it. */
static uint64_t naive_class(const naive_requests *all, const naive_request *like, uint32_t *tenants)
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

/* One buffer of each of max's classes. */
static uint64_t naive_set_bytes(const naive_requests *all, uint32_t role)
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

/* Fixed's pooled units as a bit mask: the most frequent kind, of equally frequent ones the first. */
static uint64_t naive_pooled_units(const naive_requests *all, uint32_t role)
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

/* ---- plans against the references ---------------------------------------------------------------------------------- */

static void assert_bounds(const bp_plan *plan, const world *w, const naive_requests *all)
{
    uint64_t total = 0;
    uint32_t steps = (uint32_t)bp_schedule_step_count(w->schedule);
    for (size_t r = 0; r < bp_plan_role_count(plan); r++) {
        bp_plan_role role = role_at(plan, r);
        uint32_t first_step;
        uint64_t bound = naive_bound(all, steps, role.role, &first_step), sum = 0;
        assert_int_equal(role.lower_bound_bytes, bound);
        assert_int_equal(role.lower_bound_step, first_step);
        total += bound;
        bool seen[MOST_REQUESTS] = {false};
        for (size_t k = 0; k < bp_plan_witness_count(plan, r); k++) {
            bp_plan_witness witness = {.size = sizeof witness};
            assert_ok(bp_plan_witness_get(plan, r, k, &witness));
            sum += witness.bytes;
            size_t found = 0;
            while (found < all->count && (all->items[found].role != role.role || seen[found] ||
                                          strcmp(all->items[found].unit_name, witness.unit) != 0 ||
                                          all->items[found].ordinal != witness.ordinal))
                found++;
            assert_true(found < all->count);
            seen[found] = true;
            assert_true(live_at(&all->items[found], first_step));
            assert_int_equal(witness.bytes, aligned(all->items[found].bytes));
        }
        assert_int_equal(sum, bound);
        uint32_t most_units = 0;
        for (uint32_t step = 0; step < steps; step++) {
            uint64_t units = 0;
            for (size_t i = 0; i < all->count; i++)
                if (all->items[i].role == role.role && live_at(&all->items[i], step))
                    units |= UINT64_C(1) << all->items[i].unit;
            uint32_t count = (uint32_t)__builtin_popcountll(units);
            most_units = count > most_units ? count : most_units;
        }
        assert_int_equal(role.live_units, most_units);
    }
    bp_plan_summary summary = summary_of(plan);
    assert_int_equal(summary.lower_bound_bytes, total);
    assert_true(!summary.feasible || summary.bytes >= total);
    assert_int_equal(summary.optimal, summary.feasible && summary.bytes == total);
}

/* Bytes of roles, slabs and buffers add up. */
static void assert_sums(const bp_plan *plan)
{
    bp_plan_summary summary = summary_of(plan);
    uint64_t bytes = 0, slab_bytes = 0, dynamic_bytes = 0;
    uint32_t copies = 0;
    for (size_t r = 0; r < bp_plan_role_count(plan); r++) {
        bp_plan_role role = role_at(plan, r);
        assert_int_equal(role.bytes, role.pool_bytes + role.persistent_bytes + role.dynamic_bytes);
        bytes += role.bytes;
        dynamic_bytes += role.dynamic_bytes;
        copies = role.copies > copies ? role.copies : copies;
        uint64_t pooled = 0, persistent = 0;
        for (size_t b = 0; b < role.buffers; b++) {
            bp_plan_buffer buffer = buffer_at(plan, r, b);
            assert_int_equal(buffer.bytes % ALIGNMENT, 0);
            assert_non_null(buffer.set_by_unit);
            if (buffer.kind == BP_BUFFER_POOLED)
                pooled += buffer.copies * buffer.bytes;
            if (buffer.kind == BP_BUFFER_PERSISTENT)
                persistent += buffer.copies * buffer.bytes;
        }
        assert_int_equal(pooled, role.pool_bytes);
        assert_int_equal(persistent, role.persistent_bytes);
    }
    assert_int_equal(bytes, summary.bytes);
    assert_int_equal(copies, summary.copies);
    if (!summary.feasible) {
        assert_int_equal(bp_plan_assignment_count(plan), 0);
        assert_true(strlen(summary.infeasible_because) > 0);
        return;
    }
    assert_string_equal(summary.infeasible_because, "");
    for (size_t s = 0; s < bp_plan_slab_count(plan); s++)
        slab_bytes += slab_at(plan, s).bytes;
    assert_int_equal(slab_bytes, bytes - dynamic_bytes);
}

static void hash_number(bp_sha256 *sha, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
    bp_sha256_update(sha, bytes, sizeof bytes);
}

/* docs/formats.md, told again. */
static void naive_fingerprint(const bp_plan *plan, char text[BP_FINGERPRINT_CHARS])
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
    uint8_t digest[32];
    bp_sha256_finish(&sha, digest);
    for (int i = 0; i < 32; i++)
        sprintf(text + 2 * i, "%02x", digest[i]);
}

static void assert_same_fingerprint(const bp_plan *a, const bp_plan *b, bool same)
{
    char first[BP_FINGERPRINT_CHARS], second[BP_FINGERPRINT_CHARS];
    assert_ok(bp_plan_fingerprint(a, first));
    assert_ok(bp_plan_fingerprint(b, second));
    assert_int_equal(strlen(first), BP_FINGERPRINT_CHARS - 1);
    assert_int_equal(strcmp(first, second) == 0, same);
}

/* What a rebuilt plan is to differ in. */
typedef struct edit {
    size_t skip;  /* assignment to leave out */
    size_t index; /* assignment to replace by `with` */
    bp_assignment with;
    uint64_t more_slab_bytes;
} edit;

static const edit NO_EDIT = {.skip = SIZE_MAX, .index = SIZE_MAX};

static bp_status rebuild(const bp_plan *plan, const edit *e, bp_plan **out)
{
    bp_plan_summary summary = summary_of(plan);
    bp_plan_builder *builder = NULL;
    bp_status status = bp_plan_builder_create(&summary, &builder);
    for (size_t i = 0; status == BP_OK && i < bp_plan_slab_count(plan); i++) {
        bp_plan_slab slab = slab_at(plan, i);
        slab.bytes += e->more_slab_bytes;
        status = bp_plan_builder_add_slab(builder, &slab);
    }
    for (size_t i = 0; status == BP_OK && i < bp_plan_assignment_count(plan); i++) {
        bp_assignment a = i == e->index ? e->with : assignment_at(plan, i);
        if (i != e->skip)
            status = bp_plan_builder_add_assignment(builder, &a);
    }
    if (status == BP_OK)
        status = bp_plan_builder_finish(&builder, out);
    bp_plan_builder_destroy(&builder);
    return status;
}

static void assert_roundtrip(const bp_plan *plan, const world *w)
{
    bp_plan *again = NULL;
    char naive[BP_FINGERPRINT_CHARS], fingerprint[BP_FINGERPRINT_CHARS];
    assert_ok(rebuild(plan, &NO_EDIT, &again));
    assert_same_fingerprint(plan, again, true);
    naive_fingerprint(plan, naive);
    assert_ok(bp_plan_fingerprint(again, fingerprint));
    assert_string_equal(naive, fingerprint);
    bp_plan_summary before = summary_of(plan), after = summary_of(again);
    assert_int_equal(before.policy, after.policy);
    assert_int_equal(before.copies, after.copies);
    assert_int_equal(before.feasible, after.feasible);
    assert_int_equal(before.stable, after.stable);
    assert_int_equal(before.alignment, after.alignment);
    assert_int_equal(before.bytes, after.bytes);
    assert_int_equal(before.lower_bound_bytes, after.lower_bound_bytes);
    assert_int_equal(bp_plan_assignment_count(plan), bp_plan_assignment_count(again));
    for (size_t i = 0; i < bp_plan_assignment_count(plan); i++) {
        bp_assignment a = assignment_at(plan, i), b = assignment_at(again, i);
        assert_string_equal(a.unit, b.unit);
        assert_int_equal(a.offset, b.offset);
        assert_int_equal(a.predecessor_count, b.predecessor_count);
        for (size_t k = 0; k < a.predecessor_count; k++)
            assert_int_equal(a.predecessors[k], b.predecessors[k]);
    }
    assert_ok(bp_plan_check(again, w->buckets, w->schedule));
    bp_plan_destroy(&again);
}

/* Everything that holds for any plan. */
static void assert_plan_holds(const bp_plan *plan, const world *w)
{
    static naive_requests all;
    bp_plan_summary summary = summary_of(plan);
    naive_collect(w, &all);
    assert_bounds(plan, w, &all);
    assert_sums(plan);
    if (!summary.feasible || !summary.stable) {
        assert_fails(bp_plan_check(plan, w->buckets, w->schedule), BP_ERR_UNSUPPORTED, NULL);
        return;
    }
    assert_ok(bp_plan_validate(plan));
    assert_ok(bp_plan_check(plan, w->buckets, w->schedule));
    assert_true(naive_check(plan, w));
    assert_roundtrip(plan, w);
}

/* What is live all the time has memory of its own under every policy. */
static void assert_state_persists(const bp_plan_role *role)
{
    assert_int_equal(role->copies, 0);
    assert_int_equal(role->persistent_bytes, role->bytes);
    assert_int_equal(role->bytes, role->lower_bound_bytes);
}

static void assert_max_holds(const world *w, uint32_t copies)
{
    static naive_requests all;
    naive_collect(w, &all);
    bp_plan *plan = make_max(w, copies);
    bp_plan_summary summary = summary_of(plan);
    uint32_t steps = (uint32_t)bp_schedule_step_count(w->schedule), most = 0;
    assert_plan_holds(plan, w);
    for (size_t r = 0; r < bp_plan_role_count(plan); r++) {
        bp_plan_role role = role_at(plan, r);
        if (role.role == BP_ROLE_STATE) {
            assert_state_persists(&role);
            continue;
        }
        uint32_t needed = naive_copies(&all, role.role, UINT64_MAX, steps);
        most = needed > most ? needed : most;
        if (needed == 0) { /* gradients in evaluation */
            assert_int_equal(role.bytes, 0);
            continue;
        }
        assert_int_equal(role.copies, copies == 0 ? needed : copies);
        assert_int_equal(role.bytes, role.copies * naive_set_bytes(&all, role.role));
        assert_int_equal(role.persistent_bytes + role.dynamic_bytes, 0);
        for (size_t b = 0; b < role.buffers; b++) {
            bp_plan_buffer buffer = buffer_at(plan, r, b);
            bool set_by_fits = false;
            for (size_t i = 0; i < all.count; i++) {
                const naive_request *request = &all.items[i];
                uint32_t tenants;
                if (request->role != role.role || request->dtype != buffer.dtype ||
                    naive_rank(&all, request) != buffer.rank)
                    continue;
                assert_int_equal(buffer.bytes, naive_class(&all, request, &tenants));
                assert_int_equal(buffer.tenants, tenants);
                set_by_fits = set_by_fits ||
                              (strcmp(request->unit_name, buffer.set_by_unit) == 0 &&
                               request->ordinal == buffer.set_by_ordinal && aligned(request->bytes) == buffer.bytes);
            }
            assert_true(set_by_fits);
            assert_int_equal(buffer.copies, role.copies);
        }
    }
    assert_int_equal(summary.feasible, copies == 0 || copies >= most);
    bp_plan_destroy(&plan);
}

static void assert_fixed_holds(const world *w, uint32_t copies, bp_fallback fallback)
{
    static naive_requests all, rest;
    naive_collect(w, &all);
    bp_plan *plan = make_plan(w, BP_POLICY_FIXED, copies, fallback);
    uint32_t steps = (uint32_t)bp_schedule_step_count(w->schedule), most = 0;
    bool any_rest = false;
    assert_plan_holds(plan, w);
    for (size_t r = 0; r < bp_plan_role_count(plan); r++) {
        bp_plan_role role = role_at(plan, r);
        if (role.role == BP_ROLE_STATE) {
            assert_state_persists(&role);
            continue;
        }
        uint64_t pooled = naive_pooled_units(&all, role.role), set = 0, persistent = 0;
        uint32_t needed = naive_copies(&all, role.role, pooled, steps), first_step;
        most = needed > most ? needed : most;
        if (needed == 0) {
            assert_int_equal(role.bytes, 0);
            continue;
        }
        rest.count = 0;
        /* The buffer of each position in a unit holds the largest padded bucket of that position. */
        uint64_t position_bytes[MOST_REQUESTS] = {0};
        int32_t last_unit = -1;
        size_t position = 0;
        for (size_t i = 0; i < all.count; i++) {
            const naive_request *request = &all.items[i];
            if (request->role != role.role)
                continue;
            position = request->unit == last_unit ? position + 1 : 0;
            last_unit = request->unit;
            uint64_t bytes = aligned(request->bytes);
            if (!(pooled >> request->unit & 1)) {
                rest.items[rest.count++] = *request;
                persistent += bytes;
            } else if (bytes > position_bytes[position]) {
                set += bytes - position_bytes[position];
                position_bytes[position] = bytes;
            }
        }
        any_rest = any_rest || rest.count > 0;
        /* The pool has a set for each unit that is live at once, pooled or not. */
        uint32_t by_default = needed > role.live_units ? needed : role.live_units;
        assert_int_equal(role.copies, copies == 0 ? by_default : copies);
        assert_int_equal(role.pool_bytes, role.copies * set);
        assert_int_equal(role.persistent_bytes, fallback == BP_FALLBACK_PERSISTENT ? persistent : 0);
        assert_int_equal(role.dynamic_bytes,
                         fallback == BP_FALLBACK_DYNAMIC ? naive_bound(&rest, steps, role.role, &first_step) : 0);
    }
    assert_int_equal(summary_of(plan).feasible, copies == 0 || copies >= most);
    if (summary_of(plan).feasible)
        assert_int_equal(summary_of(plan).stable, fallback == BP_FALLBACK_PERSISTENT || !any_rest);
    bp_plan_destroy(&plan);
}

static void assert_dynamic_holds(const world *w)
{
    bp_plan *plan = make_plan(w, BP_POLICY_DYNAMIC, 0, BP_FALLBACK_PERSISTENT);
    bp_plan_summary summary = summary_of(plan);
    assert_plan_holds(plan, w);
    assert_int_equal(summary.feasible, 1);
    assert_int_equal(summary.stable, 0);
    assert_int_equal(summary.copies, 0);
    assert_int_equal(summary.bytes, summary.lower_bound_bytes);
    assert_int_equal(bp_plan_assignment_count(plan), 0);
    bp_plan_destroy(&plan);
}

static void assert_all_policies_hold(const world *w)
{
    for (uint32_t copies = 0; copies <= 5; copies++) {
        assert_max_holds(w, copies);
        assert_fixed_holds(w, copies, BP_FALLBACK_PERSISTENT);
        assert_fixed_holds(w, copies, BP_FALLBACK_DYNAMIC);
    }
    assert_dynamic_holds(w);
}

/* ---- random tiny models -------------------------------------------------------------------------------------------- */

/* Units of 1 to 3 buckets, each of one of two sizes and two dtypes, sometimes padded further than its twin. */
static bp_model *random_model(uint32_t units)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_BF16, BP_DTYPE_FP32};
    static const uint64_t sizes[] = {100, 300};
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t buckets = 1 + random_below(3); buckets > 0; buckets--) {
            uint64_t numel = sizes[random_below(2)];
            add_bucket(model, unit, dtypes[random_below(2)], numel, numel + (random_below(3) == 0 ? 256 : 0));
        }
    }
    return model;
}

/* A valid recording: units are acquired and released at random, whole or bucket by bucket, each at least once. */
static void record_randomly(bp_model *model, bool by_bucket)
{
    size_t requests = 0;
    int32_t unit_of[MOST_REQUESTS], bucket_of[MOST_REQUESTS];
    bool live[MOST_REQUESTS] = {false}, used[MOST_REQUESTS] = {false};
    for (int32_t u = 0; u < (int32_t)bp_model_unit_count(model); u++) {
        int32_t ordinal = 0;
        for (size_t b = 0; b < bp_model_given_bucket_count(model); b++) {
            bp_given_bucket bucket = {.size = sizeof bucket};
            assert_ok(bp_model_given_bucket(model, b, &bucket));
            if (bucket.unit != u || (!by_bucket && ordinal > 0))
                continue;
            unit_of[requests] = u;
            bucket_of[requests++] = by_bucket ? ordinal++ : (ordinal++, -1);
        }
    }
    for (size_t events = 3 * requests + random_below(8); events > 0; events--) {
        size_t i = random_below((uint32_t)requests);
        live[i] = !live[i];
        used[i] = true;
        add_event(model, live[i], unit_of[i], bucket_of[i]);
    }
    for (size_t i = 0; i < requests; i++) {
        if (!used[i])
            add_event(model, live[i] = true, unit_of[i], bucket_of[i]);
        if (live[i])
            add_event(model, 0, unit_of[i], bucket_of[i]);
    }
}

static void test_brute_force_training(void **state)
{
    (void)state;
    seed(1);
    for (int i = 0; i < 600; i++) {
        world_options options = DEFAULTS;
        options.prefetch = random_below(4);
        options.grad_units = 1 + random_below(3);
        options.eval = random_below(8) == 0;
        world w = make_world(random_model(1 + random_below(4)), options);
        assert_all_policies_hold(&w);
        end_world(&w);
    }
}

static void test_brute_force_recorded(void **state)
{
    (void)state;
    seed(2);
    for (int i = 0; i < 600; i++) {
        bp_model *model = random_model(1 + random_below(6));
        record_randomly(model, false);
        world_options options = {.roles = PARAM, .recorded = 1};
        world w = make_world(model, options);
        assert_all_policies_hold(&w);
        end_world(&w);
    }
}

/* Buckets of a unit that live apart: whatever the planner makes of it, the plan must be right. */
static void test_recorded_buckets(void **state)
{
    (void)state;
    seed(3);
    for (int i = 0; i < 600; i++) {
        bp_model *model = random_model(1 + random_below(5));
        record_randomly(model, true);
        world_options options = {.roles = PARAM, .recorded = 1};
        world w = make_world(model, options);
        for (int fallback = BP_FALLBACK_PERSISTENT; fallback <= BP_FALLBACK_DYNAMIC; fallback++) {
            for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_MAX; policy++) {
                bp_plan *plan = make_plan(&w, (bp_policy)policy, 0, (bp_fallback)fallback);
                assert_int_equal(summary_of(plan).feasible, 1);
                assert_plan_holds(plan, &w);
                bp_plan_destroy(&plan);
            }
        }
        end_world(&w);
    }
}

/* ---- hand-made models ---------------------------------------------------------------------------------------------- */

static void for_all_prefetches(bp_model *(*make)(void), world_options options)
{
    for (options.prefetch = 0; options.prefetch <= 3; options.prefetch++) {
        world w = make_world(make(), options);
        assert_all_policies_hold(&w);
        end_world(&w);
    }
}

static bp_model *make_mixed(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 6; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, 900 + 100 * (u % 2), 1024 + 128 * (u % 3));
        if (u % 3 == 0)
            add_bucket(model, unit, BP_DTYPE_FP32, 50, 64);
        if (u % 2 == 0)
            add_bucket(model, unit, BP_DTYPE_BF16, 3000, 4096);
        add_bucket(model, unit, BP_DTYPE_BF16, 0, 0);
    }
    add_bucket(model, BP_OUTSIDE, BP_DTYPE_BF16, 100000, 0);
    return model;
}

static bp_model *make_frozen(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 5; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, 500 + u, 640);
        bp_given_bucket frozen = {.size = sizeof frozen,
                                  .name = "frozen",
                                  .unit = unit,
                                  .dtype = BP_DTYPE_BF16,
                                  .numel = 900 - u,
                                  .padded_numel = 1024,
                                  .frozen = 1};
        assert_ok(bp_model_add_bucket(model, &frozen));
    }
    return model;
}

static bp_model *make_all_frozen_unit(void)
{
    bp_model *model = make_frozen();
    bp_given_bucket frozen = {.size = sizeof frozen,
                              .unit = add_unit(model, "tower", BP_OUTSIDE),
                              .dtype = BP_DTYPE_BF16,
                              .numel = 70,
                              .frozen = 1};
    assert_ok(bp_model_add_bucket(model, &frozen));
    return model;
}

static bp_model *make_fp8(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 5; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, u == 3 ? BP_DTYPE_FP8_E5M2 : BP_DTYPE_FP8_E4M3, 4000 + u, 4352);
        add_bucket(model, unit, BP_DTYPE_BF16, 64, 0);
    }
    return model;
}

static bp_model *make_nested(void)
{
    bp_model *model = new_model();
    int32_t outer = add_unit(model, "outer", BP_OUTSIDE);
    int32_t inner = add_unit(model, "outer.inner", outer);
    int32_t deep = add_unit(model, "outer.inner.deep", inner), second = add_unit(model, "outer.second", outer);
    int32_t last = add_unit(model, "last", BP_OUTSIDE), holder = add_unit(model, "holder", BP_OUTSIDE);
    int32_t held = add_unit(model, "holder.held", holder);
    add_bucket(model, outer, BP_DTYPE_BF16, 500, 0);
    add_bucket(model, inner, BP_DTYPE_BF16, 300, 0);
    add_bucket(model, deep, BP_DTYPE_BF16, 300, 0);
    add_bucket(model, second, BP_DTYPE_FP32, 200, 0);
    add_bucket(model, last, BP_DTYPE_BF16, 700, 0);
    add_bucket(model, held, BP_DTYPE_BF16, 300, 0);
    return model;
}

static bp_model *make_repeated(void)
{
    bp_model *model = new_model();
    static const uint32_t order[] = {0, 3, 1, 3, 2, 3, 0};
    for (uint32_t u = 0; u < 4; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, u == 3 ? 900 : 400, 0);
        add_bucket(model, unit, BP_DTYPE_BF16, u == 2 ? 900 : 100, 0);
    }
    assert_ok(bp_model_set_order(model, order, sizeof order / sizeof *order));
    return model;
}

static void test_hand_made(void **state)
{
    (void)state;
    world_options options = DEFAULTS;
    for_all_prefetches(make_mixed, options);
    for_all_prefetches(make_frozen, options);
    for_all_prefetches(make_all_frozen_unit, options);
    for_all_prefetches(make_nested, options);
    for_all_prefetches(make_repeated, options);
    options.roles = PARAM | TRANSPOSE | GRAD;
    for_all_prefetches(make_fp8, options);
    options.roles = PARAM | GRAD | GRAD_COMM | STATE;
    options.grad_dtype = BP_DTYPE_FP32;
    options.grad_comm_dtype = BP_DTYPE_BF16;
    for_all_prefetches(make_mixed, options);
    for_all_prefetches(make_nested, options);
    options.grad_units = 4;
    for_all_prefetches(make_repeated, options);
    options.eval = 1;
    options.roles = PARAM | GRAD;
    for_all_prefetches(make_mixed, options);
}

/* A plan of real size, by the checker alone: the naive references are too slow. */
static void test_check_large(void **state)
{
    (void)state;
    seed(4);
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 300; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t b = 0; b <= u % 4; b++)
            add_bucket(model, unit, b == 3 ? BP_DTYPE_FP32 : BP_DTYPE_BF16, 1 + random_below(5000000), 0);
    }
    world w = make_world(model, DEFAULTS);
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_MAX; policy++) {
        bp_plan *plan = make_plan(&w, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_ok(bp_plan_check(plan, w.buckets, w.schedule));
        bp_plan_destroy(&plan);
    }
    end_world(&w);
}

/* ---- the policies' own rules --------------------------------------------------------------------------------------- */

static bp_plan_buffer find_buffer(const bp_plan *plan, size_t role, bp_buffer_kind kind, bp_dtype dtype, uint32_t rank)
{
    for (size_t b = 0; b < role_at(plan, role).buffers; b++) {
        bp_plan_buffer buffer = buffer_at(plan, role, b);
        if (buffer.kind == kind && buffer.dtype == dtype && buffer.rank == rank)
            return buffer;
    }
    fail_msg("no buffer of %s, rank %u", bp_dtype_name(dtype), rank);
    return (bp_plan_buffer){0};
}

static const world_options PARAM_ONLY = {.roles = PARAM, .prefetch = 1, .grad_units = 2};

static void test_max_ranks_by_unpadded(void **state)
{
    (void)state;
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    /* Ranked by padded elements, a's two buckets would change places and the classes be 4096 and 2048 bytes. */
    add_bucket(model, a, BP_DTYPE_BF16, 1000, 1024);
    add_bucket(model, a, BP_DTYPE_BF16, 900, 2048);
    add_bucket(model, b, BP_DTYPE_BF16, 1000, 1024);
    world w = make_world(model, PARAM_ONLY);
    bp_plan *plan = make_max(&w, 0);
    bp_plan_buffer first = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 0);
    bp_plan_buffer second = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 1);
    assert_int_equal(first.bytes, 2048);
    assert_int_equal(first.tenants, 2);
    assert_int_equal(second.bytes, 4096);
    assert_int_equal(second.tenants, 1);
    assert_string_equal(second.set_by_unit, "a");
    assert_int_equal(second.set_by_ordinal, 1);
    assert_int_equal(summary_of(plan).bytes, 2 * (2048 + 4096));
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_max_ties_by_larger_index(void **state)
{
    (void)state;
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    /* a's second bucket comes first: classes of 4096 and 2048 bytes. The other way round they were 4096 and 4096. */
    add_bucket(model, a, BP_DTYPE_BF16, 1000, 1024);
    add_bucket(model, a, BP_DTYPE_BF16, 1000, 2048);
    add_bucket(model, b, BP_DTYPE_BF16, 1000, 2048);
    world w = make_world(model, PARAM_ONLY);
    bp_plan *plan = make_max(&w, 0);
    bp_plan_buffer second = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 1);
    assert_int_equal(find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 0).bytes, 4096);
    assert_int_equal(second.bytes, 2048);
    assert_string_equal(second.set_by_unit, "a");
    assert_int_equal(second.set_by_ordinal, 0);
    assert_int_equal(summary_of(plan).bytes, 2 * (4096 + 2048));
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_max_fp8_is_uint8(void **state)
{
    (void)state;
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    add_bucket(model, a, BP_DTYPE_FP8_E4M3, 1000, 1024);
    add_bucket(model, b, BP_DTYPE_UINT8, 1000, 2048);
    add_bucket(model, b, BP_DTYPE_INT8, 10, 0);
    world w = make_world(model, PARAM_ONLY);
    bp_plan *plan = make_max(&w, 0);
    bp_plan_buffer shared = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_UINT8, 0);
    assert_int_equal(shared.bytes, 2048);
    assert_int_equal(shared.tenants, 2);
    assert_string_equal(shared.set_by_unit, "b");
    assert_int_equal(find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_INT8, 0).tenants, 1);
    assert_int_equal(assignment_at(plan, 0).dtype, BP_DTYPE_UINT8);
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* Kinds of units, a letter each, in order; 'x' 100 elements, 'y' 200, 'z' 300. */
static world world_of_kinds(const char *kinds)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; kinds[u] != '\0'; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, 100 * (uint64_t)(kinds[u] - 'x' + 1), 0);
    return make_world(model, PARAM_ONLY);
}

/* What fixed takes of x (512 aligned bytes), y (1024) and z (1280) with two copies. */
static void assert_fixed_bytes(const char *kinds, uint64_t pool, uint64_t persistent, uint64_t dynamic)
{
    world w = world_of_kinds(kinds);
    bp_plan *plan = make_plan(&w, BP_POLICY_FIXED, 2, BP_FALLBACK_PERSISTENT);
    assert_int_equal(role_at(plan, 0).pool_bytes, pool);
    assert_int_equal(role_at(plan, 0).persistent_bytes, persistent);
    assert_int_equal(summary_of(plan).bytes, pool + persistent);
    assert_int_equal(summary_of(plan).stable, 1);
    bp_plan_destroy(&plan);
    plan = make_plan(&w, BP_POLICY_FIXED, 2, BP_FALLBACK_DYNAMIC);
    assert_int_equal(role_at(plan, 0).pool_bytes, pool);
    assert_int_equal(role_at(plan, 0).dynamic_bytes, dynamic);
    assert_int_equal(summary_of(plan).bytes, pool + dynamic);
    assert_int_equal(summary_of(plan).stable, persistent == 0);
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_fixed_mode(void **state)
{
    (void)state;
    assert_fixed_bytes("xxxx", 2 * 512, 0, 0);
    assert_fixed_bytes("xyxy", 2 * 512, 2 * 1024, 1024); /* a tie: the first seen; y and y are never live together */
    assert_fixed_bytes("yxyx", 2 * 1024, 2 * 512, 512);
    assert_fixed_bytes("xyy", 2 * 1024, 512, 512);
    assert_fixed_bytes("xxyy", 2 * 512, 2 * 1024, 2 * 1024);
    assert_fixed_bytes("zyyxx", 2 * 1024, 1280 + 2 * 512, 1280);
    assert_fixed_bytes("zxy", 2 * 1280, 512 + 1024, 512 + 1024);
}

/* Padding does not tell units apart, and the pool's buffer is as large as the most padded one. */
static void test_fixed_ignores_padding(void **state)
{
    (void)state;
    bp_model *model = new_model();
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 1000, 1024);
    add_bucket(model, add_unit(model, "b", BP_OUTSIDE), BP_DTYPE_BF16, 1001, 1024);
    add_bucket(model, add_unit(model, "c", BP_OUTSIDE), BP_DTYPE_BF16, 1000, 4096);
    add_bucket(model, add_unit(model, "d", BP_OUTSIDE), BP_DTYPE_FP16, 1000, 1024);
    world w = make_world(model, PARAM_ONLY);
    bp_plan *plan = make_plan(&w, BP_POLICY_FIXED, 2, BP_FALLBACK_PERSISTENT);
    assert_int_equal(role_at(plan, 0).pool_bytes, 2 * 8192);
    assert_int_equal(role_at(plan, 0).persistent_bytes, 2 * 2048);
    bp_plan_buffer pooled = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 0);
    assert_string_equal(pooled.set_by_unit, "c");
    assert_int_equal(pooled.tenants, 2);
    assert_plan_holds(plan, &w);
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_infeasible(void **state)
{
    (void)state;
    world w = world_of_kinds("xxx");
    bp_plan *plan = make_max(&w, 1);
    bp_plan_summary summary = summary_of(plan);
    assert_int_equal(summary.feasible, 0);
    assert_int_equal(bp_plan_assignment_count(plan), 0);
    assert_non_null(strstr(summary.infeasible_because, "1"));
    assert_non_null(strstr(summary.infeasible_because, "2"));
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_UNSUPPORTED, summary.infeasible_because);
    bp_plan_destroy(&plan);
    plan = make_plan(&w, BP_POLICY_FIXED, 1, BP_FALLBACK_DYNAMIC);
    assert_int_equal(summary_of(plan).feasible, 0);
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_alignment(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    for (uint64_t alignment = 1; alignment <= 1 << 20; alignment *= 2) {
        bp_plan_config config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
        config.alignment = alignment;
        bp_plan *plan = NULL;
        assert_ok(bp_plan_create(w.buckets, w.schedule, &config, &plan));
        uint64_t z = (1200 + alignment - 1) / alignment * alignment, y = (800 + alignment - 1) / alignment * alignment;
        assert_int_equal(summary_of(plan).bytes, 2 * z);
        assert_int_equal(summary_of(plan).lower_bound_bytes, y + z);
        assert_int_equal(summary_of(plan).alignment, alignment);
        assert_ok(bp_plan_check(plan, w.buckets, w.schedule));
        bp_plan_destroy(&plan);
    }
    end_world(&w);
}

/* Units of many buckets with many ties, sorted by more than the few that are compared one by one. */
static void test_max_many_buckets(void **state)
{
    (void)state;
    seed(8);
    for (int i = 0; i < 60; i++) {
        bp_model *model = new_model();
        for (uint32_t u = 0; u < 3; u++) {
            int32_t unit = add_numbered_unit(model, u);
            for (uint32_t b = random_below(60); b > 0; b--) {
                uint64_t numel = 100 + random_below(i % 2 == 0 ? 4 : 1000);
                add_bucket(model, unit, random_below(4) == 0 ? BP_DTYPE_FP32 : BP_DTYPE_BF16, numel,
                           numel + 128 * random_below(3));
            }
            add_bucket(model, unit, BP_DTYPE_BF16, 100, 0);
        }
        world w = make_world(model, PARAM_ONLY);
        assert_max_holds(&w, 0);
        assert_max_holds(&w, 2);
        end_world(&w);
    }
}

/* More copies than are used cost bytes, and nothing else: no memory, and no order. */
static void test_many_copies(void **state)
{
    (void)state;
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 3; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint64_t b = 0; b < 5; b++)
            add_bucket(model, unit, BP_DTYPE_BF16, 100 + 7 * u + b, 0);
    }
    world w = make_world(model, PARAM_ONLY);
    static const uint32_t copies[] = {1u << 10, (1u << 30) - 1, 1u << 30, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        bp_plan *plan = make_max(&w, copies[i]);
        assert_int_equal(summary_of(plan).bytes, UINT64_C(5) * 256 * copies[i]);
        assert_ok(bp_plan_check(plan, w.buckets, w.schedule));
        bp_plan_destroy(&plan);
    }
    end_world(&w);
}

/* ---- properties ---------------------------------------------------------------------------------------------------- */

typedef struct tiny_unit {
    uint32_t buckets;
    uint64_t numel[3];
    bp_dtype dtype[3];
} tiny_unit;

static void draw_units(tiny_unit *units, uint32_t count)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_BF16, BP_DTYPE_FP32, BP_DTYPE_UINT8};
    for (uint32_t u = 0; u < count; u++) {
        units[u].buckets = 1 + random_below(3);
        for (uint32_t b = 0; b < units[u].buckets; b++) {
            units[u].numel[b] = 256 * (1 + random_below(6));
            units[u].dtype[b] = dtypes[random_below(3)];
        }
    }
}

static uint64_t max_bytes_of(const tiny_unit *units, uint32_t count, uint64_t scale, uint32_t copies)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < count; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t b = 0; b < units[u].buckets; b++)
            add_bucket(model, unit, units[u].dtype[b], units[u].numel[b] * scale, 0);
    }
    world w = make_world(model, DEFAULTS);
    bp_plan *plan = make_max(&w, copies);
    uint64_t bytes = summary_of(plan).bytes;
    bp_plan_destroy(&plan);
    end_world(&w);
    return bytes;
}

static void test_max_properties(void **state)
{
    (void)state;
    seed(5);
    for (int i = 0; i < 300; i++) {
        tiny_unit units[6];
        uint32_t count = 2 + random_below(4);
        draw_units(units, count + 1);
        assert_true(max_bytes_of(units, count + 1, 1, 0) >= max_bytes_of(units, count, 1, 0));
        assert_true(max_bytes_of(units, count + 1, 1, 3) >= max_bytes_of(units, count, 1, 3));
        uint64_t bytes = max_bytes_of(units, count, 1, 2);
        assert_int_equal(max_bytes_of(units, count, 7, 2), 7 * bytes);
        for (uint32_t u = count; u > 1; u--) {
            uint32_t other = random_below(u);
            tiny_unit moved = units[other];
            units[other] = units[u - 1];
            units[u - 1] = moved;
        }
        assert_int_equal(max_bytes_of(units, count, 1, 2), bytes);
    }
}

static void test_determinism(void **state)
{
    (void)state;
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_MAX; policy++) {
        world w = make_world(make_mixed(), DEFAULTS), again = make_world(make_mixed(), DEFAULTS);
        bp_plan *a = make_plan(&w, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        bp_plan *b = make_plan(&again, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_same_fingerprint(a, b, true);
        assert_ok(bp_plan_set_model(b, "another name"));
        assert_ok(bp_plan_set_option(b, "dp", "8"));
        assert_same_fingerprint(a, b, true);
        end_world(&w);
        end_world(&again);
        /* The plan keeps nothing of its inputs. */
        assert_ok(bp_plan_validate(a));
        bp_plan_destroy(&a);
        bp_plan_destroy(&b);
    }
}

static void test_fingerprint_differs(void **state)
{
    (void)state;
    world w = make_world(make_fp8(), DEFAULTS);
    bp_plan *plan = make_max(&w, 3);
    for (int kind = 0; kind < 7; kind++) {
        edit e = NO_EDIT;
        e.index = 1;
        e.with = assignment_at(plan, 1);
        if (kind == 0)
            e.more_slab_bytes = ALIGNMENT;
        else if (kind == 1)
            e.with.offset += e.with.offset == 0 ? ALIGNMENT : -(uint64_t)ALIGNMENT;
        else if (kind == 2)
            e.with.bytes -= 1;
        else if (kind == 3)
            e.with.dtype = BP_DTYPE_FP16;
        else if (kind == 4)
            e.with.unit = "elsewhere";
        else if (kind == 5)
            e.with.bucket = "renamed";
        else
            e.with.role = BP_ROLE_STATE;
        bp_plan *other = NULL;
        assert_ok(rebuild(plan, &e, &other));
        assert_same_fingerprint(plan, other, false);
        bp_plan_destroy(&other);
    }
    /* without its predecessors a request waits for nobody: that is another plan */
    edit e = NO_EDIT;
    e.index = 0;
    while (assignment_at(plan, e.index).predecessor_count == 0)
        e.index++;
    e.with = assignment_at(plan, e.index);
    e.with.predecessor_count = 0;
    bp_plan *other = NULL;
    assert_ok(rebuild(plan, &e, &other));
    assert_same_fingerprint(plan, other, false);
    bp_plan_destroy(&other);
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_options(void **state)
{
    (void)state;
    world w = world_of_kinds("xy");
    bp_plan *plan = make_max(&w, 0);
    const char *key, *value;
    assert_ok(bp_plan_set_option(plan, "dp", "8"));
    assert_ok(bp_plan_set_option(plan, "ep", "2"));
    assert_ok(bp_plan_set_option(plan, "dp", "16"));
    assert_int_equal(bp_plan_option_count(plan), 2);
    assert_ok(bp_plan_option(plan, 0, &key, &value));
    assert_string_equal(key, "dp");
    assert_string_equal(value, "16");
    assert_ok(bp_plan_set_option(plan, "dp", NULL));
    assert_int_equal(bp_plan_option_count(plan), 1);
    assert_ok(bp_plan_option(plan, 0, &key, &value));
    assert_string_equal(key, "ep");
    assert_fails(bp_plan_option(plan, 1, &key, &value), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_ok(bp_plan_set_model(plan, "m"));
    assert_string_equal(bp_plan_model(plan), "m");
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* ---- the checker finds what is broken ------------------------------------------------------------------------------ */

/* A rebuilt plan that differs by `e` is refused, by the builder or by the check. */
static void assert_refused(const bp_plan *plan, const world *w, const edit *e, const char *words)
{
    bp_plan *broken = NULL;
    bp_status status = rebuild(plan, e, &broken);
    if (status == BP_OK)
        status = bp_plan_check(broken, w->buckets, w->schedule);
    assert_fails(status, BP_ERR_MISMATCH, words);
    bp_plan_destroy(&broken);
}

static void test_check_refuses_rebuilt(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_plan *plan = make_max(&w, 0);
    assert_int_equal(bp_plan_assignment_count(plan), 3);
    edit e = NO_EDIT;
    e.skip = 1;
    /* Predecessors are indices: with assignment 1 gone they no longer fit, whichever is found first. */
    assert_refused(plan, &w, &e, "u");
    const bp_assignment original = assignment_at(plan, 1);
    e = (edit){.skip = SIZE_MAX, .index = 1, .with = original};
    e.with.offset = assignment_at(plan, 0).offset;
    assert_refused(plan, &w, &e, "u1");
    e.with = original;
    e.with.bytes -= 4;
    assert_refused(plan, &w, &e, "796");
    e.with.bytes += 8;
    assert_refused(plan, &w, &e, "804");
    e.with = original;
    e.with.offset += 4;
    assert_refused(plan, &w, &e, "u1");
    e.with.offset = slab_at(plan, 0).bytes - ALIGNMENT;
    assert_refused(plan, &w, &e, "u1");
    e.with = original;
    e.with.dtype = BP_DTYPE_INT32;
    assert_refused(plan, &w, &e, "int32");
    e.with = original;
    e.with.role = BP_ROLE_GRAD;
    assert_refused(plan, &w, &e, "grad");
    e.with = original;
    e.with.unit = "nobody";
    assert_refused(plan, &w, &e, "nobody");
    e.with.unit = "u0";
    assert_refused(plan, &w, &e, "u0");
    e.with = original;
    e.with.ordinal = 7;
    assert_refused(plan, &w, &e, "7");
    e.with = original;
    e.with.bucket = "wrong";
    assert_refused(plan, &w, &e, "wrong");
    e.with = original;
    e.with.slab = 1;
    assert_refused(plan, &w, &e, "u1");
    /* u0 and u2 share a buffer and wait for each other, so u0's list must not be empty. */
    e = (edit){.skip = SIZE_MAX, .index = 0, .with = assignment_at(plan, 0)};
    assert_int_equal(e.with.predecessor_count, 1);
    e.with.predecessor_count = 0;
    assert_refused(plan, &w, &e, "predecessor");
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* What the builder would refuse reaches the checker only in a plan that is changed in place. */
static void test_check_refuses_changed(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_plan *plan = make_max(&w, 0);
    bp_assignment_data *a = &plan->assignments[1];
    const bp_assignment_data original = *a;
    a->offset += 1;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "multiple");
    a->offset = slab_at(plan, 0).bytes;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "leave slab 0");
    a->offset = UINT64_MAX - ALIGNMENT + 1;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "leave slab 0");
    *a = original;
    a->slab = 9;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "slab 9");
    *a = original;
    a->unit = plan->assignments[0].unit;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u0", "same request");
    *a = original;
    uint32_t predecessor = plan->predecessors[0];
    plan->predecessors[0] = 3;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "predecessor 3");
    plan->predecessors[0] = predecessor;
    plan->summary.alignment = 0;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "alignment");
    plan->summary.alignment = ALIGNMENT;
    plan->assignment_count = 2;
    plan->predecessor_count = 0;
    plan->assignments[0].first_predecessor = plan->assignments[1].first_predecessor = 0;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u2", "no address");
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* Moves and list entries changed at random: the checker says what the naive one says. The exception are lists in which a
 * predecessor's use before its latest does: rare, and refused by the checker. */
static void test_check_agrees_with_naive(void **state)
{
    (void)state;
    seed(6);
    uint32_t refused = 0, accepted = 0, stricter = 0;
    for (int i = 0; i < 3000; i++) {
        bp_model *model = random_model(2 + random_below(4));
        bool recorded = random_below(2) == 0;
        world_options options = DEFAULTS;
        options.prefetch = random_below(3);
        if (recorded) {
            options = (world_options){.roles = PARAM, .recorded = 1};
            record_randomly(model, random_below(2) == 0);
        }
        world w = make_world(model, options);
        bp_plan *plan = make_max(&w, random_below(2) == 0 ? 0 : 6);
        if (!summary_of(plan).feasible) {
            bp_plan_destroy(&plan);
            end_world(&w);
            continue;
        }
        for (uint32_t changes = random_below(4); changes > 0; changes--) {
            size_t index = random_below((uint32_t)plan->assignment_count);
            bp_assignment_data *a = &plan->assignments[index];
            uint64_t room = plan->slabs[a->slab].bytes - aligned(a->bytes);
            switch (random_below(4)) {
            case 0: a->offset = random_below((uint32_t)(room / ALIGNMENT) + 1) * (uint64_t)ALIGNMENT; break;
            case 1:
                if (plan->predecessor_count > 0)
                    plan->predecessors[random_below((uint32_t)plan->predecessor_count)] = (uint32_t)index;
                break;
            case 2:
                if (plan->predecessor_count > 0) /* any other one may still do, by what it waits for itself */
                    plan->predecessors[random_below((uint32_t)plan->predecessor_count)] =
                        random_below((uint32_t)plan->assignment_count);
                break;
            default: a->offset = plan->assignments[random_below((uint32_t)plan->assignment_count)].offset; break;
            }
        }
        bool good = naive_check(plan, &w);
        bp_status status = bp_plan_check(plan, w.buckets, w.schedule);
        bool strict = good && status == BP_ERR_MISMATCH && strstr(bp_error_detail(), "is no predecessor") != NULL;
        stricter += strict;
        if (status != (good ? BP_OK : BP_ERR_MISMATCH) && !strict)
            fail_msg("case %d: naive says %d, bp_plan_check %s: %s", i, good, bp_status_name(status),
                     bp_error_detail());
        refused += !good;
        accepted += good;
        bp_plan_destroy(&plan);
        end_world(&w);
    }
    assert_true(refused > 500 && accepted > 500 && stricter < 5);
}

/* Each predecessor is needed: lists are not longer than the order asks for. */
static void test_predecessors_are_minimal(void **state)
{
    (void)state;
    seed(7);
    for (int i = 0; i < 100; i++) {
        bp_model *model = random_model(2 + random_below(4));
        world_options options = DEFAULTS;
        if (i % 2 == 0) {
            options = (world_options){.roles = PARAM, .recorded = 1};
            record_randomly(model, false);
        }
        world w = make_world(model, options);
        bp_plan *plan = make_max(&w, 0);
        for (size_t a = 0; a < bp_plan_assignment_count(plan); a++) {
            const uint32_t *first;
            size_t count = bp_predecessors_of(plan, a, &first);
            for (size_t k = 0; k < count; k++) {
                uint32_t *entry = &plan->predecessors[(size_t)(first - plan->predecessors) + k], kept = *entry;
                assert_int_not_equal(kept, a);
                for (size_t other = 0; other < k; other++)
                    assert_int_not_equal(kept, first[other]);
                *entry = (uint32_t)a;
                assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "predecessor");
                *entry = kept;
            }
        }
        bp_plan_destroy(&plan);
        end_world(&w);
    }
}

/* A plan of three units, "u" and "r" in the same bytes, that is live by `events` ("u" acquires, "U" releases); r waits for p
 * only, and p for u. */
static bp_status check_chain(const char *events)
{
    static const char *const names[] = {"u", "p", "r"};
    bp_model *model = new_model();
    for (int32_t i = 0; i < 3; i++)
        add_bucket(model, add_unit(model, names[i], BP_OUTSIDE), BP_DTYPE_UINT8, ALIGNMENT, 0);
    for (; *events != '\0'; events++)
        add_event(model, *events >= 'a', (int32_t)(strchr("uprUPR", *events) - "uprUPR") % 3, -1);
    world_options options = {.roles = PARAM, .recorded = 1};
    world w = make_world(model, options);
    bp_plan_summary summary = {.size = sizeof summary,
                               .policy = BP_POLICY_MAX,
                               .copies = 2,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = ALIGNMENT,
                               .bytes = 2 * ALIGNMENT};
    bp_plan_slab slab = {.size = sizeof slab, .bytes = 2 * ALIGNMENT, .group = "param"};
    bp_plan_builder *builder = NULL;
    bp_plan *plan = NULL;
    assert_ok(bp_plan_builder_create(&summary, &builder));
    assert_ok(bp_plan_builder_add_slab(builder, &slab));
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t predecessor = (i + 2) % 3;
        bp_assignment a = {.size = sizeof a,
                           .unit = names[i],
                           .dtype = BP_DTYPE_UINT8,
                           .bytes = ALIGNMENT,
                           .offset = i == 1 ? ALIGNMENT : 0,
                           .predecessors = &predecessor,
                           .predecessor_count = 1};
        assert_ok(bp_plan_builder_add_assignment(builder, &a));
    }
    assert_ok(bp_plan_builder_finish(&builder, &plan));
    bp_status status = bp_plan_check(plan, w.buckets, w.schedule);
    assert_int_equal(status == BP_OK, naive_check(plan, &w));
    bp_plan_destroy(&plan);
    end_world(&w);
    return status;
}

/* A predecessor passes on what it waited for only if it had begun after that and ended before the one that waits. */
static void test_check_chains(void **state)
{
    (void)state;
    assert_ok(check_chain("uUpPrR"));
    assert_fails(check_chain("uUprRP"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("uUprPR"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("upPUrR"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("pPuUrR"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("urURpP"), BP_ERR_MISMATCH, "r/", "u/", "both hold", "step 1"); /* for a single step */
    assert_fails(check_chain("urRUpP"), BP_ERR_MISMATCH, "r/", "u/", "both hold");
}

static void test_check_other_buckets(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), longer = world_of_kinds("xyzx"), other = world_of_kinds("xyy");
    bp_plan *plan = make_max(&w, 0);
    assert_fails(bp_plan_check(plan, w.buckets, longer.schedule), BP_ERR_INVALID_ARGUMENT, "3", "4");
    assert_fails(bp_plan_check(plan, longer.buckets, longer.schedule), BP_ERR_MISMATCH, "u3");
    assert_fails(bp_plan_check(plan, other.buckets, other.schedule), BP_ERR_MISMATCH, "u2", "1200", "800");
    assert_fails(bp_plan_check(NULL, w.buckets, w.schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_check(plan, NULL, w.schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_check(plan, w.buckets, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_plan_destroy(&plan);
    end_world(&w);
    end_world(&longer);
    end_world(&other);
}

/* ---- schedules, which all of the above takes as given -------------------------------------------------------------- */

/* Up to two intervals; touching ones are one, and those that end where they begin are none. */
static void assert_intervals(const world *w, size_t request, uint32_t begin, uint32_t end, uint32_t begin_again,
                             uint32_t end_again)
{
    bp_interval expected[2];
    size_t expected_count = 0, count;
    if (begin < end)
        expected[expected_count++] = (bp_interval){begin, end};
    if (begin_again < end_again && expected_count > 0 && begin_again <= end)
        expected[0].end = end_again;
    else if (begin_again < end_again)
        expected[expected_count++] = (bp_interval){begin_again, end_again};
    const bp_interval *intervals = bp_schedule_intervals(w->schedule, request, &count);
    assert_int_equal(count, expected_count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(intervals[i].begin, expected[i].begin);
        assert_int_equal(intervals[i].end, expected[i].end);
    }
}

/* The table of docs/schedules.md. Requests are ordered by unit, then role. */
static void assert_training_step(uint32_t n, world_options options)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < n; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP8_E4M3, 10, 0);
    world w = make_world(model, options);
    uint32_t p = options.prefetch, g = options.grad_units, steps = options.eval ? n : 2 * n;
    bool transposes = options.roles & TRANSPOSE && !options.eval;
    assert_int_equal(bp_schedule_step_count(w.schedule), steps);
    size_t request = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t own = 2 * n - 1 - k; /* the backward step */
        uint32_t forward = k > p ? k - p : 0, backward = own > n + p ? own - p : n;
        uint32_t again = options.eval ? 0 : own + 1, drained = own + g < 2 * n ? own + g : 2 * n;
        assert_intervals(&w, request++, forward, k + 1, backward, transposes ? 0 : again);
        if (options.roles & TRANSPOSE)
            assert_intervals(&w, request++, 0, 0, backward, again);
        assert_intervals(&w, request++, 0, 0, own, options.eval ? 0 : drained);
        assert_intervals(&w, request++, 0, steps, 0, 0); /* state */
    }
    assert_int_equal(bp_buckets_request_count(w.buckets), request);
    for (uint32_t i = 0; i < steps; i++) {
        bp_step step = {.size = sizeof step};
        assert_ok(bp_schedule_step(w.schedule, i, &step));
        assert_int_equal(step.phase, i < n ? BP_PHASE_FORWARD : BP_PHASE_BACKWARD);
        assert_int_equal(step.unit, i < n ? i : 2 * n - 1 - i);
    }
    end_world(&w);
}

static void test_training_intervals(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 6; n++) {
        for (uint32_t prefetch = 0; prefetch <= 7; prefetch++) {
            for (uint32_t grad_units = 1; grad_units <= 7; grad_units++) {
                world_options options = {PARAM | GRAD | STATE, prefetch, grad_units, prefetch % 2, 0, 0, 0};
                assert_training_step(n, options);
                options.eval = 0;
                assert_training_step(n, options);
                options.roles |= TRANSPOSE;
                assert_training_step(n, options);
            }
        }
    }
}

/* "outer" holds "inner", and both run before "last": steps 0 to 2 forward, 3 to 5 backward. */
static void test_nested_intervals(void **state)
{
    (void)state;
    bp_model *model = new_model();
    int32_t outer = add_unit(model, "outer", BP_OUTSIDE), inner = add_unit(model, "inner", outer);
    int32_t last = add_unit(model, "last", BP_OUTSIDE);
    add_bucket(model, outer, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, inner, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, last, BP_DTYPE_BF16, 1, 0);
    world_options options = PARAM_ONLY;
    options.prefetch = 0;
    world w = make_world(model, options);
    assert_int_equal(bp_schedule_step_count(w.schedule), 6);
    assert_intervals(&w, 0, 0, 2, 4, 6);
    assert_intervals(&w, 1, 1, 2, 4, 5);
    assert_intervals(&w, 2, 2, 3, 3, 4);
    end_world(&w);
}

static void test_recorded_intervals(void **state)
{
    (void)state;
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    add_bucket(model, a, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, a, BP_DTYPE_BF16, 2, 0);
    add_bucket(model, b, BP_DTYPE_BF16, 1, 0);
    add_event(model, 1, a, -1);
    add_event(model, 1, b, -1);
    add_event(model, 0, a, 0);
    add_event(model, 0, b, 0);
    add_event(model, 0, a, 1);
    add_event(model, 1, a, 0);
    add_event(model, 0, a, 0);
    world_options options = {.roles = PARAM, .recorded = 1};
    world w = make_world(model, options);
    assert_int_equal(bp_schedule_step_count(w.schedule), 7);
    assert_intervals(&w, 0, 0, 2, 5, 6);
    assert_intervals(&w, 1, 0, 4, 0, 0);
    assert_intervals(&w, 2, 1, 3, 0, 0);
    end_world(&w);
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

static void test_plan_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), other = world_of_kinds("xy");
    bp_plan *const untouched = (bp_plan *)&w;
    bp_plan *plan = untouched;
    bp_plan_config config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    assert_fails(bp_plan_create(NULL, w.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(w.buckets, NULL, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(w.buckets, w.schedule, NULL, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(w.buckets, other.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    config.alignment = 3;
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "3");
    config.alignment = 0;
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "0");
    config.alignment = UINT64_C(1) << 63;
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    config.alignment = ALIGNMENT;
    config.policy = (bp_policy)9;
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "9");
    config.policy = BP_POLICY_FIXED;
    config.fallback = (bp_fallback)9;
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "9");
    config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    config.size = 8;
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_ptr_equal(plan, untouched);
    plan = make_max(&w, 0);
    assert_fails(bp_plan_fingerprint(NULL, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_plan_role role = {.size = sizeof role};
    bp_plan_buffer buffer = {.size = sizeof buffer};
    bp_assignment assignment = {.size = sizeof assignment};
    bp_plan_slab slab = {.size = sizeof slab};
    bp_plan_witness witness = {.size = sizeof witness};
    assert_fails(bp_plan_role_get(plan, 1, &role), BP_ERR_INVALID_ARGUMENT, "1");
    assert_fails(bp_plan_buffer_get(plan, 0, 1, &buffer), BP_ERR_INVALID_ARGUMENT, "1");
    assert_fails(bp_plan_buffer_get(plan, 5, 0, &buffer), BP_ERR_INVALID_ARGUMENT, "5");
    assert_fails(bp_plan_assignment_get(plan, 3, &assignment), BP_ERR_INVALID_ARGUMENT, "3");
    assert_fails(bp_plan_slab_get(plan, 1, &slab), BP_ERR_INVALID_ARGUMENT, "1");
    assert_fails(bp_plan_witness_get(plan, 0, 2, &witness), BP_ERR_INVALID_ARGUMENT, "2");
    assert_int_equal(bp_plan_witness_count(plan, 7), 0);
    bp_plan_destroy(&plan);
    assert_null(plan);
    bp_plan_destroy(&plan);
    bp_plan_destroy(NULL);
    end_world(&w);
    end_world(&other);
}

static void test_policy_names(void **state)
{
    (void)state;
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_MAX; policy++) {
        bp_policy read = (bp_policy)0;
        assert_ok(bp_policy_parse(bp_policy_name((bp_policy)policy), &read));
        assert_int_equal(read, policy);
    }
    assert_string_equal(bp_policy_name(BP_POLICY_MAX), "max");
    bp_policy read = BP_POLICY_FIXED;
    assert_fails(bp_policy_parse("maximal", &read), BP_ERR_INVALID_ARGUMENT, "maximal", "dynamic", "fixed", "max");
    assert_fails(bp_policy_parse(NULL, &read), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_int_equal(read, BP_POLICY_FIXED);
}

static void test_bucket_errors(void **state)
{
    (void)state;
    bp_model *model = new_model();
    bp_buckets *const untouched = (bp_buckets *)&model;
    bp_buckets *buckets = untouched;
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "empty");
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 10, 0);
    config.dp = 0;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "dp");
    config.dp = 6;
    config.ep = 4;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "6", "4");
    config.ep = 0;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "ep");
    config.ep = 1;
    config.bucketing = (bp_bucketing)44;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "44");
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = (bp_padding)45;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "45");
    config.padding = BP_PADDING_FLAT;
    config.flat_alignment = 0;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "flat_alignment");
    config.flat_alignment = UINT64_MAX / 2;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_OVERFLOW, "a");
    config.padding = BP_PADDING_GIVEN;
    assert_fails(bp_buckets_create(NULL, &config, &buckets), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_buckets_create(model, NULL, &buckets), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_buckets_create(model, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_ptr_equal(buckets, untouched);
    bp_given_bucket wrong = {.size = sizeof wrong, .dtype = BP_DTYPE_BF16, .numel = 10, .padded_numel = 9};
    assert_fails(bp_model_add_bucket(model, &wrong), BP_ERR_INVALID_ARGUMENT, "9", "10");
    bp_model_destroy(&model);
}

/* Buckets outside units and empty ones leave nothing to place. */
static void test_nothing_to_place(void **state)
{
    (void)state;
    bp_model *model = new_model();
    add_bucket(model, BP_OUTSIDE, BP_DTYPE_BF16, 10, 0);
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 0, 0);
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    bp_buckets *buckets = NULL;
    assert_ok(bp_buckets_create(model, &config, &buckets));
    bp_schedule_config timing;
    assert_ok(bp_schedule_config_init(&timing, sizeof timing));
    bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_create_training(buckets, &timing, &schedule);
    if (status == BP_OK) {
        bp_plan_config how = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
        bp_plan *plan = NULL;
        status = bp_plan_create(buckets, schedule, &how, &plan);
        assert_null(plan);
    }
    assert_fails(status, BP_ERR_INVALID_ARGUMENT, NULL);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

static void test_overflow(void **state)
{
    (void)state;
    /* Two buckets of 2^60 elements, whatever they are of. */
    for (int dtype = BP_DTYPE_FP64; dtype < BP_DTYPE_COUNT; dtype++) {
        bp_model *model = new_model();
        int32_t unit = add_unit(model, "a", BP_OUTSIDE);
        bp_given_bucket bucket = {
            .size = sizeof bucket, .unit = unit, .dtype = (bp_dtype)dtype, .numel = UINT64_C(1) << 60};
        bp_status status = bp_model_add_bucket(model, &bucket);
        if (status == BP_OK)
            status = bp_model_add_bucket(model, &bucket);
        assert_fails(status, BP_ERR_OVERFLOW, NULL);
        bp_model_destroy(&model);
    }
    /* Padding that no single bucket makes too large, and copies of it that are. */
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 20; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP64, 1 + u, UINT64_C(1) << 56);
    world w = make_world(model, PARAM_ONLY);
    bp_plan *plan = make_plan(&w, BP_POLICY_MAX, 31, BP_FALLBACK_PERSISTENT);
    assert_int_equal(summary_of(plan).bytes, UINT64_C(31) << 59);
    assert_ok(bp_plan_check(plan, w.buckets, w.schedule));
    bp_plan_destroy(&plan);
    static const uint32_t too_many[] = {32, 33, 1u << 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof too_many / sizeof *too_many; i++) {
        bp_plan_config config = plan_config(BP_POLICY_MAX, too_many[i], BP_FALLBACK_PERSISTENT);
        assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    }
    end_world(&w);
    /* Persistent units, live sums and roles that are too large together only. */
    model = new_model();
    for (uint32_t u = 0; u < 40; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP64, 1 + u, UINT64_C(1) << 56);
    w = make_world(model, PARAM_ONLY);
    bp_plan_config config = plan_config(BP_POLICY_FIXED, 0, BP_FALLBACK_PERSISTENT);
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    end_world(&w);
    world_options options = {.roles = STATE, .prefetch = 1, .grad_units = 2};
    model = new_model();
    for (uint32_t u = 0; u < 40; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP64, 1 + u, UINT64_C(1) << 56);
    w = make_world(model, options);
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_MAX; policy++) {
        config = plan_config((bp_policy)policy, 0, BP_FALLBACK_DYNAMIC);
        assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    }
    assert_null(plan);
    end_world(&w);
    model = new_model();
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_FP64, 1, UINT64_C(1) << 57);
    options.roles = PARAM | GRAD;
    w = make_world(model, options);
    config = plan_config(BP_POLICY_MAX, 8, BP_FALLBACK_PERSISTENT);
    assert_fails(bp_plan_create(w.buckets, w.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    end_world(&w);
}

static void test_training_schedule_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xy");
    bp_schedule_config config;
    bp_schedule *schedule = NULL;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.grad_units = 0;
    assert_fails(bp_schedule_create_training(w.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "grad_units");
    config.grad_units = 1;
    assert_fails(bp_schedule_create_training(NULL, &config, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_training(w.buckets, NULL, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_training(w.buckets, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(schedule);
    config.prefetch = UINT32_MAX;
    config.grad_units = UINT32_MAX;
    assert_ok(bp_schedule_create_training(w.buckets, &config, &schedule));
    size_t count;
    const bp_interval *intervals = bp_schedule_intervals(schedule, 0, &count);
    assert_int_equal(count, 2); /* the step has a forward and a backward, and memory is released between them */
    assert_int_equal(intervals[0].begin, 0);
    assert_null(bp_schedule_intervals(schedule, 99, &count));
    assert_int_equal(count, 0);
    bp_schedule_destroy(&schedule);
    end_world(&w);
}

/* Events of two units "alpha" (two buckets) and "beta": "A" acquires alpha, "a" releases it, "B" and "b" likewise beta,
 * "0" and "1" acquire a bucket of alpha, "z" and "o" release them, "9" acquires one that does not exist. */
static void assert_recording_fails(const char *events, const char *position, const char *name)
{
    bp_model *model = new_model();
    int32_t alpha = add_unit(model, "alpha", BP_OUTSIDE), beta = add_unit(model, "beta", BP_OUTSIDE);
    add_bucket(model, alpha, BP_DTYPE_BF16, 10, 0);
    add_bucket(model, alpha, BP_DTYPE_BF16, 20, 0);
    add_bucket(model, beta, BP_DTYPE_BF16, 10, 0);
    for (; *events != '\0'; events++) {
        uint32_t acquire = *events == 'A' || *events == 'B' || (*events >= '0' && *events <= '9');
        int32_t unit = *events == 'B' || *events == 'b' ? beta : alpha;
        int32_t bucket = *events == '0' || *events == 'z'   ? 0
                         : *events == '1' || *events == 'o' ? 1
                         : *events == '9'                   ? 9
                                                            : -1;
        add_event(model, acquire, unit, bucket);
    }
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.roles = PARAM;
    bp_buckets *buckets = NULL;
    bp_schedule *schedule = NULL;
    assert_ok(bp_buckets_create(model, &config, &buckets));
    bp_status status = bp_schedule_create_recorded(model, buckets, &schedule);
    if (name == NULL)
        assert_ok(status);
    else if (*position == '\0')
        assert_fails(status, BP_ERR_SCHEDULE, name);
    else
        assert_fails(status, BP_ERR_SCHEDULE, position, name);
    assert_int_equal(status == BP_OK, schedule != NULL);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

static void test_recorded_schedule_errors(void **state)
{
    (void)state;
    assert_recording_fails("ABab", "", NULL);
    assert_recording_fails("A0", "event 1", "alpha");
    assert_recording_fails("01BzobAa", "", NULL);
    assert_recording_fails("Bab", "event 1", "alpha");
    assert_recording_fails("ABaba", "event 4", "alpha");
    assert_recording_fails("ABB", "event 2", "beta");
    assert_recording_fails("AB1", "event 2", "alpha");
    assert_recording_fails("ABa", "event 1", "beta");
    assert_recording_fails("AB9", "event 2", "alpha");
    assert_recording_fails("Aa", "", "beta");
    assert_recording_fails("0Bzb", "", "alpha");
    bp_model *model = new_model();
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 10, 0);
    assert_fails(try_event(model, 1, 1, -1), BP_ERR_INVALID_ARGUMENT, "1");
    assert_fails(try_event(model, 1, -1, -1), BP_ERR_INVALID_ARGUMENT, "-1");
    world w = make_world(model, PARAM_ONLY);
    bp_schedule *schedule = NULL;
    assert_fails(bp_schedule_create_recorded(w.model, w.buckets, &schedule), BP_ERR_INVALID_ARGUMENT, "event");
    assert_fails(bp_schedule_create_recorded(NULL, w.buckets, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_recorded(w.model, NULL, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(schedule);
    end_world(&w);
}

static void test_builder_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_plan *plan = make_max(&w, 0), *out = NULL;
    bp_plan_summary summary = summary_of(plan);
    bp_plan_builder *builder = NULL;
    assert_fails(bp_plan_builder_create(NULL, &builder), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(builder);
    assert_ok(bp_plan_builder_create(&summary, &builder));
    bp_assignment a = assignment_at(plan, 0);
    a.unit = NULL;
    assert_fails(bp_plan_builder_add_assignment(builder, &a), BP_ERR_INVALID_ARGUMENT, NULL);
    a = assignment_at(plan, 0);
    assert_ok(bp_plan_builder_add_assignment(builder, &a));
    assert_fails(bp_plan_builder_finish(&builder, &out), BP_ERR_MISMATCH, "u0"); /* no slab */
    assert_null(builder);
    assert_null(out);
    bp_plan_builder_destroy(&builder);
    bp_plan_builder_destroy(NULL);
    bp_plan_destroy(&plan);
    end_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hand_made),
        cmocka_unit_test(test_brute_force_training),
        cmocka_unit_test(test_brute_force_recorded),
        cmocka_unit_test(test_recorded_buckets),
        cmocka_unit_test(test_check_large),
        cmocka_unit_test(test_max_ranks_by_unpadded),
        cmocka_unit_test(test_max_ties_by_larger_index),
        cmocka_unit_test(test_max_fp8_is_uint8),
        cmocka_unit_test(test_max_many_buckets),
        cmocka_unit_test(test_many_copies),
        cmocka_unit_test(test_fixed_mode),
        cmocka_unit_test(test_fixed_ignores_padding),
        cmocka_unit_test(test_infeasible),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_max_properties),
        cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_fingerprint_differs),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_check_refuses_rebuilt),
        cmocka_unit_test(test_check_refuses_changed),
        cmocka_unit_test(test_check_agrees_with_naive),
        cmocka_unit_test(test_predecessors_are_minimal),
        cmocka_unit_test(test_check_chains),
        cmocka_unit_test(test_check_other_buckets),
        cmocka_unit_test(test_training_intervals),
        cmocka_unit_test(test_nested_intervals),
        cmocka_unit_test(test_recorded_intervals),
        cmocka_unit_test(test_plan_errors),
        cmocka_unit_test(test_policy_names),
        cmocka_unit_test(test_bucket_errors),
        cmocka_unit_test(test_nothing_to_place),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_training_schedule_errors),
        cmocka_unit_test(test_recorded_schedule_errors),
        cmocka_unit_test(test_builder_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
