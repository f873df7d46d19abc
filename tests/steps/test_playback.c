/* SPDX-License-Identifier: Apache-2.0 */
/* Traces through the model of PyTorch's caching allocator: snapshots that PyTorch recorded (tests/data/snapshots), hand-made traces, and random
 * ones that no allocator could have recorded. Argument: the source folder. */
#include "support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/snapshots/trace_file.h"
#include "step/allocator/playback.h"
#include "support/brief.h"
#include "support/scenarios.h"
#include "support/shortage.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static const char *source_root;

static const struct {
    const char *name;
    uint64_t limit_bytes; /* the process's memory fraction, which snapshots lack */
} snapshots[] = {{"default", 0},   {"ring", 0},          {"expandable", 0}, {"expandable_ring", 0},
                 {"max_split", 0}, {"garbage", 2 * GIB}, {"roundup", 0}};

enum { SNAPSHOTS = sizeof snapshots / sizeof *snapshots };

static bp_trace_file *read_snapshot(const char *name, const bp_trace **trace)
{
    char path[1024];
    bp_trace_file *file = NULL;
    snprintf(path, sizeof path, "%s/tests/data/snapshots/%s.pickle", source_root, name);
    assert_ok(bp_trace_file_read(path, &file));
    assert_int_equal(bp_trace_file_get_info(file)->trace_count, 1);
    *trace = bp_trace_file_get_info(file)->traces;
    return file;
}

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

TEST(test_snapshots_are_reproduced)
{
    uint64_t failures = 0, releases = 0;
    for (size_t i = 0; i < SNAPSHOTS; i++) {
        const bp_trace *trace;
        bp_trace_file *file = read_snapshot(snapshots[i].name, &trace);
        uint64_t *reserved = calloc(trace->event_count, sizeof *reserved), bytes = 0;
        bp_caching_settings settings;
        bp_check_result result;
        bp_caching_settings_read(trace, &settings);
        settings.limit_bytes = snapshots[i].limit_bytes;
        assert_ok(bp_play_check(trace, &settings, 1, reserved, &result));
        if (result.departures != 0)
            fail_msg("%s: event %zu departs", snapshots[i].name, result.first.event);
        assert_true(result.end_agrees);
        assert_true(result.allocations > 20 && result.segment_events > 5);
        assert_int_equal(result.stopped_at, trace->event_count);
        assert_int_equal(
            result.oddities.frees_without_alloc + result.oddities.allocs_over_live + result.oddities.contradictions, 0);
        failures += result.counters.failures;
        releases += result.counters.device_releases;
        for (size_t j = 0; j < trace->segment_count; j++)
            bytes += trace->segments[j].bytes;
        assert_int_equal(reserved[trace->event_count - 1], bytes);
        free(reserved);
        bp_trace_file_destroy(&file);
    }
    assert_true(failures > 0 && releases > 20);
}

/* With segments and rounding that the recorded allocator did not have. */
TEST(test_other_settings_depart)
{
    for (size_t i = 0; i < SNAPSHOTS; i++) {
        const bp_trace *trace;
        bp_trace_file *file = read_snapshot(snapshots[i].name, &trace);
        bp_caching_settings settings;
        bp_check_result result;
        bp_caching_settings_read(trace, &settings);
        settings.limit_bytes = snapshots[i].limit_bytes;
        settings.large_segment_bytes = 60 * MIB;
        settings.max_split_bytes = 0;
        for (size_t j = 0; j < 16; j++)
            settings.roundup_power2_divisions[j] = 2;
        assert_ok(bp_play_check(trace, &settings, 3, NULL, &result));
        assert_true(result.departures > 0);
        assert_true(result.first.event < trace->event_count && result.stopped_at >= result.first.event);
        bp_trace_file_destroy(&file);
    }
}

