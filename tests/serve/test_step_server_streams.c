/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of a server: waits and events, streams of the plan and of the caller; memory anywhere; another plan. */
#include "calls.h"

#include "support/shortage.h"

/* ---- streams ------------------------------------------------------------------------------------------------------- */

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
