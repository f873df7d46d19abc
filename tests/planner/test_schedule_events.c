/* SPDX-License-Identifier: Apache-2.0 */
/* The events of schedules: equivalent to the intervals, in order, and as few as possible. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdio.h>
#include <stdlib.h>

#include "support/scenarios.h"

#define ALL_ROLES (PARAM | TRANSPOSE | GRAD | GRAD_COMM | STATE)

typedef struct events {
    const bp_schedule_event *list;
    size_t count;
} events;

static events events_of(const bp_schedule *schedule)
{
    const bp_schedule_info *info = bp_schedule_get_info(schedule);
    return (events){info->events, info->event_count};
}

static bp_request request_at(const scenario *s, uint32_t index)
{
    bp_request request = bp_buckets_get_info(s->buckets)->requests[index];
    return request;
}

static int32_t unit_at(const scenario *s, uint32_t request)
{
    bp_bucket bucket = bp_buckets_get_info(s->buckets)->buckets[request_at(s, request).bucket];
    return bucket.unit;
}

/* ---- against the intervals -------------------------------------------------------------------------------------------- */

static void assert_one_group(const scenario *s, const bp_schedule_event *event)
{
    uint32_t first = event->first_request;
    assert_true(event->request_count > 0);
    for (uint32_t i = 1; i < event->request_count; i++) {
        assert_int_equal(request_at(s, first + i).role, request_at(s, first).role);
        assert_int_equal(unit_at(s, first + i), unit_at(s, first));
    }
}

static void assert_order(const scenario *s, const events *e)
{
    for (size_t i = 1; i < e->count; i++) {
        const bp_schedule_event *a = &e->list[i - 1], *b = &e->list[i];
        assert_true(a->step <= b->step);
        if (a->step != b->step)
            continue;
        assert_true(a->acquire <= b->acquire);
        if (a->acquire != b->acquire)
            continue;
        assert_true(a->first_request + a->request_count <= b->first_request);
        bool touch = a->first_request + a->request_count == b->first_request; /* then they belong to different groups */
        assert_false(touch && unit_at(s, a->first_request) == unit_at(s, b->first_request) &&
                     request_at(s, a->first_request).role == request_at(s, b->first_request).role);
    }
}

/* Acquires and releases of each request, in the order of the events, are the ends of its intervals. */
static void assert_intervals(const scenario *s, const events *e)
{
    for (uint32_t request = 0; request < bp_buckets_get_info(s->buckets)->request_count; request++) {
        size_t count, ends = 0;
        const bp_interval *intervals = intervals_of(s->schedule, request, &count);
        for (size_t i = 0; i < e->count; i++) {
            const bp_schedule_event *event = &e->list[i];
            if (request < event->first_request || request - event->first_request >= event->request_count)
                continue;
            assert_true(ends < 2 * count);
            assert_int_equal(event->acquire, ends % 2 == 0);
            assert_int_equal(event->step, ends % 2 == 0 ? intervals[ends / 2].begin : intervals[ends / 2].end);
            ends++;
        }
        assert_int_equal(ends, 2 * count);
    }
}

static void assert_lanes(const scenario *s, const events *e)
{
    static const uint32_t acquires[BP_ROLE_COUNT] = {BP_LANE_GATHER,  BP_LANE_GATHER,  BP_LANE_COMPUTE, BP_LANE_COMPUTE,
                                                     BP_LANE_COMPUTE, BP_LANE_COMPUTE, BP_LANE_COMPUTE};
    static const uint32_t releases[BP_ROLE_COUNT] = {BP_LANE_COMPUTE,      BP_LANE_COMPUTE, BP_LANE_REDUCE,
                                                     BP_LANE_OUTER_REDUCE, BP_LANE_COMPUTE, BP_LANE_COMPUTE,
                                                     BP_LANE_COMPUTE};
    for (size_t i = 0; i < e->count; i++) {
        uint32_t role = request_at(s, e->list[i].first_request).role;
        assert_int_equal(e->list[i].lane, e->list[i].acquire ? acquires[role] : releases[role]);
    }
}

static void assert_events(scenario *s)
{
    events e = events_of(s->schedule);
    for (size_t i = 0; i < e.count; i++)
        assert_one_group(s, &e.list[i]);
    assert_order(s, &e);
    assert_intervals(s, &e);
    assert_lanes(s, &e);
    free_scenario(s);
}

TEST(test_training)
{
    for (uint32_t prefetch = 0; prefetch <= 3; prefetch++) {
        scenario_options options = {ALL_ROLES, prefetch, 1 + prefetch % 3, 0, 0, 0, BP_DTYPE_BF16};
        scenario s = make_scenario(make_fp8(), options);
        assert_events(&s);
        options.eval = 1;
        s = make_scenario(make_fp8(), options);
        assert_events(&s);
        s = make_scenario(make_mixed(), options);
        assert_events(&s);
    }
}

