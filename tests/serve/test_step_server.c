/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a step plan, function by function: outcomes, places, kinds, marks, streams, errors and what it shows. */
#include "support/harness.h"

#include <bucketpool/step_serve.h>

#include "allocators/serve/server.h"
#include "support/shortage.h"

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

static bp_step_plan_kind kind_of(const bp_step_plan_item *items, size_t count)
{
    return (bp_step_plan_kind){.items = items, .item_count = count, .marks = at_begin, .mark_count = 1, .steps = 1};
}

static bp_step_server *serve_kinds(const bp_step_plan_kind *kinds, size_t count, uint64_t slab_bytes,
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

static bp_step_server *serve(const bp_step_plan_item *items, size_t count, uint64_t slab_bytes)
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

static void free_at(bp_step_server *server, uint64_t offset)
{
    bp_step_block block = {0};
    assert_ok(bp_step_server_free(server, offset, &block));
    assert_int_equal(block.offset, offset);
    assert_ok(bp_step_server_check(server));
}

static bp_step_statistics statistics_of(bp_step_server *server)
{
    bp_step_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_step_server_get_statistics(server, &statistics));
    return statistics;
}

/* Allocates and frees the items [first, end), which must be served. */
static void run_items(bp_step_server *server, const bp_step_plan_item *items, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        assert_served(server, items[i].bytes, 0, items[i].offset);
        free_at(server, items[i].offset);
    }
}

/* As run_items, but whatever the outcome. Returns how many were at their addresses. */
static size_t try_items(bp_step_server *server, const bp_step_plan_item *items, size_t first, size_t end)
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
static void make_items(bp_step_plan_item *items, size_t count, size_t sizes)
{
    for (size_t i = 0; i < count; i++)
        items[i] = (bp_step_plan_item)ITEM(1 + i * 7 % sizes, i * 512);
}

/* ---- creation ------------------------------------------------------------------------------------------------------ */

static bool refuse(void *context, uint32_t stream, uint64_t point)
{
    return false;
}

static bool refuse_wait(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    return false;
}

static bp_step_plan *small_plan(void)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(1000, 512)};
    static const uint64_t handles[] = {0};
    const bp_step_plan_kind kind = kind_of(items, COUNT(items));
    bp_step_plan *plan = NULL;
    assert_ok(bp_step_plan_from_info(
        &(bp_step_plan_info){.bytes = 2048, .kinds = &kind, .kind_count = 1, .streams = handles, .stream_count = 1},
        &plan));
    return plan;
}

TEST(creation)
{
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = small_plan();
    bp_step_server *server = NULL;
    assert_fails(bp_step_server_create(NULL, NULL, &server), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_step_server_create(plan, NULL, NULL), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_step_server_config_init(NULL, sizeof(bp_step_server_config)), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_step_server_config config;
    assert_ok(bp_step_server_config_init(&config, sizeof config));
    assert_true(config.record == NULL && config.wait == NULL && config.context == NULL);
    config.record = refuse;
    assert_fails(bp_step_server_create(plan, &config, &server), BP_ERR_INVALID_ARGUMENT, "callback");
    config.record = NULL;
    config.wait = refuse_wait;
    assert_fails(bp_step_server_create(plan, &config, &server), BP_ERR_INVALID_ARGUMENT, "callback");
    assert_null(server);
    config.wait = NULL;
    assert_ok(bp_step_server_create(plan, &config, &server));
    bp_step_server_destroy(&server);
    assert_null(server);
    bp_step_server_destroy(&server);
    bp_step_server_destroy(NULL);
}

TEST(creation_without_memory)
{
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = small_plan();
    SCOPED(bp_step_server_destroy) bp_step_server *server = NULL;
    FAIL_EACH_OUT(server, bp_step_server_create(plan, NULL, &server));
}

TEST(plans_without_memory)
{
    const bp_step_plan_item outside[] = {ITEM(100, BP_STEP_OUTSIDE), ITEM(200, BP_STEP_OUTSIDE)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(outside, COUNT(outside), 0);
    for (int step = 0; step < 3; step++) {
        assert_refused(server, 100, 0, BP_STEP_UNPLANNED);
        assert_refused(server, 200, 0, BP_STEP_UNPLANNED);
        bp_step_server_mark(server);
    }
    assert_nowhere(server, 1, 0, BP_STEP_BUSY);
    bp_step_block block;
    assert_false(bp_step_server_find(server, 0, &block));
    assert_fails(bp_step_server_free(server, 0, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_step_server_use(server, 0, 0), BP_ERR_INVALID_ARGUMENT, NULL);
    SCOPED(bp_step_server_destroy) bp_step_server *empty = serve(outside, 0, 4 * KIB);
    bp_step_server_mark(empty);
    assert_refused(empty, 100, 0, BP_STEP_UNKNOWN);
    bp_step_server_mark(empty);
    assert_nowhere(empty, 0, 0, BP_STEP_BUSY);
    assert_anywhere(empty, 4 * KIB, 0, 0);
    assert_nowhere(empty, 1, 0, BP_STEP_BUSY);
    free_at(empty, 0);
}

/* ---- outcomes ------------------------------------------------------------------------------------------------------ */

TEST(outcomes)
{
    static const bp_step_plan_item items[] = {ITEM(100, 512), ITEM(100, 1024), ITEM(700, 1536),
                                              ITEM(50, BP_STEP_OUTSIDE)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    assert_refused(server, 0, 0, BP_STEP_UNKNOWN);
    assert_int_equal(statistics_of(server).outcomes[BP_STEP_UNKNOWN], 0);
    assert_refused(server, 101, 0, BP_STEP_UNKNOWN);
    assert_refused(server, UINT64_MAX, 0, BP_STEP_UNKNOWN);
    assert_refused(server, 5 * KIB, 0, BP_STEP_UNKNOWN);
    assert_served(server, 100, 0, 512);
    assert_served(server, 100, 0, 1024);
    assert_refused(server, 100, 0, BP_STEP_MISPLACED); /* no beginning of a step, which has a mark */
    assert_served(server, 700, 0, 1536);
    assert_refused(server, 50, 0, BP_STEP_UNPLANNED);
    bp_step_server_mark(server);
    assert_refused(server, 100, 0, BP_STEP_BUSY);
    free_at(server, 1024);
    assert_served(server, 100, 0, 1024);
    assert_refused(server, 700, 0, BP_STEP_BUSY);
    bp_step_server_pause(server, true);
    assert_refused(server, 50, 0, BP_STEP_PAUSED);
    bp_step_server_pause(server, false);
    const bp_step_statistics s = statistics_of(server);
    const uint64_t expected[BP_STEP_OUTCOMES] = {4, 3, 1, 1, 2, 0, 1};
    assert_memory_equal(s.outcomes, expected, sizeof expected);
}

/* Streams that do not exist cannot have memory. */
TEST(streams_that_do_not_exist)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), KIB);
    assert_refused(server, 100, BP_STEP_STREAMS, BP_STEP_UNKNOWN);
    assert_refused(server, 100, UINT32_MAX, BP_STEP_UNKNOWN);
    assert_nowhere(server, 100, BP_STEP_STREAMS, BP_STEP_BUSY);
    assert_served(server, 100, BP_STEP_STREAMS - 1, 0);
    assert_fails(bp_step_server_use(server, 0, BP_STEP_STREAMS), BP_ERR_INVALID_ARGUMENT, "32");
    assert_ok(bp_step_server_use(server, 0, BP_STEP_STREAMS - 2));
    assert_int_equal(bp_step_server_waits(server, BP_STEP_STREAMS, 0), 0);
    assert_int_equal(bp_step_server_waits(server, 0, UINT32_MAX), 0);
}

/* Two items at overlapping addresses: the first that is live has them. */
TEST(overlapping_items)
{
    static const bp_step_plan_item items[] = {ITEM(1024, 512), ITEM(600, 0), ITEM(513, 1024), ITEM(512, 0),
                                              ITEM(511, 1536)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 2 * KIB);
    assert_served(server, 1024, 0, 512);
    assert_refused(server, 600, 0, BP_STEP_BUSY);
    assert_refused(server, 513, 0, BP_STEP_BUSY);
    assert_served(server, 512, 0, 0);
    assert_served(server, 511, 0, 1536);
    bp_step_server_mark(server);
    free_at(server, 512);
    free_at(server, 0);
    assert_served(server, 1024, 0, 512);
    free_at(server, 512);
    assert_served(server, 600, 0, 0);
    assert_refused(server, 513, 0, BP_STEP_BUSY); /* its second half is live since the step before */
}

/* More than a word of atoms, in every relation of a block to the words. */
TEST(long_blocks)
{
    enum { CELLS = 200 };
    bp_step_plan_item items[CELLS + 1];
    for (size_t first = 0; first < CELLS; first += 13) {
        for (size_t end = first + 1; end <= CELLS; end += 9) {
            make_items(items, CELLS, CELLS);
            items[CELLS] = (bp_step_plan_item)ITEM(512 * (end - first), 512 * first);
            SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, CELLS + 1, 512 * CELLS);
            for (size_t i = 0; i < CELLS; i++) {
                uint64_t offset = NOWHERE;
                assert_int_equal(bp_step_server_allocate(server, items[i].bytes, 0, &offset), BP_STEP_SERVED);
                if (i < first || i >= end)
                    continue;
                assert_ok(bp_step_server_free(server, offset, NULL));
            }
            assert_served(server, 512 * (end - first), 0, 512 * first);
            assert_int_equal(statistics_of(server).live_bytes, 512 * CELLS);
            bp_step_block block;
            assert_true(bp_step_server_find(server, 512 * end - 1, &block));
            assert_int_equal(block.offset, 512 * first);
            assert_nowhere(server, 1, 0, BP_STEP_BUSY);
            bp_step_server_mark(server);
            for (size_t i = 0; i < CELLS; i++) {
                uint64_t offset = NOWHERE;
                assert_int_equal(bp_step_server_allocate(server, items[i].bytes, 0, &offset), BP_STEP_BUSY);
            }
        }
    }
}

