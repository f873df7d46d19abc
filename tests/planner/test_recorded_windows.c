/* SPDX-License-Identifier: Apache-2.0 */
/* Overlap windows of recorded schedules: against a reference model, and by hand. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "planner/schedule/schedule.h"
#include "support/scenarios.h"

#define MAX_EVENTS 64
#define MAX_UNITS 6
#define MAX_HELD 18 /* requests */

/* ---- recordings ----------------------------------------------------------------------------------------------------- */

static void add_lane_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket, uint32_t lane)
{
    bp_model_event event = {
        .size = sizeof event, .acquire = acquire, .unit = unit, .bucket = bucket, .role = BP_ROLE_PARAM, .lane = lane};
    assert_ok(bp_model_add_event(model, &event));
}

static uint32_t random_lane(void)
{
    return random_below(3) == 0 ? BP_MODEL_EVENT_NO_LANE : random_below(3);
}

/* Units of one to three buckets, acquired and released at random, whole or by bucket. */
static bp_model *record_at_random(uint32_t units)
{
    bp_model *model = new_model();
    int32_t unit_of[MAX_HELD], bucket_of[MAX_HELD];
    bool live[MAX_HELD] = {false}, used[MAX_HELD] = {false};
    size_t held = 0;
    for (uint32_t u = 0; u < units; u++) {
        int32_t unit = add_numbered_unit(model, u);
        uint32_t buckets = 1 + random_below(3);
        bool whole = random_below(2);
        for (uint32_t b = 0; b < buckets; b++) {
            add_bucket(model, unit, BP_DTYPE_FP32, 64 * (1 + random_below(4)), 0);
            if (whole && b > 0)
                continue;
            unit_of[held] = unit;
            bucket_of[held++] = whole ? -1 : (int32_t)b;
        }
    }
    for (uint32_t events = 4 + random_below(24); events > 0; events--) {
        size_t i = random_below((uint32_t)held);
        live[i] = !live[i];
        used[i] = true;
        add_lane_event(model, live[i], unit_of[i], bucket_of[i], random_lane());
    }
    for (size_t i = 0; i < held; i++) {
        if (!used[i])
            add_lane_event(model, live[i] = true, unit_of[i], bucket_of[i], random_lane());
        if (live[i])
            add_lane_event(model, 0, unit_of[i], bucket_of[i], random_lane());
    }
    return model;
}

typedef struct recording {
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
} recording;

static recording record(bp_model *model, uint32_t width)
{
    recording r = {.model = model};
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.roles = PARAM;
    assert_ok(bp_buckets_create(model, &config, &r.buckets));
    bp_recorded_config recorded;
    assert_ok(bp_recorded_config_init(&recorded, sizeof recorded));
    assert_int_equal(recorded.overlap_window, 0);
    recorded.overlap_window = width;
    assert_ok(bp_schedule_create_recorded(model, r.buckets, &recorded, &r.schedule));
    return r;
}

static void end_recording(recording *r)
{
    bp_schedule_destroy(&r->schedule);
    bp_buckets_destroy(&r->buckets);
    bp_model_destroy(&r->model);
}

/* ---- reference model ------------------------------------------------------------------------------------------------------ */

typedef struct reference {
    uint32_t requests, steps;
    int32_t unit_of[MAX_HELD], bucket_of[MAX_HELD];
    uint64_t bytes[MAX_HELD];
    bp_model_event events[MAX_EVENTS];
    uint32_t run_of[MAX_EVENTS]; /* of acquires: consecutive ones of one unit on one lane */
    bool live[MAX_EVENTS][MAX_HELD];
    uint32_t window[MAX_EVENTS][MAX_HELD][MAX_HELD]; /* step, earlier, later: the distance, 0: none */
} reference;

static uint32_t lane_of(const bp_model_event *event)
{
    return event->lane != BP_MODEL_EVENT_NO_LANE ? event->lane : event->acquire ? BP_LANE_GATHER : BP_LANE_COMPUTE;
}

static bool is_of(const reference *t, const bp_model_event *event, uint32_t request)
{
    return event->unit == t->unit_of[request] && (event->bucket < 0 || event->bucket == t->bucket_of[request]);
}