TEST(test_recorded)
{
    for (uint64_t number = 0; number < 60; number++) {
        seed(number);
        bp_model *model = random_model(1 + random_below(6));
        record_randomly(model, number % 2 == 0);
        scenario_options options = {.roles = PARAM, .recorded = 1};
        scenario s = make_scenario(model, options);
        assert_events(&s);
    }
}

/* ---- by hand ----------------------------------------------------------------------------------------------------------- */

/* "+0.1@2" for an acquire of requests 0 and 1 in step 2, "-" for a release. */
static void assert_text(const scenario *s, const char *expected)
{
    char text[512] = "";
    size_t length = 0;
    events e = events_of(s->schedule);
    for (size_t i = 0; i < e.count; i++) {
        const bp_schedule_event *event = &e.list[i];
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%c%u", i > 0 ? " " : "",
                                   event->acquire ? '+' : '-', event->first_request);
        for (uint32_t k = 1; k < event->request_count; k++)
            length += (size_t)snprintf(text + length, sizeof text - length, ".%u", event->first_request + k);
        length += (size_t)snprintf(text + length, sizeof text - length, "@%u", event->step);
    }
    assert_string_equal(text, expected);
}

/* Unit 0 has two buckets, unit 1 one: parameters 0, 1 and 4, gradients 2, 3 and 5. */
TEST(test_two_units)
{
    bp_model *model = new_model();
    int32_t first = add_numbered_unit(model, 0);
    add_bucket(model, first, BP_DTYPE_BF16, 10, 0);
    add_bucket(model, first, BP_DTYPE_FP32, 20, 0);
    add_bucket(model, add_numbered_unit(model, 1), BP_DTYPE_BF16, 30, 0);
    SCOPED(free_scenario) scenario s = make_scenario(model, DEFAULTS);
    assert_text(&s, "+0.1@0 +4@0 -0.1@1 +0.1@2 +5@2 -4@3 +2.3@3 -0.1@4 -2.3@4 -5@4");
}

/* A recording that acquires buckets together and releases them one by one. */
TEST(test_recorded_order)
{
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    add_bucket(model, a, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, a, BP_DTYPE_BF16, 2, 0);
    add_bucket(model, b, BP_DTYPE_BF16, 1, 0);
    add_event(model, 1, a, -1);
    add_event(model, 0, a, 1);
    add_event(model, 1, b, -1);
    add_event(model, 0, a, 0);
    add_event(model, 0, b, -1);
    scenario_options options = {.roles = PARAM, .recorded = 1};
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    assert_text(&s, "+0.1@0 -1@1 +2@2 -0@3 -2@4");
}

/* The recording's lanes, or the role's default lanes. */
TEST(test_recorded_lanes)
{
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE);
    add_bucket(model, a, BP_DTYPE_BF16, 1, 0);
    for (uint32_t i = 0; i < 4; i++) {
        const bp_model_event event = {.size = sizeof event,
                                      .acquire = i % 2 == 0,
                                      .unit = a,
                                      .bucket = -1,
                                      .role = BP_ROLE_PARAM,
                                      .lane = i < 2 ? 5 + i : BP_MODEL_EVENT_NO_LANE};
        assert_ok(bp_model_add_event(model, &event));
    }
    scenario_options options = {.roles = PARAM, .recorded = 1};
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    static const uint32_t lanes[] = {5, 6, BP_LANE_GATHER, BP_LANE_COMPUTE};
    events e = events_of(s.schedule);
    assert_int_equal(e.count, 4);
    for (size_t i = 0; i < e.count; i++)
        assert_int_equal(e.list[i].lane, lanes[i]);
}

/* A schedule merged with itself has its events twice, except for requests that are live across the border. */
TEST(test_merged)
{
    for (uint64_t number = 0; number < 60; number++) {
        seed(number);
        bp_model *model = random_model(1 + random_below(6));
        record_randomly(model, number % 2 == 0);
        scenario_options options = {.roles = PARAM, .recorded = 1};
        scenario s = make_scenario(model, options);
        const bp_schedule *twice[] = {s.schedule, s.schedule};
        bp_schedule *merged = NULL;
        assert_ok(bp_schedule_create_merged(twice, 2, &merged));
        events once = events_of(s.schedule), both = events_of(merged);
        assert_int_equal(both.count, 2 * once.count);
        bp_schedule_destroy(&s.schedule);
        s.schedule = merged;
        assert_events(&s);
    }
}

TESTS(NULL, NULL)