/* One live byte keeps a block of several words away. */
TEST(one_live_atom)
{
    enum { CELLS = 300 };
    bp_step_plan_item items[CELLS + 1];
    make_items(items, CELLS, CELLS);
    items[CELLS] = (bp_step_plan_item)ITEM(512 * CELLS, 0);
    for (size_t kept = 0; kept < CELLS; kept += 7) {
        SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, CELLS + 1, 512 * CELLS);
        uint64_t offset = NOWHERE;
        for (size_t i = 0; i < CELLS; i++) {
            assert_int_equal(bp_step_server_allocate(server, items[i].bytes, 0, &offset), BP_STEP_SERVED);
            if (i != kept)
                assert_ok(bp_step_server_free(server, offset, NULL));
        }
        assert_refused(server, 512 * CELLS, 0, BP_STEP_BUSY);
    }
}

/* ---- frees, uses, finding ------------------------------------------------------------------------------------------ */

TEST(frees)
{
    static const bp_step_plan_item items[] = {ITEM(1500, 512), ITEM(100, 2048), ITEM(100, 1024)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    assert_served(server, 1500, 0, 512);
    static const uint64_t wrong[] = {0, 511, 513, 1024, 1536, 2047, 2048, 4096, 1 << 20, UINT64_MAX};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        bp_step_block block = {.offset = NOWHERE};
        char number[32];
        snprintf(number, sizeof number, "%llu", (unsigned long long)wrong[i]);
        assert_fails(bp_step_server_free(server, wrong[i], &block), BP_ERR_INVALID_ARGUMENT, number);
        assert_int_equal(block.offset, NOWHERE);
    }
    assert_int_equal(statistics_of(server).frees, 0);
    assert_int_equal(statistics_of(server).live_bytes, 1536);
    bp_step_block block;
    assert_ok(bp_step_server_free(server, 512, &block));
    assert_int_equal(block.offset, 512);
    assert_int_equal(block.bytes, 1536);
    assert_int_equal(block.requested_bytes, 1500);
    assert_int_equal(block.stream, 0);
    assert_int_equal(block.kind, 0);
    assert_int_equal(block.item, 0);
    assert_fails(bp_step_server_free(server, 512, NULL), BP_ERR_INVALID_ARGUMENT, "512");
    assert_served(server, 100, 0, 2048);
    assert_ok(bp_step_server_free(server, 2048, NULL));
    assert_int_equal(statistics_of(server).frees, 2);
    assert_int_equal(statistics_of(server).live, 0);
}

TEST(finding_blocks)
{
    static const bp_step_plan_item items[] = {ITEM(600, 1024), ITEM(100, 4096), ITEM(77, 512)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 8 * KIB);
    bp_step_block block;
    assert_false(bp_step_server_find(server, 0, &block));
    assert_served(server, 600, 5, 1024);
    assert_served(server, 100, 5, 4096);
    const struct {
        uint64_t from, offset;
    } rows[] = {{0, 1024},    {1023, 1024}, {1024, 1024}, {1100, 1024},
                {2047, 1024}, {2048, 4096}, {4096, 4096}, {4607, 4096}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_true(bp_step_server_find(server, rows[i].from, &block));
        assert_int_equal(block.offset, rows[i].offset);
        assert_int_equal(block.stream, 5);
        assert_int_equal(block.item, rows[i].offset == 4096);
        assert_int_equal(block.requested_bytes, rows[i].offset == 4096 ? 100 : 600);
        assert_int_equal(block.bytes, rows[i].offset == 4096 ? 512 : 1024);
    }
    assert_false(bp_step_server_find(server, 4608, &block));
    assert_false(bp_step_server_find(server, 8192, &block));
    assert_false(bp_step_server_find(server, UINT64_MAX, &block));
}

TEST(uses_of_live_memory_only)
{
    static const bp_step_plan_item items[] = {ITEM(600, 1024), ITEM(100, 0)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    assert_fails(bp_step_server_use(server, 1024, 1), BP_ERR_INVALID_ARGUMENT, "1024");
    assert_served(server, 600, 0, 1024);
    for (uint64_t offset = 1024; offset < 2048; offset += 93)
        assert_ok(bp_step_server_use(server, offset, 1));
    static const uint64_t wrong[] = {0, 1023, 2048, 4095, 4096, UINT64_MAX};
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_fails(bp_step_server_use(server, wrong[i], 1), BP_ERR_INVALID_ARGUMENT, NULL);
    free_at(server, 1024);
    assert_fails(bp_step_server_use(server, 1024, 1), BP_ERR_INVALID_ARGUMENT, NULL);
}

/* ---- following ----------------------------------------------------------------------------------------------------- */

TEST(steps_by_marks)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(100, 512), ITEM(200, 1024), ITEM(100, 1536)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    for (int step = 0; step < 5; step++) {
        bp_step_server_mark(server);
        run_items(server, items, 0, COUNT(items));
    }
    assert_int_equal(statistics_of(server).marks, 5);
    assert_int_equal(statistics_of(server).kind_changes, 0);
    assert_int_equal(statistics_of(server).resyncs, 0);
}

/* The end of a step without a mark is that of its items. */
TEST(missing_marks)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(100, 512), ITEM(200, 1024), ITEM(100, 1536)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    for (int step = 0; step < 5; step++)
        run_items(server, items, 0, COUNT(items));
    assert_true(statistics_of(server).steps >= 4 && statistics_of(server).steps <= 5);
    assert_int_equal(statistics_of(server).marks, 0);
}