TEST(test_snapshots_are_played)
{
    for (size_t i = 0; i < SNAPSHOTS; i++) {
        const bp_trace *trace;
        bp_trace_file *file = read_snapshot(snapshots[i].name, &trace);
        size_t count = trace->event_count;
        uint64_t *bytes = calloc(3 * count, sizeof *bytes), peak = 0;
        bp_play_options options;
        bp_play_result result;
        for (int kind = 0; kind < 4; kind++) {
            bp_play_options_init(&options, trace);
            options.reserved_bytes = bytes;
            options.active_bytes = bytes + count;
            options.requested_bytes = bytes + 2 * count;
            options.settings.expandable_segments = kind & 1;
            if (kind >= 2)
                options.settings.device_bytes = 700 * MIB;
            assert_ok(bp_play(trace, &options, &result));
            assert_int_equal(result.oddities.frees_without_alloc + result.oddities.allocs_over_live, 0);
            peak = 0;
            for (size_t j = 0; j < count; j++) {
                assert_true(bytes[j] >= bytes[count + j] && bytes[count + j] >= bytes[2 * count + j]);
                assert_true(kind < 2 || bytes[j] <= 700 * MIB);
                peak = bytes[j] > peak ? bytes[j] : peak;
            }
            assert_true(peak <= result.counters.peak_reserved_bytes);
            assert_int_equal(bytes[result.peak_event], peak);
            assert_int_equal(result.failed_bytes > 0, result.counters.failures > 0);
            assert_true(kind >= 2 || result.failed_bytes == 0);
        }
        bp_trace_file_destroy(&file);
        free(bytes);
    }
}

/* ---- hand-made traces -------------------------------------------------------------------------------------------- */

enum { MAX_EVENTS = 64, MAX_SEGMENTS = 8, MAX_BLOCKS = 16 };

/* With segments at multiples of 1 GiB. */
typedef struct made_trace {
    bp_trace trace;
    bp_trace_event events[MAX_EVENTS];
    bp_trace_segment segments[MAX_SEGMENTS];
    bp_trace_block blocks[MAX_BLOCKS];
    uint64_t streams[2];
} made_trace;

static void begin(made_trace *made)
{
    *made = (made_trace){.streams = {0, 77}};
    made->trace = (bp_trace){.events = made->events,
                             .segments = made->segments,
                             .blocks = made->blocks,
                             .streams = made->streams,
                             .stream_count = 2};
}

static void add(made_trace *made, bp_trace_action action, uint64_t address, uint64_t bytes)
{
    made->events[made->trace.event_count++] = (bp_trace_event){.address = address, .bytes = bytes, .action = action};
}

static void add_segment(made_trace *made, uint64_t address, uint64_t bytes, bool is_large, bool is_expandable)
{
    made->segments[made->trace.segment_count++] = (bp_trace_segment){.address = address,
                                                                     .bytes = bytes,
                                                                     .first_block = made->trace.block_count,
                                                                     .is_large = is_large,
                                                                     .is_expandable = is_expandable};
}

static void add_block(made_trace *made, uint64_t address, uint64_t bytes, bool active)
{
    made->blocks[made->trace.block_count++] =
        (bp_trace_block){.address = address, .bytes = bytes, .requested_bytes = bytes, .active = active};
    made->segments[made->trace.segment_count - 1].block_count++;
}

static bp_check_result check(const made_trace *made)
{
    bp_caching_settings settings;
    bp_check_result result;
    bp_caching_settings_read(&made->trace, &settings);
    assert_ok(bp_play_check(&made->trace, &settings, 10, NULL, &result));
    return result;
}

static void assert_departs(const made_trace *made, size_t event, bp_departure_kind kind, uint64_t recorded,
                           uint64_t modelled)
{
    bp_check_result result = check(made);
    assert_int_equal(result.departures, 1);
    assert_int_equal(result.first.event, event);
    assert_int_equal(result.first.kind, kind);
    assert_int_equal(result.first.recorded, recorded);
    assert_int_equal(result.first.modelled, modelled);
}

