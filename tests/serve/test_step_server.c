/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a step plan, function by function: creation, outcomes, frees, and what it shows. */
#include "calls.h"

#include "allocators/serve/server.h"
#include "support/shortage.h"

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
