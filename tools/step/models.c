/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a recording through the models of PyTorch's caching allocator and of its expandable segments: their memory, and
 * the uses of it at the peak. */
#include "step/step.h"

#include <stdlib.h>
#include <string.h>

#include "step/allocator/playback.h"

/* Bytes of a segment at the peak. */
typedef struct segment_use {
    uint64_t address, stream;
    uint64_t live, unused;
    uint32_t pool;
} segment_use;

typedef struct uses {
    segment_use *all;
    size_t count, capacity;
    uint64_t rounding;
    bool failed; /* out of memory */
} uses;

static void visit(void *user, const bp_caching_segment *segment, uint64_t address, const bp_caching_piece *piece)
{
    uses *u = user;
    (void)address;
    if (piece->state == BP_CACHING_UNMAPPED || u->failed)
        return;
    if (u->count == u->capacity) {
        size_t capacity = 2 * u->capacity + 256;
        segment_use *moved = realloc(u->all, capacity * sizeof *moved);
        u->failed = moved == NULL;
        if (u->failed)
            return;
        u->all = moved;
        u->capacity = capacity;
    }
    bool is_free = piece->state == BP_CACHING_FREE;
    u->all[u->count++] = (segment_use){.address = segment->address,
                                       .stream = segment->stream,
                                       .pool = segment->pool,
                                       .live = is_free ? 0 : piece->bytes,
                                       .unused = is_free ? piece->bytes : 0};
    u->rounding += is_free ? 0 : piece->bytes - piece->requested_bytes;
}

static int by_address(const void *left, const void *right)
{
    const segment_use *a = left, *b = right;
    return (a->address > b->address) - (a->address < b->address);
}

static int by_stream(const void *left, const void *right)
{
    const segment_use *a = left, *b = right;
    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    return by_address(left, right);
}

/* Blocks become segments; then segments of a stream are summed up, to find the stream that has the most live bytes. */
static void sort_causes(uses *u, step_causes *causes)
{
    size_t kept = 0;
    if (u->count == 0)
        return;
    qsort(u->all, u->count, sizeof *u->all, by_address);
    for (size_t i = 0; i < u->count; i++) {
        if (kept > 0 && u->all[kept - 1].address == u->all[i].address) {
            u->all[kept - 1].live += u->all[i].live;
            u->all[kept - 1].unused += u->all[i].unused;
        } else {
            u->all[kept++] = u->all[i];
        }
    }
    qsort(u->all, kept, sizeof *u->all, by_stream);
    uint64_t max = 0, main_stream = 0;
    for (size_t i = 0, next; i < kept; i = next) {
        uint64_t live = 0;
        for (next = i; next < kept && u->all[next].stream == u->all[i].stream; next++)
            live += u->all[next].live;
        if (live > max) {
            max = live;
            main_stream = u->all[i].stream;
        }
    }
    causes->rounding = u->rounding;
    for (size_t i = 0; i < kept; i++) {
        const segment_use *use = &u->all[i];
        *(use->pool != 0               ? &causes->private_pool
          : use->live > 0              ? &causes->beside_live
          : use->stream == main_stream ? &causes->cached
                                       : &causes->other_stream) += use->unused;
    }
}

/* The most that an allocator has from the driver. */
static bp_status play(const step_answer *a, const bp_play_options *options, bp_play_result *result, uint64_t *max)
{
    bp_status status = bp_play(a->trace, options, result);
    *max = 0;
    for (size_t i = 0; i < a->trace->event_count && status == BP_OK; i++)
        *max = options->reserved_bytes[i] > *max ? options->reserved_bytes[i] : *max;
    return status;
}

/* The model of the caching allocator, and both answers where the recording does not tell empty_cache from an allocation that found no memory. */
static bp_status play_default(step_answer *a, bp_play_options *options, uses *u)
{
    bp_play_result result = {0};
    options->settings.expandable_segments = false;
    options->visit_event = a->peak_event == BP_TRACE_NONE ? 0 : a->peak_event;
    options->visit = visit;
    options->visit_user = u;
    bp_status status = play(a, options, &result, &a->default_bytes);
    options->visit = NULL;
    a->default_at_peak = options->reserved_bytes[options->visit_event];
    a->default_min = a->default_max = a->default_bytes;
    a->empty_caches = result.empty_caches;
    a->unclear_releases = result.oddities.unclear_releases;
    for (int forced = 0; forced < 2 && status == BP_OK && a->unclear_releases > 0; forced++) {
        options->unclear_releases = forced != 0 ? BP_PLAY_FORCED : BP_PLAY_EMPTY_CACHE;
        status = play(a, options, &result, forced != 0 ? &a->default_max : &a->default_min);
    }
    options->unclear_releases = BP_PLAY_LIKE_OTHERS;
    return status;
}

/* On a device with less memory. */
static bp_status play_limited(const step_answer *a, bp_play_options options, bool expandable, step_limited *limited)
{
    bp_play_result result = {0};
    options.reserved_bytes = NULL;
    options.settings.expandable_segments = expandable;
    options.settings.device_bytes = a->limit;
    bp_status status = a->limit > 0 ? bp_play(a->trace, &options, &result) : BP_OK;
    *limited = (step_limited){.retries = result.counters.retries, .failures = result.counters.failures};
    return status;
}

/* Plays a recording from its own state: does the model choose the addresses that PyTorch chose? */
static bp_status check(step_answer *a)
{
    enum { MAX_DEPARTURES = 1000 };
    bp_caching_settings settings;
    bp_check_result result;
    bp_caching_settings_read(a->trace, &settings);
    bp_status status = bp_play_check(a->trace, &settings, MAX_DEPARTURES, NULL, &result);
    if (status == BP_OK) {
        a->checked = result.allocations + result.segment_events;
        a->departures = result.departures;
        a->first_departure = (uint32_t)result.first.event;
    }
    return status;
}

int step_play(step_answer *answer)
{
    uses u = {0};
    uint64_t *reserved = calloc(answer->trace->event_count + 1, sizeof *reserved);
    if (reserved == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    bp_play_options options;
    bp_play_result result;
    bp_play_options_init(&options, answer->trace);
    options.reserved_bytes = reserved;
    bp_status status = play_default(answer, &options, &u);
    options.settings.expandable_segments = true;
    if (status == BP_OK && !u.failed)
        status = play(answer, &options, &result, &answer->expandable_bytes);
    if (status == BP_OK && !u.failed)
        status = play_limited(answer, options, false, &answer->default_limited);
    if (status == BP_OK && !u.failed)
        status = play_limited(answer, options, true, &answer->expandable_limited);
    if (status == BP_OK && !u.failed)
        sort_causes(&u, &answer->causes);
    if (status == BP_OK && !u.failed && answer->has_segments)
        status = check(answer);
    free(u.all);
    free(reserved);
    return u.failed          ? cli_fail(EXIT_ENVIRONMENT, "out of memory")
           : status == BP_OK ? EXIT_GO_ON
                             : cli_fail_status(status);
}