/* Two blocks in a segment of 20 MiB; the first is freed. */
static void begin_two_blocks(made_trace *made)
{
    begin(made);
    add(made, BP_TRACE_SEGMENT_ALLOC, GIB, 20 * MIB);
    add(made, BP_TRACE_ALLOC, GIB, 4 * MIB);
    add(made, BP_TRACE_ALLOC, GIB + 4 * MIB, 4 * MIB);
    add(made, BP_TRACE_FREE_REQUESTED, GIB, 4 * MIB);
    add(made, BP_TRACE_FREE_COMPLETED, GIB, 4 * MIB);
}

static void end_two_blocks(made_trace *made)
{
    add_segment(made, GIB, 20 * MIB, true, false);
    add_block(made, GIB, 4 * MIB, false);
    add_block(made, GIB + 4 * MIB, 4 * MIB, true);
    add_block(made, GIB + 8 * MIB, 12 * MIB, false);
}

TEST(test_departures)
{
    made_trace made;
    begin_two_blocks(&made);
    end_two_blocks(&made);
    bp_check_result result = check(&made);
    assert_int_equal(result.departures, 0);
    assert_int_equal(result.allocations, 2);
    assert_int_equal(result.segment_events, 1);
    assert_true(result.end_agrees);
    made.blocks[1].bytes = 3 * MIB;
    made.blocks[2].address -= MIB;
    made.blocks[2].bytes += MIB;
    assert_false(check(&made).end_agrees);

    begin_two_blocks(&made); /* first fit would take the free 12 MiB */
    add(&made, BP_TRACE_ALLOC, GIB + 8 * MIB, 3 * MIB);
    add_segment(&made, GIB, 20 * MIB, true, false);
    add_block(&made, GIB, 4 * MIB, false);
    add_block(&made, GIB + 4 * MIB, 4 * MIB, true);
    add_block(&made, GIB + 8 * MIB, 3 * MIB, true);
    add_block(&made, GIB + 11 * MIB, 9 * MIB, false);
    assert_departs(&made, 5, BP_DEPARTURE_BLOCK, GIB + 8 * MIB, GIB);
    assert_true(check(&made).end_agrees); /* it continued from the recorded state */

    begin_two_blocks(&made); /* a segment although a block is free */
    add(&made, BP_TRACE_SEGMENT_ALLOC, 2 * GIB, 20 * MIB);
    add(&made, BP_TRACE_ALLOC, 2 * GIB, 3 * MIB);
    end_two_blocks(&made);
    add_segment(&made, 2 * GIB, 20 * MIB, true, false);
    add_block(&made, 2 * GIB, 3 * MIB, true);
    add_block(&made, 2 * GIB + 3 * MIB, 17 * MIB, false);
    assert_departs(&made, 6, BP_DEPARTURE_CACHED, 2 * GIB, GIB);

    begin_two_blocks(&made); /* too large a segment */
    add(&made, BP_TRACE_SEGMENT_ALLOC, 2 * GIB, 32 * MIB);
    add(&made, BP_TRACE_ALLOC, 2 * GIB, 30 * MIB);
    end_two_blocks(&made);
    add_segment(&made, 2 * GIB, 32 * MIB, true, false);
    add_block(&made, 2 * GIB, 30 * MIB, true);
    add_block(&made, 2 * GIB + 30 * MIB, 2 * MIB, false);
    assert_departs(&made, 6, BP_DEPARTURE_SEGMENT, 32 * MIB, 30 * MIB);

    begin_two_blocks(&made); /* memory that no segment has */
    add(&made, BP_TRACE_ALLOC, 2 * GIB, 30 * MIB);
    end_two_blocks(&made);
    assert_departs(&made, 5, BP_DEPARTURE_FAILURE, 2 * GIB, 0);

    begin_two_blocks(&made); /* a split segment cannot be freed */
    add(&made, BP_TRACE_SEGMENT_FREE, GIB, 20 * MIB);
    end_two_blocks(&made);
    made.trace.segment_count = 0;
    assert_int_equal(check(&made).first.kind, BP_DEPARTURE_RELEASE);

    begin_two_blocks(&made); /* a segment, and then no allocation */
    add(&made, BP_TRACE_SEGMENT_ALLOC, 2 * GIB, 20 * MIB);
    add(&made, BP_TRACE_SNAPSHOT, 0, 0);
    end_two_blocks(&made);
    add_segment(&made, 2 * GIB, 20 * MIB, true, false);
    add_block(&made, 2 * GIB, 20 * MIB, false);
    assert_departs(&made, 6, BP_DEPARTURE_TRACE, 2 * GIB, 0);

    begin_two_blocks(&made); /* over a live block */
    add(&made, BP_TRACE_ALLOC, GIB + 4 * MIB, 4 * MIB);
    end_two_blocks(&made);
    assert_int_equal(check(&made).oddities.allocs_over_live, 1);
    assert_int_equal(check(&made).first.kind, BP_DEPARTURE_TRACE);
}

