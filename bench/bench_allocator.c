/* SPDX-License-Identifier: Apache-2.0 */
/* The model of PyTorch's caching allocator on a trace of 10 million events (or of so many million as the argument says): seconds of free plays
 * and of the check from the recorded state, and peak memory of the process. The trace is of a model: random sizes, 5000 live allocations.
 * Run: bench_allocator [MILLIONS] */
#include "step/allocator/playback.h"

#include <bucketpool/bucketpool.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { LIVE = 5000 };

typedef struct recorder {
    bp_trace trace;
    size_t capacity;
    uint64_t address;
} recorder;

static void must(bp_status status)
{
    if (status != BP_OK) {
        fprintf(stderr, "bench: %s\n", bp_error_detail());
        exit(1);
    }
}

static void record(recorder *r, bp_trace_action action, uint64_t address, uint64_t bytes)
{
    if (r->trace.event_count < r->capacity)
        r->trace.events[r->trace.event_count++] =
            (bp_trace_event){.address = address, .bytes = bytes, .action = action, .stack = BP_TRACE_NONE};
}

static bool allocate(void *user, uint64_t bytes, uint64_t *address)
{
    recorder *r = user;
    *address = r->address;
    r->address += bytes;
    record(r, BP_TRACE_SEGMENT_ALLOC, *address, bytes);
    return true;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t random_below(uint64_t limit)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
}

static void release(recorder *r, bp_caching_allocator *allocator, bp_caching_block *block, uint64_t bytes)
{
    record(r, BP_TRACE_FREE_REQUESTED, bp_caching_address(block), bytes);
    record(r, BP_TRACE_FREE_COMPLETED, bp_caching_address(block), bytes);
    bp_caching_complete_free(allocator, block);
}

/* Ends without live blocks; the segments stay, so the snapshot has one free block in each. */
static void make_trace(recorder *r)
{
    static bp_caching_block *live[LIVE];
    static uint64_t bytes[LIVE];
    bp_caching_device device = {.user = r, .allocate = allocate};
    bp_caching_settings settings;
    bp_caching_allocator *allocator;
    bp_caching_settings_init(&settings);
    must(bp_caching_create(&settings, &device, &allocator));
    while (r->trace.event_count < r->capacity - 4 * LIVE) {
        size_t i = random_below(LIVE);
        if (live[i] != NULL)
            release(r, allocator, live[i], bytes[i]);
        bytes[i] = 1 + random_below((uint64_t)1 << (8 + random_below(18)));
        must(bp_caching_allocate(allocator, bytes[i], 0, 0, &live[i]));
        record(r, BP_TRACE_ALLOC, bp_caching_address(live[i]), bytes[i]);
    }
    for (size_t i = 0; i < LIVE; i++) {
        if (live[i] != NULL)
            release(r, allocator, live[i], bytes[i]);
    }
    bp_caching_destroy(&allocator);
    size_t segments = 0;
    for (size_t i = 0; i < r->trace.event_count; i++)
        segments += r->trace.events[i].action == BP_TRACE_SEGMENT_ALLOC;
    r->trace.segments = calloc(segments, sizeof *r->trace.segments);
    r->trace.blocks = calloc(segments, sizeof *r->trace.blocks);
    if (r->trace.segments == NULL || r->trace.blocks == NULL)
        exit(1);
    for (size_t i = 0; i < r->trace.event_count; i++) {
        const bp_trace_event *e = &r->trace.events[i];
        if (e->action != BP_TRACE_SEGMENT_ALLOC)
            continue;
        size_t s = r->trace.segment_count++;
        r->trace.segments[s] = (bp_trace_segment){.address = e->address,
                                                  .bytes = e->bytes,
                                                  .first_block = s,
                                                  .block_count = 1,
                                                  .is_large = e->bytes > (2 << 20)};
        r->trace.blocks[s] = (bp_trace_block){.address = e->address, .bytes = e->bytes, .segment = (uint32_t)s};
    }
    r->trace.block_count = segments;
}

int main(int argc, char **argv)
{
    recorder r = {.capacity = (argc > 1 ? (size_t)atoi(argv[1]) : 10) * 1000000, .address = (uint64_t)1 << 40};
    r.trace.events = calloc(r.capacity, sizeof *r.trace.events);
    if (r.trace.events == NULL || r.capacity == 0)
        return 1;
    make_trace(&r);
    printf("%zu events, %zu segments\n", r.trace.event_count, r.trace.segment_count);
    bp_play_options options;
    bp_play_result result;
    bp_play_options_init(&options, &r.trace);
    for (int expandable = 0; expandable < 2; expandable++) {
        options.settings.expandable_segments = expandable;
        double start = now();
        must(bp_play(&r.trace, &options, &result));
        printf("%-16s %6.2f s, reserved %.2f GiB at most, active %.2f GiB\n", expandable ? "expandable" : "default",
               now() - start, (double)result.counters.peak_reserved_bytes / (1 << 30),
               (double)result.counters.peak_active_bytes / (1 << 30));
    }
    options.settings.expandable_segments = false;
    bp_check_result check;
    double start = now();
    must(bp_play_check(&r.trace, &options.settings, 1, NULL, &check));
    printf("%-16s %6.2f s, %zu allocations and %zu segments reproduced, %zu departures\n", "check", now() - start,
           check.allocations, check.segment_events, check.departures);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("memory           %ld MiB, of which %zu of events\n", usage.ru_maxrss / 1024,
           r.capacity * sizeof *r.trace.events / (1 << 20));
    return check.departures == 0 && check.end_agrees ? 0 : 1;
}
