/* SPDX-License-Identifier: Apache-2.0 */
/* The place of a program in its plan: marks, deviations from the order, places that are found again, kinds of steps. */
#include "calls.h"

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