TEST(test_mapping_departs)
{
    made_trace made;
    begin(&made);
    made.trace.settings = (bp_trace_settings){.recorded = true, .expandable_segments = true, .text = ""};
    add(&made, BP_TRACE_SEGMENT_MAP, GIB, 20 * MIB);
    add(&made, BP_TRACE_ALLOC, GIB, 15 * MIB);
    add(&made, BP_TRACE_SEGMENT_MAP, GIB + 20 * MIB, 20 * MIB);
    add(&made, BP_TRACE_ALLOC, GIB + 15 * MIB, 15 * MIB);
    add_segment(&made, GIB, 40 * MIB, true, true);
    add_block(&made, GIB, 15 * MIB, true);
    add_block(&made, GIB + 15 * MIB, 15 * MIB, true);
    add_block(&made, GIB + 30 * MIB, 10 * MIB, false);
    bp_check_result result = check(&made);
    assert_int_equal(result.departures, 0);
    assert_true(result.end_agrees);
    made.events[2].address += 20 * MIB; /* a page is left out */
    made.events[3].address += 25 * MIB;
    made.segments[0].bytes = 20 * MIB;
    made.segments[0].block_count = 0;
    made.trace.block_count = 0;
    add_block(&made, GIB, 15 * MIB, true);
    add_block(&made, GIB + 15 * MIB, 5 * MIB, false);
    add_segment(&made, GIB + 40 * MIB, 20 * MIB, true, true);
    add_block(&made, GIB + 40 * MIB, 15 * MIB, true);
    add_block(&made, GIB + 55 * MIB, 5 * MIB, false);
    assert_departs(&made, 3, BP_DEPARTURE_MAPPING, GIB + 40 * MIB, GIB + 20 * MIB);
}

/* The ring lost the allocations of two blocks; one of them is 0.5 MiB larger than its rounded size, because the rest was too small to be split
 * off. A later allocation behind it shows that. */
TEST(test_sizes_before_the_ring)
{
    made_trace made;
    begin(&made);
    uint64_t first = 5 * MIB + MIB / 2;
    add(&made, BP_TRACE_ALLOC, GIB + first, 3 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, GIB, 5 * MIB);
    add(&made, BP_TRACE_FREE_COMPLETED, GIB, 5 * MIB);
    add(&made, BP_TRACE_ALLOC, GIB, 5 * MIB);
    add_segment(&made, GIB, 20 * MIB, true, false);
    add_block(&made, GIB, first, true);
    add_block(&made, GIB + first, 3 * MIB, true);
    add_block(&made, GIB + first + 3 * MIB, 17 * MIB - first, false);
    bp_check_result result = check(&made);
    assert_int_equal(result.departures, 0);
    assert_true(result.end_agrees);
    bp_play_options options;
    bp_play_result played;
    bp_play_options_init(&options, &made.trace);
    assert_ok(bp_play(&made.trace, &options, &played));
    assert_int_equal(played.live_at_start_bytes, 5 * MIB);
    assert_int_equal(played.counters.active_bytes, 8 * MIB);
}