TEST(extra_marks)
{
    bp_step_plan_item items[200];
    make_items(items, COUNT(items), COUNT(items));
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 200 * KIB);
    run_items(server, items, 0, 100);
    bp_step_server_mark(server);
    bp_step_server_mark(server);
    assert_true(try_items(server, items, 100, 200) >= 80); /* it finds its place */
    bp_step_server_mark(server);
    run_items(server, items, 0, COUNT(items));
}

/* Two optimizers: the mark in the middle is none of a step's end. */
TEST(marks_in_the_middle)
{
    bp_step_plan_item items[120];
    static const uint32_t marks[] = {0, 40};
    make_items(items, COUNT(items), 1); /* the order tells nothing */
    const bp_step_plan_kind kind = {
        .items = items, .item_count = COUNT(items), .marks = marks, .mark_count = COUNT(marks), .steps = 1};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(&kind, 1, 200 * KIB, NULL);
    for (int step = 0; step < 4; step++) {
        bp_step_server_mark(server);
        run_items(server, items, 0, 40);
        bp_step_server_mark(server);
        run_items(server, items, 40, COUNT(items));
    }
    assert_true(statistics_of(server).steps >= 3 && statistics_of(server).steps <= 4);
    /* The first optimizer early: its mark says where the program is. */
    bp_step_server_mark(server);
    run_items(server, items, 0, 33);
    bp_step_server_mark(server);
    run_items(server, items, 40, COUNT(items));
    /* And the second one. */
    bp_step_server_mark(server);
    run_items(server, items, 0, 40);
    bp_step_server_mark(server);
    run_items(server, items, 40, 110);
    bp_step_server_mark(server);
    run_items(server, items, 0, 40);
    /* The first one late: items that were taken are not taken again. */
    run_items(server, items, 40, 44);
    bp_step_server_mark(server);
    run_items(server, items, 44, 60);
}

/* If nothing was found between two marks, a step begins; two marks together are one. */
TEST(marks_without_matches)
{
    bp_step_plan_item items[40];
    static const uint32_t marks[] = {0, 10};
    make_items(items, COUNT(items), COUNT(items));
    const bp_step_plan_kind kind = {
        .items = items, .item_count = COUNT(items), .marks = marks, .mark_count = COUNT(marks), .steps = 1};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(&kind, 1, 200 * KIB, NULL);
    run_items(server, items, 0, 10);
    bp_step_server_mark(server);
    bp_step_server_mark(server);
    assert_int_equal(statistics_of(server).item, 10);
    assert_refused(server, 9000, 0, BP_STEP_UNKNOWN); /* an evaluation */
    bp_step_server_mark(server);
    run_items(server, items, 0, COUNT(items));
}

/* An unknown allocation costs nothing; an omitted one costs itself; swapped ones cost nothing. */
TEST(insertions_omissions_and_swaps)
{
    bp_step_plan_item items[300];
    make_items(items, COUNT(items), COUNT(items));
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 200 * KIB);
    for (size_t i = 0; i < COUNT(items); i++) {
        if (i % 3 == 0)
            assert_refused(server, 5000 + i, 0, BP_STEP_UNKNOWN);
        run_items(server, items, i, i + 1);
    }
    bp_step_server_mark(server);
    for (size_t i = 0; i < COUNT(items); i++) {
        if (i % 4 > 0)
            run_items(server, items, i, i + 1);
    }
    bp_step_server_mark(server);
    for (size_t i = 0; i < COUNT(items); i += 2) {
        run_items(server, items, i + 1, i + 2);
        run_items(server, items, i, i + 1);
    }
    bp_step_server_mark(server);
    run_items(server, items, 0, 1);
    run_items(server, items, 60, 200);                             /* a layer was left out */
    assert_refused(server, items[10].bytes, 0, BP_STEP_MISPLACED); /* too late */
    run_items(server, items, 200, COUNT(items));
    assert_int_equal(statistics_of(server).resyncs, 0);
}

/* Many places where an item comes too late do not add up. */
TEST(misses_between_matches)
{
    bp_step_plan_item items[300];
    make_items(items, COUNT(items), COUNT(items));
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 200 * KIB);
    run_items(server, items, 0, 100);
    for (size_t i = 100; i < 300; i += 5) {
        assert_refused(server, items[0].bytes, 0, BP_STEP_MISPLACED);
        run_items(server, items, i, i + 5);
    }
    assert_int_equal(statistics_of(server).resyncs, 0);
}

/* The nearest item of a size that is left: behind the place of the program, or ahead of it. */
TEST(nearest_item)
{
    bp_step_plan_item items[100];
    make_items(items, COUNT(items), COUNT(items));
    items[10].bytes = items[13].bytes = items[15].bytes = items[40].bytes = 7000;
    for (size_t i = 0; i < COUNT(items); i++)
        items[i].offset = i * 8 * KIB;
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 900 * KIB);
    run_items(server, items, 0, 10);
    run_items(server, items, 11, 16);
    run_items(server, items, 10, 11);
    assert_int_equal(statistics_of(server).item, 16);
    run_items(server, items, 16, 37);
    run_items(server, items, 40, 41);
    run_items(server, items, 37, 40);
    assert_int_equal(statistics_of(server).item, 41);
}

/* Each size four times, but for some: the place decides which address an allocation gets. */
static void make_layers(bp_step_plan_item items[120])
{
    make_items(items, 120, 30);
    for (size_t i = 0; i < 120; i++)
        items[i].offset = i * 8 * KIB;
    for (size_t i = 60; i < 62; i++)
        items[i].bytes = 5000 + i;
    items[45].bytes = 6000;
}

/* One allocation of a size that comes much later does not move the program there, nor does another one later, in this step or the next. */
TEST(insertions_of_later_sizes)
{
    bp_step_plan_item items[120];
    static const uint32_t marks[] = {0, 10};
    make_layers(items);
    const bp_step_plan_kind kind = {
        .items = items, .item_count = COUNT(items), .marks = marks, .mark_count = COUNT(marks), .steps = 1};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(&kind, 1, 960 * KIB, NULL);
    run_items(server, items, 0, 5);
    run_items(server, items, 60, 61);
    run_items(server, items, 5, 20);
    run_items(server, items, 61, 62);
    run_items(server, items, 20, COUNT(items)); /* the place is known, so that items 60 and 61 are served again */
    bp_step_server_mark(server);
    run_items(server, items, 0, 3);
    run_items(server, items, 60, 61);
    bp_step_server_mark(server);
    run_items(server, items, 61, 62);
    run_items(server, items, 0, 10);
    bp_step_server_mark(server);
    run_items(server, items, 10, 60);
    run_items(server, items, 62, COUNT(items));
    bp_step_server_mark(server);
    run_items(server, items, 0, 10);
    bp_step_server_mark(server);
    run_items(server, items, 10, 12);
    run_items(server, items, 60, 61);
    bp_step_server_mark(server);
    run_items(server, items, 61, 62);
    run_items(server, items, 12, 60);
}

/* A second allocation in order tells that the program is there. */
TEST(omissions_among_equal_sizes)
{
    bp_step_plan_item items[120];
    make_layers(items);
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 960 * KIB);
    run_items(server, items, 0, 5);
    run_items(server, items, 45, COUNT(items));
    bp_step_server_mark(server);
    run_items(server, items, 0, 118);
    run_items(server, items, 119, 120);
    run_items(server, items, 0, 20); /* without a mark */
    assert_int_equal(statistics_of(server).resyncs, 0);
}

