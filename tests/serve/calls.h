/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of a few items, and calls of their server that assert the answer. */
#ifndef BP_TEST_SERVE_CALLS_H
#define BP_TEST_SERVE_CALLS_H

#include "support/harness.h"

#include <bucketpool/step_serve.h>

#define KIB ((uint64_t)1024)
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- plans --------------------------------------------------------------------------------------------------------- */

#define ITEM(size, at)                                                                                                 \
    {                                                                                                                  \
        .bytes = (size), .offset = (at), .place = BP_STEP_NO_PLACE                                                     \
    }
#define ITEM_ON(size, at, number)                                                                                      \
    {                                                                                                                  \
        .bytes = (size), .offset = (at), .stream = (number), .place = BP_STEP_NO_PLACE                                 \
    }

static const uint32_t at_begin[] = {0};

static inline bp_step_plan_kind kind_of(const bp_step_plan_item *items, size_t count)
{
    return (bp_step_plan_kind){.items = items, .item_count = count, .marks = at_begin, .mark_count = 1, .steps = 1};
}

static inline bp_step_server *serve_kinds(const bp_step_plan_kind *kinds, size_t count, uint64_t slab_bytes,
                                          const bp_step_server_config *config)
{
    static const uint64_t handles[BP_STEP_PLAN_STREAMS] = {11, 12, 13, 14};
    bp_step_plan *plan = NULL;
    bp_step_server *server = NULL;
    assert_ok(bp_step_plan_from_info(
        &(bp_step_plan_info){
            .bytes = slab_bytes, .kinds = kinds, .kind_count = count, .streams = handles, .stream_count = 4},
        &plan));
    assert_ok(bp_step_server_create(plan, config, &server));
    bp_step_plan_destroy(&plan); /* it was copied */
    return server;
}

static inline bp_step_server *serve(const bp_step_plan_item *items, size_t count, uint64_t slab_bytes)
{
    const bp_step_plan_kind kind = kind_of(items, count);
    return serve_kinds(&kind, 1, slab_bytes, NULL);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

#define NOWHERE UINT64_C(12345)

#define assert_served(server, bytes, stream, expected)                                                                 \
    do {                                                                                                               \
        uint64_t got_ = NOWHERE;                                                                                       \
        assert_int_equal(bp_step_server_allocate(server, bytes, stream, &got_), BP_STEP_SERVED);                       \
        assert_int_equal(got_, expected);                                                                              \
        assert_ok(bp_step_server_check(server));                                                                       \
    } while (0)

#define assert_refused(server, bytes, stream, outcome)                                                                 \
    do {                                                                                                               \
        uint64_t got_ = NOWHERE;                                                                                       \
        assert_int_equal(bp_step_server_allocate(server, bytes, stream, &got_), outcome);                              \
        assert_int_equal(got_, NOWHERE);                                                                               \
        assert_ok(bp_step_server_check(server));                                                                       \
    } while (0)

#define assert_anywhere(server, bytes, stream, expected)                                                               \
    do {                                                                                                               \
        uint64_t got_ = NOWHERE;                                                                                       \
        assert_int_equal(bp_step_server_allocate_anywhere(server, bytes, stream, &got_), BP_STEP_SERVED);              \
        assert_int_equal(got_, expected);                                                                              \
        assert_ok(bp_step_server_check(server));                                                                       \
    } while (0)

#define assert_nowhere(server, bytes, stream, outcome)                                                                 \
    do {                                                                                                               \
        uint64_t got_ = NOWHERE;                                                                                       \
        assert_int_equal(bp_step_server_allocate_anywhere(server, bytes, stream, &got_), outcome);                     \
        assert_int_equal(got_, NOWHERE);                                                                               \
        assert_ok(bp_step_server_check(server));                                                                       \
    } while (0)

static inline void free_at(bp_step_server *server, uint64_t offset)
{
    bp_step_block block = {0};
    assert_ok(bp_step_server_free(server, offset, &block));
    assert_int_equal(block.offset, offset);
    assert_ok(bp_step_server_check(server));
}

static inline bp_step_statistics statistics_of(bp_step_server *server)
{
    bp_step_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_step_server_get_statistics(server, &statistics));
    return statistics;
}

/* Allocates and frees the items [first, end), which must be served. */
static inline void run_items(bp_step_server *server, const bp_step_plan_item *items, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        assert_served(server, items[i].bytes, 0, items[i].offset);
        free_at(server, items[i].offset);
    }
}

/* As run_items, but whatever the outcome. Returns how many were at their addresses. */
static inline size_t try_items(bp_step_server *server, const bp_step_plan_item *items, size_t first, size_t end)
{
    size_t right = 0;
    for (size_t i = first; i < end; i++) {
        uint64_t offset = NOWHERE;
        if (bp_step_server_allocate(server, items[i].bytes, 0, &offset) != BP_STEP_SERVED)
            continue;
        right += offset == items[i].offset;
        free_at(server, offset);
    }
    return right;
}

/* Items side by side, of as many sizes as there are items, or fewer. */
static inline void make_items(bp_step_plan_item *items, size_t count, size_t sizes)
{
    for (size_t i = 0; i < count; i++)
        items[i] = (bp_step_plan_item)ITEM(1 + i * 7 % sizes, i * 512);
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

typedef struct recorded {
    char text[2048];   /* "0.1 " for record, "2<0.1 " for wait */
    uint32_t captured; /* streams whose calls are refused */
    uint64_t points[BP_STEP_STREAMS];
} recorded;

static inline void append(recorded *calls, const char *text)
{
    size_t length = strlen(calls->text);
    snprintf(calls->text + length, sizeof calls->text - length, "%s", text);
}

static inline bool on_record(void *context, uint32_t stream, uint64_t point)
{
    recorded *calls = context;
    char text[64];
    if (calls->captured >> stream & 1)
        return false;
    assert_int_equal(point, ++calls->points[stream]);
    snprintf(text, sizeof text, "%u.%llu ", stream, (unsigned long long)point);
    append(calls, text);
    return true;
}

static inline bool on_wait(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    recorded *calls = context;
    char text[64];
    if ((calls->captured >> stream & 1) || (calls->captured >> before & 1))
        return false;
    assert_true(point > 0 && point <= calls->points[before]);
    snprintf(text, sizeof text, "%u<%u.%llu ", stream, before, (unsigned long long)point);
    append(calls, text);
    return true;
}

static inline bp_step_server *serve_streams(const bp_step_plan_item *items, size_t count, uint64_t slab_bytes,
                                            recorded *calls)
{
    bp_step_server_config config;
    assert_ok(bp_step_server_config_init(&config, sizeof config));
    config.context = calls;
    config.record = on_record;
    config.wait = on_wait;
    const bp_step_plan_kind kind = kind_of(items, count);
    return serve_kinds(&kind, 1, slab_bytes, &config);
}

#define assert_calls(calls, expected)                                                                                  \
    do {                                                                                                               \
        assert_string_equal((calls)->text, expected);                                                                  \
        (calls)->text[0] = '\0';                                                                                       \
    } while (0)

#endif