TEST(test_free_play)
{
    made_trace made;
    bp_play_options options;
    bp_play_result result;
    begin(&made);
    add(&made, BP_TRACE_ALLOC, GIB, 30 * MIB);
    add(&made, BP_TRACE_ALLOC, GIB, 40 * MIB); /* the free is missing */
    add(&made, BP_TRACE_FREE_COMPLETED, GIB, 40 * MIB);
    add(&made, BP_TRACE_SEGMENT_FREE, 5 * GIB, 2 * MIB); /* empty_cache */
    add(&made, BP_TRACE_UNKNOWN, 0, 0);
    add(&made, BP_TRACE_SEGMENT_FREE, 6 * GIB, 2 * MIB); /* empty_cache, or no memory */
    add(&made, BP_TRACE_SEGMENT_ALLOC, 6 * GIB, 20 * MIB);
    add(&made, BP_TRACE_ALLOC, 6 * GIB, 2 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, 6 * GIB, 2 * MIB); /* never completed */
    bp_play_options_init(&options, &made.trace);
    options.live_at_start = false;
    assert_ok(bp_play(&made.trace, &options, &result));
    assert_int_equal(result.oddities.allocs_over_live, 1);
    assert_int_equal(result.oddities.unknown_events, 1);
    assert_int_equal(result.oddities.unclear_releases, 1);
    assert_int_equal(result.counters.peak_reserved_bytes, 70 * MIB);
    assert_int_equal(result.peak_event, 1);
    assert_int_equal(result.counters.reserved_bytes, 20 * MIB);
    assert_int_equal(result.counters.active_bytes, 2 * MIB);
    options.empty_cache = false;
    assert_ok(bp_play(&made.trace, &options, &result));
    assert_int_equal(result.counters.reserved_bytes, 70 * MIB);

    /* The pending free is completed when the device has no memory, and its recorded completion changes nothing. */
    begin(&made);
    add(&made, BP_TRACE_ALLOC, GIB, 30 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, GIB, 30 * MIB);
    add(&made, BP_TRACE_ALLOC, 2 * GIB, 40 * MIB);
    add(&made, BP_TRACE_FREE_COMPLETED, GIB, 30 * MIB);
    add(&made, BP_TRACE_ALLOC, 3 * GIB, 41 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, 3 * GIB, 41 * MIB);
    add(&made, BP_TRACE_FREE_COMPLETED, 3 * GIB, 41 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, 9 * GIB, 512);
    bp_play_options_init(&options, &made.trace);
    options.settings.device_bytes = 50 * MIB;
    options.live_at_start = false;
    assert_ok(bp_play(&made.trace, &options, &result));
    assert_int_equal(result.failed_bytes, 41 * MIB);
    assert_int_equal(result.counters.active_bytes, 40 * MIB);
    assert_int_equal(result.counters.failures, 1);
    assert_int_equal(result.oddities.frees_without_alloc, 1);
}

/* ---- empty_cache ------------------------------------------------------------------------------------------------- */

enum { AT_EMPTY_CACHE, AT_FIRST, AT_SECOND, AT_FREE };
static const bp_trace_frame places[] = {{"/x/torch/cuda/memory.py", "empty_cache", 224},
                                        {"a.py", "first", 1},
                                        {"a.py", "second", 2},
                                        {"a.py", "<module>", 3}};
static const uint32_t place_of[] = {AT_EMPTY_CACHE, AT_FIRST, AT_SECOND, AT_FREE};
static const bp_trace_stack place_stacks[] = {
    {&place_of[0], 1}, {&place_of[1], 1}, {&place_of[2], 1}, {&place_of[3], 1}};