/* An item that comes late does not move the program back. */
TEST(late_items)
{
    bp_step_plan_item items[100];
    make_items(items, COUNT(items), COUNT(items));
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 200 * KIB);
    run_items(server, items, 1, 5);
    run_items(server, items, 6, 20);
    assert_int_equal(statistics_of(server).item, 20);
    run_items(server, items, 0, 1);
    assert_int_equal(statistics_of(server).item, 20);
    run_items(server, items, 5, 6);
    assert_int_equal(statistics_of(server).item, 20);
    run_items(server, items, 20, 100);
}

/* An allocation that repeats a known one takes the place of the next of its class, which costs the last one. */
TEST(insertion_of_a_known_size)
{
    bp_step_plan_item items[100];
    make_items(items, COUNT(items), COUNT(items));
    items[10].bytes = items[12].bytes = items[14].bytes = 7000;
    for (size_t i = 0; i < COUNT(items); i++)
        items[i].offset = i * 8 * KIB;
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 900 * KIB);
    run_items(server, items, 0, 11);
    run_items(server, items, 12, 13);
    run_items(server, items, 11, 12);
    run_items(server, items, 14, 15); /* for item 12 */
    run_items(server, items, 13, 14);
    assert_refused(server, 7000, 0, BP_STEP_MISPLACED);
    run_items(server, items, 15, COUNT(items));
}

/* Fewer allocations than tell a place do not. */
TEST(too_few_allocations_for_a_place)
{
    bp_step_plan_item items[139];
    make_items(items, COUNT(items), COUNT(items));
    for (size_t i = 120; i < COUNT(items); i++)
        items[i].bytes = items[0].bytes;
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 200 * KIB);
    run_items(server, items, 0, 1);
    assert_refused(server, items[0].bytes, 0, BP_STEP_MISPLACED);
    run_items(server, items, 1, COUNT(items));
}

/* Of equal places the nearest one ahead is meant. */
TEST(equal_places)
{
    bp_step_plan_item items[400];
    make_items(items, COUNT(items), COUNT(items));
    for (size_t i = 0; i < COUNT(items); i++) {
        if (i % 100 >= 80)
            items[i].bytes = 1000 + i % 100; /* the same in all four hundreds */
    }
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 400 * KIB);
    run_items(server, items, 0, 102);
    assert_true(try_items(server, items, 180, 200) >= 10);
    run_items(server, items, 200, COUNT(items));
}

/* After too many misses nothing is served before the place is known again. */
TEST(lost_place)
{
    bp_step_plan_item items[400];
    make_items(items, COUNT(items), COUNT(items));
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 400 * KIB);
    run_items(server, items, 0, 10);
    for (size_t i = 200; i < 260; i += 3)
        assert_refused(server, items[i].bytes, 0, BP_STEP_MISPLACED);
    assert_refused(server, items[15].bytes, 0, BP_STEP_MISPLACED);
    assert_refused(server, items[10].bytes, 0, BP_STEP_MISPLACED);
    assert_true(try_items(server, items, 300, 320) >= 10);
    run_items(server, items, 320, COUNT(items));
    assert_int_equal(statistics_of(server).resyncs, 1);
}

/* A step without marks may end early. */
TEST(short_steps_without_marks)
{
    bp_step_plan_item items[200];
    make_items(items, COUNT(items), COUNT(items));
    bp_step_plan_kind kind = kind_of(items, COUNT(items));
    kind.mark_count = 0;
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(&kind, 1, 200 * KIB, NULL);
    for (int step = 0; step < 3; step++)
        run_items(server, items, 0, 195);
    assert_int_equal(statistics_of(server).resyncs, 0);
}

/* After a longer departure the last allocations tell the place. */
TEST(finding_the_place_again)
{
    bp_step_plan_item items[600];
    make_items(items, COUNT(items), 150); /* each size four times */
    for (size_t i = 0; i < COUNT(items); i += 5)
        items[i].bytes = 1000 + i * 31 % 240;
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 600 * KIB);
    run_items(server, items, 0, 450);
    assert_true(try_items(server, items, 100, 200) >= 60); /* back, without a mark */
    run_items(server, items, 200, 300);
    assert_true(statistics_of(server).resyncs >= 1 && statistics_of(server).resyncs <= 4);
    assert_true(try_items(server, items, 450, 550) >= 60);
    run_items(server, items, 550, 600);
    bp_step_server_mark(server);
    run_items(server, items, 0, 50); /* an exception: the step ends here */
    bp_step_server_mark(server);
    run_items(server, items, 0, COUNT(items));
}

TEST(pauses)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(100, 512), ITEM(100, 1024)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    for (int step = 0; step < 2; step++) {
        assert_served(server, 100, 0, 0);
        bp_step_server_pause(server, true);
        bp_step_server_pause(server, true);
        free_at(server, 0);
        assert_refused(server, 100, 0, BP_STEP_PAUSED);
        bp_step_server_pause(server, false);
        assert_served(server, 100, 0, 1024); /* the paused one was the second */
        free_at(server, 1024);
        bp_step_server_mark(server);
    }
    bp_step_server_pause(server, true);
    assert_anywhere(server, 4 * KIB, 0, 0);
    free_at(server, 0);
    assert_int_equal(bp_step_server_deviations(server, NULL, 0), 0); /* pausing is none */
}

/* ---- kinds --------------------------------------------------------------------------------------------------------- */

TEST(kinds_with_a_common_beginning)
{
    bp_step_plan_item items[3][80];
    bp_step_plan_kind kinds[3];
    for (size_t k = 0; k < 3; k++) {
        make_items(items[k], 80, 80);
        for (size_t i = 30; i < 80; i++) {
            items[k][i].bytes += 100 * k;
            items[k][i].offset += 512 * 80 * k;
        }
        kinds[k] = kind_of(items[k], 80);
    }
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(kinds, 3, 200 * KIB, NULL);
    static const size_t sequence[] = {0, 1, 1, 2, 0, 2, 1, 0};
    for (size_t i = 0; i < COUNT(sequence); i++) {
        bp_step_server_mark(server);
        run_items(server, items[sequence[i]], 0, 80);
        assert_true(statistics_of(server).kind == sequence[i]);
    }
    assert_int_equal(statistics_of(server).kind_changes, 6);
    assert_int_equal(statistics_of(server).resyncs, 0);
    bp_step_server_mark(server);
    uint64_t offset = NOWHERE;
    for (size_t i = 0; i <= 30; i++)
        assert_int_equal(bp_step_server_allocate(server, items[2][i].bytes, 0, &offset), BP_STEP_SERVED);
    bp_step_block block;
    assert_true(bp_step_server_find(server, offset, &block));
    assert_int_equal(block.kind, 2);
    assert_int_equal(block.item, 30);
}