static void read_recording(const recording *r, reference *t)
{
    memset(t, 0, sizeof *t);
    t->requests = (uint32_t)bp_buckets_get_info(r->buckets)->request_count;
    t->steps = (uint32_t)bp_model_get_info(r->model)->event_count;
    assert_true(t->requests <= MAX_HELD && t->steps <= MAX_EVENTS);
    for (uint32_t i = 0; i < t->requests; i++) {
        bp_request request = bp_buckets_get_info(r->buckets)->requests[i];
        bp_bucket bucket = bp_buckets_get_info(r->buckets)->buckets[request.bucket];
        t->unit_of[i] = bucket.unit;
        t->bucket_of[i] = (int32_t)bucket.ordinal;
        t->bytes[i] = aligned(request.bytes);
    }
    const bp_model_event *before = NULL;
    uint32_t run = 0;
    bool live[MAX_HELD] = {false};
    for (uint32_t step = 0; step < t->steps; step++) {
        bp_model_event *event = &t->events[step];
        event->size = sizeof *event;
        *event = *bp_model_get_info(r->model)->events[step];
        for (uint32_t i = 0; i < t->requests; i++)
            live[i] = is_of(t, event, i) ? event->acquire : live[i];
        memcpy(t->live[step], live, sizeof live);
        if (!event->acquire)
            continue;
        run += before == NULL || before->unit != event->unit || lane_of(before) != lane_of(event);
        t->run_of[step] = run;
        before = event;
    }
}

static bool conflict(const reference *t, uint32_t a, uint32_t b)
{
    for (uint32_t step = 0; step < t->steps; step++)
        if (t->live[step][a] && t->live[step][b])
            return true;
    return false;
}

/* Walks around the recording from the release and marks the acquires of the next `width` units on other lanes. */
static void find_reference_window(reference *t, uint32_t release, uint32_t earlier, uint32_t width)
{
    uint32_t units = 0, run = 0;
    bool wrapped = false;
    for (uint32_t i = 1; i < t->steps; i++) {
        uint32_t step = (release + i) % t->steps;
        const bp_model_event *event = &t->events[step];
        bool wraps = !wrapped && step < release;
        wrapped |= wraps;
        run = wraps ? 0 : run; /* a unit that continues across the end counts twice */
        if (!event->acquire || lane_of(event) == lane_of(&t->events[release]))
            continue;
        if (t->run_of[step] != run && ++units > width)
            return;
        run = t->run_of[step];
        for (uint32_t later = 0; later < t->requests; later++) {
            uint32_t *distance = &t->window[step][earlier][later];
            if (is_of(t, event, later) && later != earlier && !conflict(t, earlier, later) &&
                (*distance == 0 || units < *distance))
                *distance = units;
        }
    }
}

static void find_reference_windows(reference *t, uint32_t width)
{
    for (uint32_t step = 0; step < t->steps; step++)
        for (uint32_t i = 0; i < t->requests; i++)
            if (!t->events[step].acquire && is_of(t, &t->events[step], i))
                find_reference_window(t, step, i, width);
}

static bool has_reference_window(const reference *t, uint32_t earlier, uint32_t later)
{
    for (uint32_t step = 0; step < t->steps; step++)
        if (t->window[step][earlier][later] > 0)
            return true;
    return false;
}

static size_t assert_overlaps(const reference *t, const bp_schedule *schedule)
{
    const bp_overlap *overlaps = bp_schedule_get_info(schedule)->overlaps;
    size_t count = 0;
    for (uint32_t later = 0; later < t->requests; later++) {
        for (uint32_t earlier = 0; earlier < t->requests; earlier++) {
            if (!has_reference_window(t, earlier, later))
                continue;
            assert_true(count < bp_schedule_get_info(schedule)->overlap_count);
            assert_int_equal(overlaps[count].earlier, earlier);
            assert_int_equal(overlaps[count++].later, later);
        }
    }
    assert_int_equal(count, bp_schedule_get_info(schedule)->overlap_count);
    return count;
}

/* Asserts the windows and their distances. */
static void assert_windows(reference *t, const bp_schedule *schedule)
{
    size_t count = 0;
    for (size_t i = 0; i < schedule->window_count; i++) {
        const bp_window *w = &schedule->windows[i];
        assert_int_equal(w->distance, t->window[w->step][w->earlier][w->later]);
    }
    for (uint32_t step = 0; step < t->steps; step++)
        for (uint32_t i = 0; i < t->requests; i++)
            for (uint32_t k = 0; k < t->requests; k++)
                count += t->window[step][i][k] > 0;
    assert_int_equal(count, schedule->window_count);
}

TEST(test_windows_against_reference)
{
    static reference t;
    size_t overlaps = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        seed(round);
        uint32_t width = random_below(8) == 0 ? UINT32_MAX : random_below(5);
        SCOPED(end_recording) recording r = record(record_at_random(1 + random_below(MAX_UNITS)), width);
        read_recording(&r, &t);
        find_reference_windows(&t, width);
        overlaps += assert_overlaps(&t, r.schedule);
        assert_windows(&t, r.schedule);
    }
    assert_true(overlaps > 3000);
}

/* ---- by hand --------------------------------------------------------------------------------------------------------- */