/* Two blocks of 30 MiB are freed and their segments released, then there are two of 40 MiB: memory of `release` is freed at one place. */
static void make_phases(made_trace *made, uint32_t release, uint32_t frees, uint64_t later_bytes)
{
    begin(made);
    made->trace.stacks = (bp_trace_stack *)place_stacks;
    made->trace.frames = (bp_trace_frame *)places;
    made->trace.stack_count = made->trace.frame_count = 4;
    const struct {
        bp_trace_action action;
        uint64_t address, bytes;
        uint32_t place;
    } events[] = {
        {BP_TRACE_SEGMENT_ALLOC, GIB, 30 * MIB, AT_FIRST},         {BP_TRACE_ALLOC, GIB, 30 * MIB, AT_FIRST},
        {BP_TRACE_SEGMENT_ALLOC, 2 * GIB, 30 * MIB, AT_FIRST},     {BP_TRACE_ALLOC, 2 * GIB, 30 * MIB, AT_FIRST},
        {BP_TRACE_FREE_REQUESTED, GIB, 30 * MIB, frees},           {BP_TRACE_FREE_COMPLETED, GIB, 30 * MIB, frees},
        {BP_TRACE_FREE_REQUESTED, 2 * GIB, 30 * MIB, frees},       {BP_TRACE_FREE_COMPLETED, 2 * GIB, 30 * MIB, frees},
        {BP_TRACE_SEGMENT_FREE, GIB, 30 * MIB, release},           {BP_TRACE_SEGMENT_FREE, 2 * GIB, 30 * MIB, release},
        {BP_TRACE_SEGMENT_ALLOC, 3 * GIB, 40 * MIB, AT_SECOND},    {BP_TRACE_ALLOC, 3 * GIB, 40 * MIB, AT_SECOND},
        {BP_TRACE_SEGMENT_ALLOC, 4 * GIB, later_bytes, AT_SECOND}, {BP_TRACE_ALLOC, 4 * GIB, later_bytes, AT_SECOND}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        add(made, events[i].action, events[i].address, events[i].bytes);
        made->events[i].stack = events[i].place;
    }
    add_segment(made, 3 * GIB, 40 * MIB, true, false);
    add_block(made, 3 * GIB, 40 * MIB, true);
    add_segment(made, 4 * GIB, later_bytes, true, false);
    add_block(made, 4 * GIB, later_bytes, true);
}

static bp_play_result play_made(const made_trace *made, bp_play_unclear unclear)
{
    bp_play_options options;
    bp_play_result result;
    bp_play_options_init(&options, &made->trace);
    options.unclear_releases = unclear;
    assert_ok(bp_play(&made->trace, &options, &result));
    return result;
}