/* Items of all kinds are in one slab: one that is live keeps those of another kind away. */
TEST(kinds_share_the_slab)
{
    static const bp_step_plan_item one[] = {ITEM(100, 0), ITEM(1000, 512)}, other[] = {ITEM(200, 1024), ITEM(300, 0)};
    const bp_step_plan_kind kinds[] = {kind_of(one, 2), kind_of(other, 2)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(kinds, 2, 4 * KIB, NULL);
    run_items(server, one, 0, 1);
    assert_served(server, 1000, 0, 512);
    bp_step_server_mark(server);
    assert_refused(server, 200, 0, BP_STEP_BUSY);
    assert_served(server, 300, 0, 0);
}

/* The first kind comes once, whatever its steps are. */
TEST(first_kind)
{
    bp_step_plan_item first[60], later[60];
    make_items(first, 60, 60);
    make_items(later, 60, 60);
    for (size_t i = 10; i < 60; i++) {
        first[i].bytes += 1000;
        later[i].offset += 60 * KIB;
    }
    bp_step_plan_kind kinds[] = {kind_of(later, 60), kind_of(first, 60)};
    kinds[1].is_first = 1;
    kinds[1].mark_count = 0;
    kinds[1].steps = 9;
    kinds[0].steps = 5;
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(kinds, 2, 200 * KIB, NULL);
    run_items(server, first, 0, 60);
    for (int step = 0; step < 3; step++) {
        bp_step_server_mark(server);
        run_items(server, later, 0, 60);
    }
    bp_step_server_mark(server);
    run_items(server, later, 0, 10);
    assert_int_equal(try_items(server, first, 10, 60), 0);
    bp_step_server_mark(server);
    run_items(server, later, 0, 60);
}

/* A step is of another kind only if it began like that. */
TEST(kinds_with_different_beginnings)
{
    bp_step_plan_item one[60], other[60];
    make_items(one, 60, 60);
    make_items(other, 60, 60);
    for (size_t i = 0; i < 60; i++) {
        other[i].bytes += i != 20 ? 1000 : 0;
        other[i].offset += 60 * KIB;
    }
    other[20].bytes = one[25].bytes;
    const bp_step_plan_kind kinds[] = {kind_of(one, 60), kind_of(other, 60)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(kinds, 2, 200 * KIB, NULL);
    run_items(server, one, 0, 20);
    run_items(server, one, 25, 26);
    run_items(server, one, 20, 25);
    run_items(server, one, 26, 60);
    assert_int_equal(statistics_of(server).kind_changes, 0);
}

/* A kind that is the beginning of another one. */
TEST(kind_within_a_kind)
{
    bp_step_plan_item items[100];
    make_items(items, COUNT(items), COUNT(items));
    const bp_step_plan_kind kinds[] = {kind_of(items, 100), kind_of(items, 10)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(kinds, 2, 200 * KIB, NULL);
    run_items(server, items, 0, 10);
    assert_refused(server, items[0].bytes, 0, BP_STEP_MISPLACED);
    run_items(server, items, 10, 100);
    bp_step_server_mark(server);
    run_items(server, items, 0, 10);
    bp_step_server_mark(server);
    run_items(server, items, 0, 100);
    assert_int_equal(statistics_of(server).resyncs, 0);
}

/* A kind that the program left in the middle begins anew. */
TEST(kind_that_was_left)
{
    bp_step_plan_item one[120], other[120];
    make_items(one, 120, 120);
    make_items(other, 120, 120);
    for (size_t i = 30; i < 120; i++) {
        other[i].bytes += 1000;
        other[i].offset += 60 * KIB;
    }
    const bp_step_plan_kind kinds[] = {kind_of(one, 120), kind_of(other, 120)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_kinds(kinds, 2, 200 * KIB, NULL);
    run_items(server, one, 0, 60);
    assert_true(try_items(server, other, 50, 120) >= 50);
    assert_int_equal(statistics_of(server).kind, 1);
    const uint64_t resyncs = statistics_of(server).resyncs;
    for (int step = 0; step < 2; step++) {
        bp_step_server_mark(server);
        run_items(server, one, 0, 120);
    }
    assert_int_equal(statistics_of(server).resyncs, resyncs);
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

typedef struct recorded {
    char text[2048];   /* "0.1 " for record, "2<0.1 " for wait */
    uint32_t captured; /* streams whose calls are refused */
    uint64_t points[BP_STEP_STREAMS];
} recorded;

static void append(recorded *calls, const char *text)
{
    size_t length = strlen(calls->text);
    snprintf(calls->text + length, sizeof calls->text - length, "%s", text);
}

static bool on_record(void *context, uint32_t stream, uint64_t point)
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

static bool on_wait(void *context, uint32_t stream, uint32_t before, uint64_t point)
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

static bp_step_server *serve_streams(const bp_step_plan_item *items, size_t count, uint64_t slab_bytes, recorded *calls)
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

/* The event is recorded when somebody waits, or at the free of an item that precedes another stream; a second wait for the same work is
 * not made. */
TEST(waits)
{
    bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 512, 0), ITEM_ON(300, 0, 1), ITEM_ON(400, 512, 1),
                                 ITEM_ON(500, 0, 0)};
    for (uint32_t precedes = 0; precedes < 2; precedes++) {
        recorded calls = {0};
        items[0].precedes_stream = items[1].precedes_stream = precedes;
        SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), KIB, &calls);
        assert_served(server, 100, 0, 0);
        assert_served(server, 200, 0, 512);
        assert_ok(bp_step_server_use(server, 0, 3)); /* there are several streams from here on */
        free_at(server, 512);
        free_at(server, 0);
        if (precedes)
            assert_calls(&calls, "0.1 0.2 3.1 ");
        else
            assert_calls(&calls, "");
        assert_served(server, 300, 1, 0);
        if (precedes)
            assert_calls(&calls, "1<0.2 1<3.1 ");
        else
            assert_calls(&calls, "0.1 1<0.1 3.1 1<3.1 ");
        assert_served(server, 400, 1, 512); /* what stream 0 did before it freed this was before that event */
        assert_calls(&calls, "");
        free_at(server, 0);
        assert_served(server, 500, 0, 0);
        assert_calls(&calls, "1.1 0<1.1 ");
        const bp_step_statistics s = statistics_of(server);
        assert_int_equal(s.events, precedes ? 4 : 3);
        assert_int_equal(s.waits, 3);
        assert_int_equal(bp_step_server_waits(server, 1, 0), 1);
        assert_int_equal(bp_step_server_waits(server, 1, 3), 1);
        assert_int_equal(bp_step_server_waits(server, 0, 1), 1);
        assert_int_equal(bp_step_server_waits(server, 3, 0), 0);
    }
}

/* A stream alone needs no events, until another one comes: then all that was freed is the first one's. */
TEST(second_stream)
{
    static const bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 0, 0), ITEM_ON(300, 0, 1),
                                              ITEM_ON(400, 512, 1)};
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), KIB, &calls);
    assert_served(server, 100, 4, 0);
    free_at(server, 0);
    assert_served(server, 200, 4, 0);
    free_at(server, 0);
    assert_calls(&calls, "");
    assert_served(server, 300, 7, 0);
    assert_calls(&calls, "4.1 7<4.1 ");
    assert_served(server, 400, 7, 512);
    assert_calls(&calls, "");
}

/* Of a stream that records more events than are kept, the first one that is kept is waited for. */
TEST(more_events_than_are_kept)
{
    bp_step_plan_item items[300];
    make_items(items, COUNT(items), 512);
    for (size_t i = 0; i < COUNT(items); i++)
        items[i].precedes_stream = 1;
    items[299].stream = 1;
    items[299].offset = 0;
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), 200 * KIB, &calls);
    assert_served(server, items[0].bytes, 0, 0);
    assert_ok(bp_step_server_use(server, 0, 5)); /* there are several streams */
    for (size_t i = 1; i < 299; i++) {
        assert_served(server, items[i].bytes, 0, 512 * i);
        calls.text[0] = '\0';
        if (i == 100)
            free_at(server, 0);
        else
            free_at(server, 512 * i);
    }
    calls.text[0] = '\0';
    assert_served(server, items[299].bytes, 1, 0);
    unsigned long long point = 0;
    assert_int_equal(sscanf(calls.text, "1<0.%llu 1<5.1 ", &point), 1);
    assert_true(point >= 100 && point <= 298);
}