/* Order of FSDP2's host in forward: gather 0, compute, release 0, gather 1, ...; the all-gather of 1 runs under the compute of 0. */
static bp_model *record_in_host_order(const uint64_t *numel, uint32_t units)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, numel[u], 0);
    for (uint32_t u = 0; u < units; u++) {
        add_event(model, 1, (int32_t)u, -1);
        add_event(model, 0, (int32_t)u, -1);
    }
    return model;
}

TEST(test_host_order)
{
    static const uint64_t numel[] = {64, 128, 192, 256};
    recording none = record(record_in_host_order(numel, 4), 0);
    assert_int_equal(bp_schedule_get_info(none.schedule)->overlap_count, 0);
    end_recording(&none);
    SCOPED(end_recording) recording r = record(record_in_host_order(numel, 4), 1);
    static const bp_overlap expected[] = {
        {3, 0}, {0, 1}, {1, 2}, {2, 3}}; /* the last of the step and the first of the next */
    assert_int_equal(bp_schedule_get_info(r.schedule)->overlap_count, 4);
    assert_memory_equal(bp_schedule_get_info(r.schedule)->overlaps, expected, sizeof expected);
    const bp_schedule *parts[] = {r.schedule, r.schedule};
    SCOPED(bp_schedule_destroy) bp_schedule *merged = NULL;
    assert_ok(bp_schedule_create_merged(parts, 2, &merged));
    assert_int_equal(bp_schedule_get_info(merged)->overlap_count, 4);
    assert_memory_equal(bp_schedule_get_info(merged)->overlaps, expected, sizeof expected);
}

/* Stream order makes a window unnecessary between requests of one lane. */
TEST(test_same_lane)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 2; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, 64, 0);
    for (int32_t u = 0; u < 2; u++) {
        add_lane_event(model, 1, u, -1, 7);
        add_lane_event(model, 0, u, -1, 7);
    }
    SCOPED(end_recording) recording r = record(model, 5);
    assert_int_equal(bp_schedule_get_info(r.schedule)->overlap_count, 0);
    bp_use use = bp_schedule_use(r.schedule, 0);
    assert_int_equal(use.acquire_lane, 7);
    assert_int_equal(use.release_lane, 7);
}

/* Requests that one recording keeps apart, and that are live together in another schedule, have no overlap in the merged one. */
TEST(test_windows_of_merged_schedules)
{
    static const uint64_t numel[] = {64, 128, 192};
    SCOPED(end_recording) recording r = record(record_in_host_order(numel, 3), 1);
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    SCOPED(bp_schedule_destroy) bp_schedule *training = NULL, *merged = NULL;
    assert_ok(bp_schedule_create_training(r.buckets, &config, &training));
    const bp_schedule *parts[] = {training, r.schedule};
    assert_ok(bp_schedule_create_merged(parts, 2, &merged));
    static const bp_overlap left[] = {{2, 0}}; /* consecutive units are live together in training */
    assert_int_equal(bp_schedule_get_info(merged)->overlap_count, 1);
    assert_memory_equal(bp_schedule_get_info(merged)->overlaps, left, sizeof left);
}

TEST(test_errors)
{
    bp_recorded_config config;
    assert_fails(bp_recorded_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_recorded_config_init(&config, 4), BP_ERR_INVALID_ARGUMENT, "is 4;");
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    add_bucket(model, add_numbered_unit(model, 0), BP_DTYPE_FP32, 64, 0);
    bp_model_event event = {.size = sizeof event, .acquire = 1, .bucket = -1, .lane = BP_LANE_COUNT};
    assert_fails(bp_model_add_event(model, &event), BP_ERR_INVALID_ARGUMENT, "lane 16");
    bp_model_destroy(&model);
    uint64_t numel[3000];
    for (uint32_t i = 0; i < 3000; i++)
        numel[i] = 64;
    model = record_in_host_order(numel, 3000);
    for (uint32_t round = 0; round < 2; round++) {
        for (int32_t u = 0; u < 3000; u++) {
            add_event(model, 1, u, -1);
            add_event(model, 0, u, -1);
        }
    }
    bp_buckets_config buckets_config;
    assert_ok(bp_buckets_config_init(&buckets_config, sizeof buckets_config));
    buckets_config.roles = PARAM;
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    assert_ok(bp_buckets_create(model, &buckets_config, &buckets));
    assert_ok(bp_recorded_config_init(&config, sizeof config));
    config.overlap_window = UINT32_MAX;
    bp_schedule *schedule = NULL;
    assert_fails(bp_schedule_create_recorded(model, buckets, &config, &schedule), BP_ERR_UNSUPPORTED, "overlap window");
    config.size = 0;
    assert_fails(bp_schedule_create_recorded(model, buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "is 0;");
    assert_null(schedule);
}

TESTS(NULL, NULL)