TEST(test_empty_cache)
{
    made_trace made;
    bp_play_result result;
    /* Stacks decide: of empty_cache, or of the allocation that follows. */
    make_phases(&made, AT_EMPTY_CACHE, AT_FREE, 40 * MIB);
    result = play_made(&made, BP_PLAY_LIKE_OTHERS);
    assert_int_equal(result.counters.peak_reserved_bytes, 80 * MIB);
    assert_int_equal(result.empty_caches, 1);
    make_phases(&made, AT_SECOND, AT_FREE, 100 * MIB); /* the device had 140 MiB, and found none for 100 */
    result = play_made(&made, BP_PLAY_LIKE_OTHERS);
    assert_int_equal(result.counters.peak_reserved_bytes, 200 * MIB);
    assert_int_equal(result.empty_caches + result.oddities.unclear_releases, 0);
    make_phases(&made, AT_SECOND, AT_FIRST,
                100 * MIB); /* with context="alloc": the segments were not allocated there */
    assert_int_equal(play_made(&made, BP_PLAY_EMPTY_CACHE).empty_caches, 0);

    /* Without stacks: 60 and 40 MiB, although the device has 140 MiB. */
    make_phases(&made, BP_TRACE_NONE, BP_TRACE_NONE, 100 * MIB);
    result = play_made(&made, BP_PLAY_LIKE_OTHERS);
    assert_int_equal(result.counters.peak_reserved_bytes, 140 * MIB);
    assert_int_equal(result.empty_caches, 1);
    made.trace.settings = (bp_trace_settings){.recorded = true, .garbage_collection_threshold = 0.5, .text = ""};
    assert_int_equal(play_made(&made, BP_PLAY_LIKE_OTHERS).oddities.unclear_releases, 1);

    /* 60 and 40 MiB, and the device never had more than 80: nobody knows. */
    make_phases(&made, BP_TRACE_NONE, BP_TRACE_NONE, 40 * MIB);
    result = play_made(&made, BP_PLAY_LIKE_OTHERS);
    assert_int_equal(result.oddities.unclear_releases, 1);
    assert_int_equal(result.counters.peak_reserved_bytes, 140 * MIB);
    assert_int_equal(play_made(&made, BP_PLAY_EMPTY_CACHE).counters.peak_reserved_bytes, 80 * MIB);
    add(&made, BP_TRACE_EMPTY_CACHE, 0, 0); /* it was called at another time */
    result = play_made(&made, BP_PLAY_LIKE_OTHERS);
    assert_int_equal(result.counters.peak_reserved_bytes, 80 * MIB);
    assert_int_equal(play_made(&made, BP_PLAY_FORCED).counters.peak_reserved_bytes, 140 * MIB);

    /* An error after the releases, and memory that the same allocation had mapped before them. */
    make_phases(&made, BP_TRACE_NONE, BP_TRACE_NONE, 40 * MIB);
    made.trace.event_count = 10;
    made.trace.segment_count = made.trace.block_count = 0;
    add(&made, BP_TRACE_OOM, 0, GIB);
    assert_int_equal(play_made(&made, BP_PLAY_EMPTY_CACHE).empty_caches, 0);
    made.trace.event_count = 8;
    add(&made, BP_TRACE_SEGMENT_MAP, 5 * GIB, 20 * MIB);
    add(&made, BP_TRACE_SEGMENT_UNMAP, GIB, 20 * MIB);
    add(&made, BP_TRACE_SEGMENT_MAP, 5 * GIB + 20 * MIB, 20 * MIB);
    add(&made, BP_TRACE_ALLOC, 5 * GIB, 40 * MIB);
    assert_int_equal(play_made(&made, BP_PLAY_EMPTY_CACHE).empty_caches, 0);
}

/* Recordings on fake tensors have no segments. Pending frees are completed first, and live blocks keep their segments. */
TEST(test_empty_cache_without_segments)
{
    made_trace made;
    begin(&made);
    add(&made, BP_TRACE_ALLOC, GIB, 30 * MIB);
    add(&made, BP_TRACE_ALLOC, 2 * GIB, 30 * MIB);
    add(&made, BP_TRACE_ALLOC, 3 * GIB, 4 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, GIB, 30 * MIB);
    add(&made, BP_TRACE_FREE_REQUESTED, 2 * GIB, 30 * MIB);
    add(&made, BP_TRACE_FREE_COMPLETED, 2 * GIB, 30 * MIB);
    add(&made, BP_TRACE_EMPTY_CACHE, 0, 0);
    add(&made, BP_TRACE_FREE_COMPLETED, GIB, 30 * MIB);
    for (int expandable = 0; expandable < 2; expandable++) {
        bp_play_options options;
        bp_play_result result;
        uint64_t reserved[8];
        bp_play_options_init(&options, &made.trace);
        options.settings.expandable_segments = expandable;
        options.reserved_bytes = reserved;
        assert_ok(bp_play(&made.trace, &options, &result));
        /* Expandable: pages of 20 MiB; the block of 4 MiB is in the fourth. */
        assert_int_equal(reserved[5], 80 * MIB);
        assert_int_equal(reserved[6], 20 * MIB);
        assert_int_equal(reserved[7], 20 * MIB);
        assert_int_equal(result.counters.active_bytes, 4 * MIB);
        assert_int_equal(result.empty_caches, 1);
    }
}