/* A wait for work that waited for other work is enough. */
TEST(waits_are_transitive)
{
    static const bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 512, 0), ITEM_ON(300, 0, 1),
                                              ITEM_ON(400, 0, 2), ITEM_ON(500, 512, 2)};
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), KIB, &calls);
    assert_served(server, 100, 0, 0);
    assert_served(server, 200, 0, 512);
    free_at(server, 0);
    free_at(server, 512);
    assert_served(server, 300, 1, 0);
    free_at(server, 0);
    assert_calls(&calls, "0.1 1<0.1 ");
    assert_served(server, 400, 2, 0);
    assert_calls(&calls, "1.1 2<1.1 ");
    assert_served(server, 500, 2, 512); /* stream 0 freed it before the event that stream 1 waited for */
    assert_calls(&calls, "");
}

TEST(streams_that_are_captured)
{
    bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 512, 1), ITEM_ON(300, 0, 1), ITEM_ON(300, 0, 1),
                                 ITEM_ON(300, 0, 1)};
    items[0].precedes_stream = 1;
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), KIB, &calls);
    assert_served(server, 100, 0, 0);
    assert_served(server, 200, 1, 512);
    assert_calls(&calls, "0.1 1<0.1 "); /* as the second stream */
    calls.captured = 1;
    free_at(server, 0); /* allowed, without an event */
    assert_calls(&calls, "");
    assert_refused(server, 300, 1, BP_STEP_UNORDERED); /* stream 0 cannot record */
    assert_nowhere(server, 512, 1, BP_STEP_UNORDERED);
    calls.captured = 2;
    assert_refused(server, 300, 1, BP_STEP_UNORDERED); /* stream 1 cannot wait */
    assert_calls(&calls, "0.2 ");
    calls.captured = 0;
    assert_int_equal(statistics_of(server).live, 1);
    assert_served(server, 300, 1, 0);
    assert_calls(&calls, "1<0.2 ");
    assert_int_equal(statistics_of(server).outcomes[BP_STEP_UNORDERED], 2);
    assert_int_equal(statistics_of(server).waits, 2);
}

/* Without callbacks memory does not change streams. */
TEST(streams_without_callbacks)
{
    static const bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 0, 1), ITEM_ON(300, 0, 0),
                                              ITEM_ON(400, 512, 1)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), KIB);
    assert_served(server, 100, 0, 0);
    assert_ok(bp_step_server_use(server, 0, 1));
    free_at(server, 0);
    assert_refused(server, 200, 1, BP_STEP_UNORDERED);
    assert_refused(server, 300, 0, BP_STEP_UNORDERED);
    assert_nowhere(server, 1024, 0, BP_STEP_UNORDERED);
}

/* A server is used where memory is short. */
TEST(no_call_allocates)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM_ON(1000, 512, 1)};
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), 64 * KIB, &calls);
    bp_step_block block;
    bp_step_deviation deviations[8];
    uint64_t offset = 0;
    shortage.counts = true;
    shortage.allocations = 0;
    for (int step = 0; step < 3; step++) {
        assert_int_equal(bp_step_server_allocate(server, 100, 0, &offset), BP_STEP_SERVED);
        assert_int_equal(bp_step_server_allocate(server, 1000, 2, &offset), BP_STEP_SERVED);
        assert_int_equal(bp_step_server_allocate_anywhere(server, 5000, 2, &offset), BP_STEP_SERVED);
        assert_int_equal(bp_step_server_allocate(server, 999, 2, &offset), BP_STEP_UNKNOWN);
        assert_ok(bp_step_server_use(server, 0, 3));
        assert_true(bp_step_server_find(server, 0, &block));
        for (uint64_t at = 0; bp_step_server_find(server, at, &block); at = block.offset)
            assert_ok(bp_step_server_free(server, block.offset, NULL));
        bp_step_server_mark(server);
        bp_step_server_deviations(server, deviations, 8);
        assert_ok(bp_step_server_check(server));
    }
    shortage.counts = false;
    assert_int_equal(shortage.allocations, 0);
}

/* Streams of the plan get those of the caller that allocate as they do. */
TEST(binding_of_streams)
{
    static const bp_step_plan_item items[] = {ITEM_ON(100, 0, 2), ITEM_ON(100, 512, 0), ITEM_ON(300, 1024, 1),
                                              ITEM_ON(100, 1536, 0), ITEM_ON(100, 2048, 2)};
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), 4 * KIB, &calls);
    for (int step = 0; step < 6; step++) {
        assert_served(server, 100, 9, 0);
        assert_served(server, 100, 30, 512);
        assert_served(server, 300, 2, 1024);
        assert_refused(server, 300, 9, BP_STEP_UNKNOWN);  /* its stream of the plan has no such item */
        assert_refused(server, 100, 17, BP_STEP_UNKNOWN); /* a stream that the plan does not have */
        assert_served(server, 100, 30, 1536);
        assert_served(server, 100, 9, 2048);
        for (uint64_t offset = 0; offset <= 2048; offset += 512)
            free_at(server, offset);
        bp_step_server_mark(server);
    }
    assert_int_equal(statistics_of(server).waits, 2); /* on the first stream; then each range stays on its own */
}

/* Streams that were bound to each other's are bound again. */
TEST(wrong_bindings)
{
    bp_step_plan_item items[82] = {ITEM_ON(50, 0, 1), ITEM_ON(50, 512, 0)};
    for (uint32_t i = 2; i < COUNT(items); i++)
        items[i] = (bp_step_plan_item)ITEM_ON(100 + i, 512 * i, i % 2);
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), 64 * KIB, &calls);
    for (int step = 0; step < 3; step++) {
        bp_step_server_mark(server);
        for (uint32_t i = 0; i < COUNT(items); i++) {
            /* In the first step the first two come in the other order. */
            const bool is_swapped = step == 0 && i < 2;
            const bool is_one = (items[i].stream == 1) != is_swapped;
            uint64_t offset = NOWHERE;
            bp_step_outcome outcome = bp_step_server_allocate(server, items[i].bytes, is_one ? 8 : 7, &offset);
            if (step > 0) {
                assert_int_equal(outcome, BP_STEP_SERVED);
                assert_int_equal(offset, items[i].offset);
            }
            if (outcome == BP_STEP_SERVED)
                free_at(server, offset);
        }
    }
}

/* A stream that allocates no more gives its stream of the plan away. */
TEST(streams_that_are_gone)
{
    static const bp_step_plan_item items[] = {ITEM_ON(50, 0, 0), ITEM_ON(60, 512, 1), ITEM_ON(70, 1024, 0)};
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), 2 * KIB, &calls);
    for (int step = 0; step < 6; step++) {
        bp_step_server_mark(server);
        assert_served(server, 50, 3, 0);
        uint64_t offset = NOWHERE;
        bp_step_outcome outcome = bp_step_server_allocate(server, 60, step == 0 ? 4 : 5, &offset);
        assert_true(outcome == BP_STEP_SERVED || (step > 0 && step < 5));
        if (outcome == BP_STEP_SERVED)
            free_at(server, offset);
        assert_served(server, 70, 3, 1024);
        free_at(server, 0);
        free_at(server, 1024);
    }
    assert_refused(server, 60, 4, BP_STEP_UNKNOWN);
}

/* A stream whose size occurs on several streams of the plan, far away, is bound when the first of them is near. */
TEST(binding_that_is_not_clear)
{
    bp_step_plan_item items[200];
    make_items(items, COUNT(items), COUNT(items));
    items[150].bytes = items[160].bytes = 5000;
    items[150].stream = 1;
    items[160].stream = 2;
    for (size_t i = 0; i < COUNT(items); i++)
        items[i].offset = 8 * KIB * i;
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), 1600 * KIB, &calls);
    run_items(server, items, 0, 1);
    assert_refused(server, 5000, 9, BP_STEP_UNKNOWN);
    run_items(server, items, 1, 150);
    assert_served(server, 5000, 9, items[150].offset);
    run_items(server, items, 151, 160);
    assert_served(server, 5000, 10, items[160].offset);
}

