/* SPDX-License-Identifier: Apache-2.0 */
/* The order between streams that use the same memory one after the other.
 *
 * The clock counts events of all streams. Memory that was freed at time t, and used by stream u, may be used by stream s once s has waited for
 * an event of u with a time later than t. What a stream waited for before it recorded an event comes with that event. */
#include <string.h>

#include "allocators/serve/server.h"

/* Streams that have memory which others may not use yet; the stream alone if there is only one. */
static bool is_alone(const bp_step_server *s)
{
    return (s->seen & (s->seen - 1)) == 0;
}

void serve_see(bp_step_server *s, uint32_t stream)
{
    if (s->seen & 1u << stream)
        return;
    if (s->seen != 0 && is_alone(s)) { /* all that was freed so far was the first stream's */
        const uint32_t first = (uint32_t)__builtin_ctz(s->seen);
        memset(s->streams[first].used, 0xff, s->words * sizeof *s->streams[first].used);
        for (uint32_t i = 0; i < s->atom_count; i++)
            s->times[i] = s->clock;
    }
    s->seen |= 1u << stream;
}

static serve_event *event_of(serve_stream *stream, uint64_t point)
{
    return &stream->events[point % KEPT_EVENTS];
}

/* Records an event of a stream. False: not possible now. */
static bool record(bp_step_server *s, uint32_t stream)
{
    serve_stream *of = &s->streams[stream];
    if (s->config.record == NULL || s->clock == UINT32_MAX ||
        !s->config.record(s->config.context, stream, of->points + 1))
        return false;
    serve_event *event = event_of(of, ++of->points);
    event->time = ++s->clock;
    memcpy(event->waited, of->waited, sizeof event->waited);
    s->statistics.events++;
    return true;
}

/* Makes a stream wait for what another one did before `time`: for the first event after it that is still kept. */
static bool wait_for(bp_step_server *s, uint32_t stream, uint32_t before, uint32_t time)
{
    serve_stream *of = &s->streams[stream], *other = &s->streams[before];
    if (of->waited[before] > time)
        return true;
    if ((other->points == 0 || event_of(other, other->points)->time <= time) && !record(s, before))
        return false;
    uint64_t point = other->points;
    while (point > 1 && other->points - point < KEPT_EVENTS - 1 && event_of(other, point - 1)->time > time)
        point--;
    if (!s->config.wait(s->config.context, stream, before, point))
        return false;
    const serve_event *event = event_of(other, point);
    for (uint32_t i = 0; i < BP_STEP_STREAMS; i++)
        of->waited[i] = event->waited[i] > of->waited[i] ? event->waited[i] : of->waited[i];
    of->waited[before] = event->time > of->waited[before] ? event->time : of->waited[before];
    of->waits[before]++;
    s->statistics.waits++;
    return true;
}

/* The latest time at which memory of a bitmap was freed, of atoms [first, end). */
static uint32_t latest(const bp_step_server *s, const uint64_t *used, uint32_t first, uint32_t end)
{
    uint32_t time = 0;
    for (uint32_t word = first / 64, last = (end - 1) / 64; word <= last; word++) {
        uint64_t bits = used[word] & (word == first / 64 ? serve_bits_from(first) : ~(uint64_t)0) &
                        (word == last ? serve_bits_to(end) : ~(uint64_t)0);
        for (; bits != 0; bits &= bits - 1) {
            const uint32_t freed = s->times[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            time = freed > time ? freed : time;
        }
    }
    return time;
}

bool serve_order(bp_step_server *s, uint32_t stream, uint32_t first, uint32_t end)
{
    if (is_alone(s))
        return true;
    for (uint32_t others = s->seen & ~(1u << stream); others != 0; others &= others - 1) {
        const uint32_t before = (uint32_t)__builtin_ctz(others);
        const uint64_t *used = s->streams[before].used;
        if (serve_any(used, first, end) && !wait_for(s, stream, before, latest(s, used, first, end)))
            return false;
    }
    return true;
}

void serve_release(bp_step_server *s, uint32_t users, uint32_t first, uint32_t end, bool records)
{
    if (is_alone(s))
        return;
    for (uint32_t seen = s->seen; seen != 0; seen &= seen - 1) {
        const uint32_t stream = (uint32_t)__builtin_ctz(seen);
        serve_set(s->streams[stream].used, first, end, users >> stream & 1);
    }
    for (uint32_t i = first; i < end; i++)
        s->times[i] = s->clock;
    for (uint32_t left = records ? users : 0; left != 0; left &= left - 1)
        record(s, (uint32_t)__builtin_ctz(left)); /* else when somebody waits */
}