TEST(test_arguments)
{
    made_trace made;
    bp_check_result result;
    bp_play_result played;
    bp_play_options options;
    begin_two_blocks(&made);
    bp_play_options_init(&options, &made.trace);
    assert_fails(bp_play_check(&made.trace, &options.settings, 0, NULL, &result), BP_ERR_INVALID_ARGUMENT, "limit");
    options.settings.max_split_bytes = 1;
    assert_fails(bp_play_check(&made.trace, &options.settings, 1, NULL, &result), BP_ERR_INVALID_ARGUMENT,
                 "max_split_bytes");
    assert_fails(bp_play(&made.trace, &options, &played), BP_ERR_INVALID_ARGUMENT, "max_split_bytes");
    begin(&made);
    bp_play_options_init(&options, &made.trace);
    assert_ok(bp_play(&made.trace, &options, &played));
    assert_ok(bp_play_check(&made.trace, &options.settings, 1, NULL, &result));
    assert_true(result.end_agrees);
}

/* ---- hostile traces ---------------------------------------------------------------------------------------------- */

static uint64_t odd_number(void)
{
    static const uint64_t edges[] = {0, 1, 511, 512, 2 * MIB, 20 * MIB, GIB, (uint64_t)1 << 60, UINT64_MAX};
    uint64_t near = GIB + random_below(64) * (MIB / 2);
    switch (random_below(3)) {
    case 0: return edges[random_below(sizeof edges / sizeof *edges)];
    case 1: return near;
    default: return random_below(24) * (MIB + 512);
    }
}

TEST(test_hostile_traces)
{
    made_trace made;
    for (int round = 0, rounds = share_of(4000); round < rounds; round++) {
        seed((uint64_t)round);
        begin(&made);
        made.trace.settings.recorded = true;
        made.trace.settings.expandable_segments = random_below(2);
        for (size_t i = 0, count = random_below(MAX_EVENTS); i < count; i++) {
            add(&made, (bp_trace_action)random_below(BP_TRACE_EMPTY_CACHE + 3), odd_number(), odd_number());
            made.events[i].stream = (uint16_t)random_below(3);
        }
        uint64_t address = 0;
        for (size_t i = 0, count = random_below(MAX_SEGMENTS); i < count; i++) {
            address += odd_number() % (3 * GIB);
            add_segment(&made, address, odd_number(), random_below(2), random_below(2));
            made.segments[i].pool[1] = random_below(3);
            for (size_t j = 0; j < 2 && made.trace.block_count < MAX_BLOCKS; j++)
                add_block(&made, address + odd_number() % (4 * MIB), odd_number(), random_below(2));
        }
        bp_play_options options;
        bp_play_result played;
        bp_check_result result;
        bp_play_options_init(&options, &made.trace);
        options.settings.device_bytes = random_below(2) * GIB;
        assert_ok(bp_play(&made.trace, &options, &played));
        assert_true(played.counters.peak_reserved_bytes >= played.counters.peak_active_bytes);
        assert_ok(bp_play_check(&made.trace, &options.settings, 5, NULL, &result));
        assert_true(result.departures <= 5);
    }
}

/* Each allocation of host memory fails, one after the other. */
TEST(test_host_memory)
{
    const bp_trace *trace;
    for (size_t i = 0; i < SNAPSHOTS; i += 3) {
        bp_trace_file *file = read_snapshot(snapshots[i].name, &trace);
        bp_play_options options;
        bp_play_result played;
        bp_check_result result;
        bp_play_options_init(&options, trace);
        bp_status status[2] = {BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_HOST_MEMORY};
        unsigned tries = 0;
        for (; status[0] != BP_OK || status[1] != BP_OK; tries++) {
            shortage.fails = tries + 1;
            status[0] = bp_play(trace, &options, &played);
            shortage.fails = tries + 1;
            status[1] = bp_play_check(trace, &options.settings, 1, NULL, &result);
            shortage.fails = 0;
            for (int k = 0; k < 2; k++)
                assert_true(status[k] == BP_OK || status[k] == BP_ERR_NO_HOST_MEMORY);
        }
        assert_true(tries > 8);
        bp_trace_file_destroy(&file);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    source_root = argv[1];
    return run_registered(NULL, NULL, NULL, NULL);
}