/* ---- anywhere ------------------------------------------------------------------------------------------------------ */

TEST(anywhere_is_best_fit)
{
    static const bp_step_plan_item items[] = {ITEM(512, 1024), ITEM(512, 3072), ITEM(1000, 4096), ITEM(512, 6144),
                                              ITEM(100, 0)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 64 * KIB);
    assert_served(server, 512, 0, 1024);
    assert_served(server, 512, 0, 3072);
    assert_served(server, 1000, 0, 4096);
    assert_served(server, 512, 0, 6144);
    /* Free: 1024 at 0, 1536 at 1536, 512 at 3584, 1024 at 5120, the rest at 6656. */
    assert_anywhere(server, 1, 0, 3584);
    bp_step_block block;
    assert_true(bp_step_server_find(server, 3584, &block));
    assert_int_equal(block.kind, UINT32_MAX);
    assert_int_equal(block.item, UINT32_MAX);
    assert_int_equal(block.requested_bytes, 1);
    assert_anywhere(server, 1025, 0, 1536);
    assert_anywhere(server, 1537, 0, 6656);
    assert_int_equal(statistics_of(server).anywhere, 3);
    assert_int_equal(statistics_of(server).outcomes[BP_STEP_SERVED], 4);
    assert_anywhere(server, 513, 0, 0); /* 100 bytes at 0 are planned there */
    assert_refused(server, 100, 0, BP_STEP_BUSY);
    assert_nowhere(server, 64 * KIB, 0, BP_STEP_BUSY);
    assert_nowhere(server, UINT64_MAX, 0, BP_STEP_BUSY);
    assert_nowhere(server, 0, 0, BP_STEP_BUSY);
    static const uint64_t offsets[] = {3584, 1536, 6656, 0};
    for (size_t i = 0; i < COUNT(offsets); i++)
        free_at(server, offsets[i]);
    bp_step_server_mark(server);
    assert_int_equal(statistics_of(server).live, 4);
}

/* As many blocks as the slab has room for. */
TEST(anywhere_to_the_last_byte)
{
    enum { CELLS = 3000 };
    bp_step_plan_item *items = calloc(CELLS, sizeof *items);
    assert_non_null(items);
    make_items(items, CELLS, 512);
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, CELLS, 512 * CELLS);
    uint64_t offset = NOWHERE;
    for (size_t i = 0; i < CELLS; i++)
        assert_int_equal(bp_step_server_allocate_anywhere(server, 1 + i % 512, 0, &offset), BP_STEP_SERVED);
    assert_nowhere(server, 1, 0, BP_STEP_BUSY);
    assert_int_equal(statistics_of(server).live_bytes, 512 * CELLS);
    for (size_t i = 0; i < CELLS; i++)
        assert_ok(bp_step_server_free(server, 512 * i, NULL));
    run_items(server, items, 0, CELLS);
    free(items);
}

TEST(anywhere_is_ordered)
{
    static const bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 512, 1)};
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), KIB, &calls);
    assert_served(server, 100, 0, 0);
    assert_served(server, 200, 1, 512);
    assert_calls(&calls, "0.1 1<0.1 "); /* as the second stream */
    free_at(server, 0);
    assert_anywhere(server, 300, 1, 0);
    assert_calls(&calls, "0.2 1<0.2 ");
    free_at(server, 0);
    assert_anywhere(server, 300, 0, 0);
    assert_calls(&calls, "1.1 0<1.1 ");
}

/* ---- another plan -------------------------------------------------------------------------------------------------- */

static bp_step_plan *plan_of(const bp_step_plan_kind *kinds, size_t count, uint64_t slab_bytes)
{
    static const uint64_t handles[] = {11, 12};
    bp_step_plan *plan = NULL;
    assert_ok(bp_step_plan_from_info(
        &(bp_step_plan_info){
            .bytes = slab_bytes, .kinds = kinds, .kind_count = count, .streams = handles, .stream_count = 2},
        &plan));
    return plan;
}

TEST(replaced_plans)
{
    static const bp_step_plan_item one[] = {ITEM(1000, 512), ITEM(100, 2048)},
                                   two[] = {ITEM(100, 1024), ITEM(200, 1536), ITEM(300, 0)};
    const bp_step_plan_kind kind = kind_of(two, COUNT(two));
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&kind, 1, 2 * KIB);
    SCOPED(bp_step_plan_destroy) bp_step_plan *large = plan_of(&kind, 1, 5 * KIB);
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(one, COUNT(one), 4 * KIB);
    assert_served(server, 1000, 0, 512);
    assert_served(server, 100, 0, 2048);
    assert_anywhere(server, 1200, 0, 2560);
    free_at(server, 2048);
    assert_refused(server, 77, 0, BP_STEP_UNKNOWN);
    assert_fails(bp_step_server_replace(NULL, plan), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_step_server_replace(server, NULL), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_step_server_replace(server, large), BP_ERR_INVALID_ARGUMENT, "5120", "4096");
    FAIL_EACH(bp_step_server_replace(server, plan)); /* the last one succeeds */
    assert_ok(bp_step_server_check(server));
    assert_int_equal(bp_step_server_deviations(server, NULL, 0), 0);
    assert_int_equal(statistics_of(server).live, 2);
    assert_int_equal(statistics_of(server).outcomes[BP_STEP_UNKNOWN], 1);
    assert_refused(server, 100, 0, BP_STEP_BUSY);
    assert_served(server, 200, 0, 1536);
    assert_served(server, 300, 0, 0);
    bp_step_block block;
    assert_ok(bp_step_server_free(server, 512, &block));
    assert_int_equal(block.bytes, 1024);
    assert_int_equal(block.requested_bytes, 1000);
    assert_int_equal(block.item, UINT32_MAX);
    assert_ok(bp_step_server_free(server, 2560, &block));
    assert_int_equal(block.requested_bytes, 1200);
    bp_step_server_mark(server);
    assert_served(server, 100, 0, 1024);
    assert_anywhere(server, 2 * KIB, 0, 2 * KIB); /* the end of the slab, which the plan does not use */
}

/* A process has its first step once. */
TEST(replaced_plans_without_their_first_step)
{
    bp_step_plan_item first[20], later[20];
    static const uint32_t middle[] = {1};
    make_items(first, 20, 20);
    make_items(later, 20, 20);
    for (size_t i = 0; i < 20; i++)
        later[i].offset += 20 * KIB;
    bp_step_plan_kind kinds[] = {kind_of(first, 20), kind_of(later, 20)};
    kinds[0].is_first = 1;
    kinds[0].marks = middle;
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(kinds, 2, 40 * KIB);
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(first, 20, 40 * KIB);
    run_items(server, first, 0, 20);
    bp_step_server_mark(server);
    assert_ok(bp_step_server_replace(server, plan));
    run_items(server, later, 0, 20);
}

/* Memory that streams used before the replacement is waited for after it. */
TEST(replaced_plans_keep_the_order)
{
    static const bp_step_plan_item items[] = {ITEM_ON(100, 0, 0), ITEM_ON(200, 512, 1), ITEM_ON(300, 0, 1)};
    const bp_step_plan_kind kind = kind_of(items, COUNT(items));
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&kind, 1, KIB);
    recorded calls = {0};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve_streams(items, COUNT(items), KIB, &calls);
    assert_served(server, 100, 0, 0);
    assert_served(server, 200, 1, 512);
    assert_calls(&calls, "0.1 1<0.1 ");
    free_at(server, 0);
    assert_ok(bp_step_server_replace(server, plan));
    assert_served(server, 300, 1, 0);
    assert_calls(&calls, "0.2 1<0.2 ");
    assert_int_equal(bp_step_server_waits(server, 1, 0), 2);
}

