/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <bucketpool/status.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNSET UINT64_C(0x5a5a5a5a5a5a5a5b) /* no address */

__attribute__((format(printf, 2, 3))) static void violation(reference *r, const char *format, ...)
{
    if (r->wrong[0] != '\0')
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->wrong, sizeof r->wrong, format, arguments);
    va_end(arguments);
}

const char *reference_wrong(const reference *r)
{
    return r->wrong[0] != '\0' ? r->wrong : NULL;
}

static void *grown(void *array, size_t count, size_t *capacity, size_t bytes)
{
    if (count < *capacity)
        return array;
    *capacity = 2 * *capacity + 16;
    void *more = realloc(array, *capacity * bytes);
    if (more == NULL)
        abort();
    return more;
}

static uint64_t rounded(uint64_t bytes)
{
    return bytes / BP_STEP_ALIGNMENT * BP_STEP_ALIGNMENT + (bytes % BP_STEP_ALIGNMENT != 0) * BP_STEP_ALIGNMENT;
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

static bool is_refused(reference *r, uint64_t streams)
{
    bool refused = (r->captured & streams) != 0 || (r->refuses != NULL && r->refuses(r->context));
    r->refused += refused;
    return refused;
}

static bool record(void *context, uint32_t stream, uint64_t point)
{
    reference *r = context;
    if (stream >= BP_STEP_STREAMS) {
        violation(r, "records event %llu of stream %u", (unsigned long long)point, stream);
        return false;
    }
    if (is_refused(r, UINT64_C(1) << stream))
        return false;
    reference_stream *s = &r->streams[stream];
    uint64_t last = s->event_count > 0 ? s->events[s->event_count - 1].point : 0;
    if (point <= last)
        violation(r, "records event %llu of stream %u after event %llu", (unsigned long long)point, stream,
                  (unsigned long long)last);
    s->events = grown(s->events, s->event_count, &s->capacity, sizeof *s->events);
    s->events[s->event_count++] = (reference_event){point, s->clock};
    r->expected.events++;
    return true;
}

/* The weakest event that the contract permits: number `point` itself. */
static bool wait_for(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    reference *r = context;
    if (stream >= BP_STEP_STREAMS || before >= BP_STEP_STREAMS) {
        violation(r, "stream %u waits for stream %u", stream, before);
        return false;
    }
    const reference_stream *s = &r->streams[before];
    size_t i = s->event_count;
    while (i > 0 && s->events[i - 1].point != point)
        i--;
    if (i == 0) {
        violation(r, "stream %u waits for event %llu of stream %u, which was not recorded", stream,
                  (unsigned long long)point, before);
        return false;
    }
    if (is_refused(r, UINT64_C(1) << stream | UINT64_C(1) << before))
        return false;
    reference_clock *clock = &r->streams[stream].clock;
    const reference_clock *other = &s->events[i - 1].clock;
    for (size_t k = 0; k < BP_STEP_STREAMS; k++)
        clock->times[k] = clock->times[k] > other->times[k] ? clock->times[k] : other->times[k];
    r->waits[stream][before]++;
    r->expected.waits++;
    return true;
}

/* Earlier uses of the range by other streams are ordered before the work of `stream`. */
static void check_order(reference *r, const reference_range *range, uint32_t stream)
{
    uint64_t others = 0;
    for (size_t i = 0; i < r->use_count; i++) {
        const reference_use *use = &r->uses[i];
        if (use->end <= range->offset || use->begin >= range->offset + range->bytes || use->stream == stream)
            continue;
        others |= UINT64_C(1) << use->stream;
        if (r->streams[stream].clock.times[use->stream] < use->time)
            violation(r, "bytes [%llu, %llu) go from stream %u to stream %u without a wait",
                      (unsigned long long)use->begin, (unsigned long long)use->end, use->stream, stream);
    }
    r->changes += (uint64_t)__builtin_popcountll(others);
}

static void add_use(reference *r, const reference_range *range, uint32_t stream)
{
    const uint64_t begin = range->offset, end = range->offset + range->bytes;
    uint64_t time = ++r->streams[stream].clock.times[stream];
    size_t kept = 0;
    for (size_t i = 0; i < r->use_count; i++) {
        const reference_use *use = &r->uses[i];
        if (use->stream != stream || use->begin < begin || use->end > end)
            r->uses[kept++] = *use; /* else it is included */
    }
    r->use_count = kept;
    r->uses = grown(r->uses, r->use_count, &r->use_capacity, sizeof *r->uses);
    r->uses[r->use_count++] = (reference_use){begin, end, time, stream};
}

/* ---- creation ------------------------------------------------------------------------------------------------------ */

reference *reference_create(const bp_step_plan *plan, bool has_callbacks)
{
    reference *r = calloc(1, sizeof *r);
    if (r == NULL)
        abort();
    bp_step_server_config config;
    if (bp_step_server_config_init(&config, sizeof config) != BP_OK)
        abort();
    if (has_callbacks) {
        config.context = r;
        config.record = record;
        config.wait = wait_for;
    }
    r->has_callbacks = has_callbacks;
    r->slab_bytes = bp_step_plan_get_info(plan)->bytes;
    if (bp_step_server_create(plan, &config, &r->server) != BP_OK) {
        free(r);
        return NULL;
    }
    return r;
}

void reference_destroy(reference *r)
{
    if (r == NULL)
        return;
    bp_step_server_destroy(&r->server);
    for (size_t i = 0; i < BP_STEP_STREAMS; i++)
        free(r->streams[i].events);
    free(r->live);
    free(r->uses);
    free(r);
}

/* ---- allocations --------------------------------------------------------------------------------------------------- */

/* The number of live ranges that begin before `offset`, or there. */
static size_t live_before(const reference *r, uint64_t offset)
{
    size_t low = 0, high = r->live_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->live[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The end of the live range before the index `at`, and the beginning of the one there. */
static uint64_t gap_begin(const reference *r, size_t at)
{
    return at > 0 ? r->live[at - 1].offset + r->live[at - 1].bytes : 0;
}

static uint64_t gap_end(const reference *r, size_t at)
{
    return at < r->live_count ? r->live[at].offset : r->slab_bytes;
}

static void take(reference *r, uint64_t offset, uint64_t bytes, uint32_t stream, bool anywhere)
{
    bp_step_block block = {0};
    if (!bp_step_server_find(r->server, offset, &block) || block.offset != offset) {
        violation(r, "%llu was handed out, and is not found", (unsigned long long)offset);
        return;
    }
    if (block.requested_bytes != bytes || block.stream != stream || (block.kind == UINT32_MAX) != anywhere ||
        (block.item == UINT32_MAX) != anywhere)
        violation(r, "%llu has %llu requested bytes, stream %u, kind %u and item %u", (unsigned long long)offset,
                  (unsigned long long)block.requested_bytes, block.stream, block.kind, block.item);
    const reference_range range = {offset, block.bytes, UINT64_C(1) << stream, block};
    size_t at = live_before(r, offset);
    if (offset % BP_STEP_ALIGNMENT != 0 || range.bytes % BP_STEP_ALIGNMENT != 0)
        violation(r, "%llu bytes at %llu: no multiple of %u", (unsigned long long)range.bytes,
                  (unsigned long long)offset, BP_STEP_ALIGNMENT);
    if (range.bytes < rounded(bytes) || (!anywhere && range.bytes != rounded(bytes)))
        violation(r, "%llu bytes for %llu", (unsigned long long)range.bytes, (unsigned long long)bytes);
    if (offset > r->slab_bytes || range.bytes > r->slab_bytes - offset)
        violation(r, "%llu bytes at %llu are outside of the slab of %llu", (unsigned long long)range.bytes,
                  (unsigned long long)offset, (unsigned long long)r->slab_bytes);
    else if (offset < gap_begin(r, at) || offset + range.bytes > gap_end(r, at))
        violation(r, "%llu bytes at %llu are live", (unsigned long long)range.bytes, (unsigned long long)offset);
    if (r->wrong[0] != '\0')
        return;
    check_order(r, &range, stream);
    r->live = grown(r->live, r->live_count, &r->live_capacity, sizeof *r->live);
    memmove(r->live + at + 1, r->live + at, (r->live_count - at) * sizeof *r->live);
    r->live[at] = range;
    r->live_count++;
    r->expected.live++;
    r->expected.live_bytes += range.bytes;
    if (r->expected.peak_live_bytes < r->expected.live_bytes)
        r->expected.peak_live_bytes = r->expected.live_bytes;
}

bp_step_outcome reference_allocate(reference *r, uint64_t bytes, uint32_t stream, uint64_t *offset)
{
    const uint64_t refused = r->refused;
    uint64_t got = UNSET;
    bp_step_outcome outcome = bp_step_server_allocate(r->server, bytes, stream, &got);
    if (outcome < BP_STEP_SERVED || outcome >= BP_STEP_OUTCOMES) {
        violation(r, "outcome %d", (int)outcome);
        return outcome;
    }
    if (bytes == 0) {
        if (outcome != BP_STEP_UNKNOWN || got != UNSET)
            violation(r, "0 bytes have outcome %d", (int)outcome);
        return outcome;
    }
    r->expected.outcomes[outcome]++;
    if (outcome != BP_STEP_SERVED) {
        if (got != UNSET)
            violation(r, "outcome %d sets the offset", (int)outcome);
        if ((outcome == BP_STEP_BUSY && r->live_count == 0) || (outcome == BP_STEP_PAUSED && !r->is_paused) ||
            (outcome == BP_STEP_UNORDERED && r->has_callbacks && r->refused == refused))
            violation(r, "outcome %d without a reason", (int)outcome);
        return outcome;
    }
    if (r->is_paused || stream >= BP_STEP_STREAMS)
        violation(r, "serves stream %u%s", stream, r->is_paused ? " while paused" : "");
    else
        take(r, got, bytes, stream, false);
    *offset = got;
    return outcome;
}

/* The gap with the range's place has no smaller one beside it that is large enough. */
static void check_best_fit(reference *r, uint64_t offset, uint64_t bytes)
{
    size_t at = live_before(r, offset);
    const uint64_t taken = gap_end(r, at) - gap_begin(r, at);
    for (size_t i = 0; i <= r->live_count; i++) {
        uint64_t gap = gap_end(r, i) - gap_begin(r, i);
        if (gap >= rounded(bytes) && gap < taken)
            violation(r, "%llu bytes are taken of %llu where %llu are free", (unsigned long long)bytes,
                      (unsigned long long)taken, (unsigned long long)gap);
    }
}

bp_step_outcome reference_allocate_anywhere(reference *r, uint64_t bytes, uint32_t stream, uint64_t *offset)
{
    const uint64_t refused = r->refused;
    uint64_t got = UNSET, largest = 0;
    bp_step_outcome outcome = bp_step_server_allocate_anywhere(r->server, bytes, stream, &got);
    for (size_t i = 0; i <= r->live_count; i++) {
        uint64_t gap = gap_end(r, i) - gap_begin(r, i);
        largest = largest > gap ? largest : gap;
    }
    if (outcome == BP_STEP_SERVED) {
        r->expected.anywhere++;
        if (bytes == 0 || stream >= BP_STEP_STREAMS) {
            violation(r, "serves %llu bytes on stream %u", (unsigned long long)bytes, stream);
            return outcome;
        }
        check_best_fit(r, got, bytes);
        take(r, got, bytes, stream, true);
        *offset = got;
        return outcome;
    }
    if (got != UNSET)
        violation(r, "outcome %d sets the offset", (int)outcome);
    if (bytes == 0 || stream >= BP_STEP_STREAMS)
        return outcome;
    if ((outcome != BP_STEP_BUSY && outcome != BP_STEP_UNORDERED) || (outcome == BP_STEP_BUSY && bytes <= largest) ||
        (outcome == BP_STEP_UNORDERED && r->has_callbacks && r->refused == refused))
        violation(r, "outcome %d for %llu bytes anywhere, with %llu free in one place", (int)outcome,
                  (unsigned long long)bytes, (unsigned long long)largest);
    return outcome;
}

static bool is_same(const bp_step_block *a, const bp_step_block *b)
{
    return a->offset == b->offset && a->bytes == b->bytes && a->requested_bytes == b->requested_bytes &&
           a->stream == b->stream && a->kind == b->kind && a->item == b->item;
}

void reference_free(reference *r, uint64_t offset)
{
    size_t at = live_before(r, offset);
    const bool is_live = at > 0 && r->live[at - 1].offset == offset;
    reference_range range = is_live ? r->live[at - 1] : (reference_range){0};
    if (is_live) {
        for (uint32_t stream = 0; stream < BP_STEP_STREAMS; stream++) {
            if (range.users >> stream & 1)
                add_use(r, &range, stream);
        }
    }
    bp_step_block block = {.offset = UNSET};
    bp_status status = bp_step_server_free(r->server, offset, &block);
    if (status != (is_live ? BP_OK : BP_ERR_INVALID_ARGUMENT))
        violation(r, "status %d for the free of %llu", (int)status, (unsigned long long)offset);
    else if (is_live ? !is_same(&block, &range.block) : block.offset != UNSET)
        violation(r, "the free of %llu shows a block of %llu bytes at %llu", (unsigned long long)offset,
                  (unsigned long long)block.bytes, (unsigned long long)block.offset);
    if (!is_live)
        return;
    memmove(r->live + at - 1, r->live + at, (r->live_count - at) * sizeof *r->live);
    r->live_count--;
    r->expected.frees++;
    r->expected.live--;
    r->expected.live_bytes -= range.bytes;
}

void reference_use_on(reference *r, uint64_t offset, uint32_t stream)
{
    size_t at = live_before(r, offset);
    const bool good = at > 0 && offset - r->live[at - 1].offset < r->live[at - 1].bytes && stream < BP_STEP_STREAMS;
    bp_status status = bp_step_server_use(r->server, offset, stream);
    if (status != (good ? BP_OK : BP_ERR_INVALID_ARGUMENT))
        violation(r, "status %d for the use of %llu on stream %u", (int)status, (unsigned long long)offset, stream);
    if (good)
        r->live[at - 1].users |= UINT64_C(1) << stream;
}

void reference_mark(reference *r)
{
    bp_step_server_mark(r->server);
    r->expected.marks++;
}

void reference_pause(reference *r, bool paused)
{
    bp_step_server_pause(r->server, paused);
    r->is_paused = paused;
}

void reference_replace(reference *r, const bp_step_plan *plan)
{
    const bool fits = bp_step_plan_get_info(plan)->bytes <= r->slab_bytes;
    bp_status status = bp_step_server_replace(r->server, plan);
    if (status != (fits ? BP_OK : BP_ERR_INVALID_ARGUMENT))
        violation(r, "status %d for another plan", (int)status);
    for (size_t i = 0; fits && i < r->live_count; i++)
        r->live[i].block.kind = r->live[i].block.item = UINT32_MAX;
}

/* ---- looking at it ------------------------------------------------------------------------------------------------- */

static void check_statistics(reference *r)
{
    const bp_step_statistics *e = &r->expected;
    bp_step_statistics s = {.size = sizeof s};
    if (bp_step_server_get_statistics(r->server, &s) != BP_OK)
        violation(r, "no statistics");
    for (size_t i = 0; i < BP_STEP_OUTCOMES; i++) {
        if (s.outcomes[i] != e->outcomes[i])
            violation(r, "%llu allocations of outcome %zu, expected %llu", (unsigned long long)s.outcomes[i], i,
                      (unsigned long long)e->outcomes[i]);
    }
    const struct {
        const char *name;
        uint64_t is, expected;
    } rows[] = {{"anywhere", s.anywhere, e->anywhere},
                {"frees", s.frees, e->frees},
                {"live", s.live, e->live},
                {"live bytes", s.live_bytes, e->live_bytes},
                {"peak live bytes", s.peak_live_bytes, e->peak_live_bytes},
                {"marks", s.marks, e->marks},
                {"events", s.events, e->events},
                {"waits", s.waits, e->waits}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].is != rows[i].expected)
            violation(r, "statistics: %s is %llu, expected %llu", rows[i].name, (unsigned long long)rows[i].is,
                      (unsigned long long)rows[i].expected);
    }
}

/* Walks the blocks as a snapshot does. */
static void check_blocks(reference *r)
{
    uint64_t offset = 0;
    bp_step_block block;
    for (size_t i = 0; i < r->live_count; i++) {
        if (!bp_step_server_find(r->server, offset, &block) || !is_same(&block, &r->live[i].block)) {
            violation(r, "live block %zu is not found from %llu on", i, (unsigned long long)offset);
            return;
        }
        offset = block.offset + block.bytes;
    }
    if (bp_step_server_find(r->server, offset, &block))
        violation(r, "finds a block at %llu behind the last", (unsigned long long)block.offset);
}

void reference_check(reference *r)
{
    if (bp_step_server_check(r->server) != BP_OK)
        violation(r, "check: %s", bp_error_detail());
    check_statistics(r);
    check_blocks(r);
    for (uint32_t i = 0; i < BP_STEP_STREAMS; i++) {
        for (uint32_t k = 0; k < BP_STEP_STREAMS; k++) {
            if (bp_step_server_waits(r->server, i, k) != r->waits[i][k])
                violation(r, "%llu waits of stream %u for stream %u, expected %llu",
                          (unsigned long long)bp_step_server_waits(r->server, i, k), i, k,
                          (unsigned long long)r->waits[i][k]);
        }
    }
}