/* ---- looking at it ------------------------------------------------------------------------------------------------- */

TEST(statistics)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(1000, 512), ITEM(100, 2048)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    assert_served(server, 100, 0, 0);
    assert_served(server, 1000, 0, 512);
    assert_int_equal(statistics_of(server).item, 2);
    free_at(server, 512);
    bp_step_statistics s = statistics_of(server);
    assert_int_equal(s.live, 1);
    assert_int_equal(s.live_bytes, 512);
    assert_int_equal(s.peak_live_bytes, 1536);
    bp_step_server_reset_peak(server);
    assert_int_equal(statistics_of(server).peak_live_bytes, 512);
    assert_served(server, 100, 0, 2048);
    assert_int_equal(statistics_of(server).peak_live_bytes, 1024);
    bp_step_server_mark(server);
    const uint64_t steps = statistics_of(server).steps;
    free_at(server, 0);
    assert_served(server, 100, 0, 0);
    bp_step_server_mark(server);
    assert_int_equal(statistics_of(server).steps, steps + 1);
    assert_int_equal(statistics_of(server).marks, 2);
    assert_fails(bp_step_server_get_statistics(server, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_step_statistics wrong = {.size = 1};
    assert_fails(bp_step_server_get_statistics(server, &wrong), BP_ERR_INVALID_ARGUMENT, NULL);
}

TEST(deviations)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(200, 0), ITEM(300, BP_STEP_OUTSIDE), ITEM(400, 512)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), KIB);
    for (int step = 0; step < 3; step++) {
        if (step == 0)
            assert_served(server, 100, 6, 0);
        else
            assert_refused(server, 100, 6, BP_STEP_BUSY); /* it was kept */
        assert_refused(server, 200, 6, BP_STEP_BUSY);
        assert_refused(server, 300, 6, BP_STEP_UNPLANNED);
        assert_served(server, 400, 6, 512);
        free_at(server, 512);
        assert_refused(server, 999, 6, BP_STEP_UNKNOWN);
        bp_step_server_mark(server);
    }
    bp_step_deviation rows[8];
    assert_int_equal(bp_step_server_deviations(server, NULL, 0), 4);
    memset(rows, 0x55, sizeof rows);
    assert_int_equal(bp_step_server_deviations(server, rows, 2), 4);
    assert_int_equal(rows[2].count, UINT64_C(0x5555555555555555));
    assert_int_equal(bp_step_server_deviations(server, rows, 8), 4);
    const bp_step_deviation expected[] = {
        {.outcome = BP_STEP_BUSY, .stream = 6, .bytes = 200, .count = 3, .item = 1},
        {.outcome = BP_STEP_UNPLANNED, .stream = 6, .bytes = 300, .count = 3, .item = 2},
        {.outcome = BP_STEP_UNKNOWN, .stream = 6, .bytes = 999, .count = 3, .item = rows[2].item},
        {.outcome = BP_STEP_BUSY, .stream = 6, .bytes = 100, .count = 2, .mark = 1, .item = 0},
    };
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_int_equal(rows[i].outcome, expected[i].outcome);
        assert_int_equal(rows[i].stream, expected[i].stream);
        assert_int_equal(rows[i].bytes, expected[i].bytes);
        assert_int_equal(rows[i].count, expected[i].count);
        assert_int_equal(rows[i].mark, expected[i].mark);
        assert_int_equal(rows[i].kind, expected[i].kind);
        assert_int_equal(rows[i].item, expected[i].item);
    }
}

/* Groups differ in outcome, size or stream. */
TEST(groups_of_deviations)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0), ITEM(100, 0)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), KIB);
    assert_served(server, 100, 3, 0);
    assert_refused(server, 100, 3, BP_STEP_BUSY);
    assert_refused(server, 100, 3, BP_STEP_BUSY); /* the next step, without a mark */
    bp_step_server_mark(server);
    assert_refused(server, 100, 4, BP_STEP_UNKNOWN);
    assert_refused(server, 101, 4, BP_STEP_UNKNOWN);
    assert_refused(server, 101, 3, BP_STEP_UNKNOWN);
    assert_int_equal(bp_step_server_deviations(server, NULL, 0), 4);
    bp_step_deviation rows[4];
    bp_step_server_deviations(server, rows, 4);
    assert_int_equal(rows[0].count, 2);
    assert_int_equal(rows[3].count, 1);
}

TEST(more_deviations_than_are_kept)
{
    static const bp_step_plan_item items[] = {ITEM(100, 0)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), KIB);
    for (uint64_t round = 0; round < 2; round++) {
        for (uint64_t bytes = 1000; bytes < 1200; bytes++)
            assert_refused(server, bytes, 0, BP_STEP_UNKNOWN);
    }
    bp_step_deviation rows[BP_STEP_DEVIATIONS + 1];
    assert_int_equal(bp_step_server_deviations(server, rows, COUNT(rows)), BP_STEP_DEVIATIONS);
    for (size_t i = 0; i < BP_STEP_DEVIATIONS; i++) {
        assert_int_equal(rows[i].bytes, 1000 + i);
        assert_int_equal(rows[i].count, 2);
    }
    assert_int_equal(statistics_of(server).outcomes[BP_STEP_UNKNOWN], 400);
}

/* The check finds damage to each part of the state. */
TEST(check_finds_damage)
{
    static const bp_step_plan_item items[] = {ITEM(1000, 512), ITEM(100, 1536), ITEM(100, 1024), ITEM(512, 0)};
    SCOPED(bp_step_server_destroy) bp_step_server *server = serve(items, COUNT(items), 4 * KIB);
    assert_served(server, 1000, 0, 512);
    assert_served(server, 100, 0, 1536);
    const uint64_t busy = server->busy[0], starts = server->starts[0];
    for (uint32_t atom = 0; atom < server->atom_count; atom++) {
        server->busy[0] = busy ^ (uint64_t)1 << atom;
        assert_fails(bp_step_server_check(server), BP_ERR_MISMATCH, NULL);
        server->busy[0] = busy;
        server->starts[0] = starts & ~((uint64_t)1 << atom);
        if (server->starts[0] != starts)
            assert_fails(bp_step_server_check(server), BP_ERR_MISMATCH, NULL);
        server->starts[0] = starts;
        const serve_block block = server->blocks[atom];
        for (uint32_t item = 0; item < COUNT(items) && (starts >> atom & 1); item++) {
            server->blocks[atom].item = item != block.item ? item : NONE;
            server->blocks[atom].end += item == block.item;
            assert_fails(bp_step_server_check(server), BP_ERR_MISMATCH, NULL);
            server->blocks[atom] = block;
        }
    }
    const uint32_t class = server->items[0].class;
    server->class_bytes[class] = 1025;
    assert_fails(bp_step_server_check(server), BP_ERR_MISMATCH, "1025");
    server->class_bytes[class] = 1000;
    /* The third item's memory, which the first one has. */
    server->starts[0] = starts | (uint64_t)1 << server->items[2].first;
    server->blocks[server->items[2].first] = (serve_block){.end = server->items[2].end, .item = 2};
    server->statistics.live++;
    server->statistics.live_bytes += 512;
    assert_fails(bp_step_server_check(server), BP_ERR_MISMATCH, "overlaps");
    server->statistics.live--;
    server->statistics.live_bytes -= 512;
    server->starts[0] = starts;
    uint64_t *const counters[] = {&server->statistics.live, &server->statistics.live_bytes};
    for (size_t i = 0; i < COUNT(counters); i++) {
        ++*counters[i];
        assert_fails(bp_step_server_check(server), BP_ERR_MISMATCH, NULL);
        --*counters[i];
    }
    assert_ok(bp_step_server_check(server));
}
