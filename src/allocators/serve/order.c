/* SPDX-License-Identifier: Apache-2.0 */
/* The order between streams that use the same memory one after the other.
 *
 * The clock counts events of all streams. Memory that was freed at time t, and used by stream u, may be used by stream s once s has waited for
 * an event of u with a time later than t. What a stream waited for before it recorded an event comes with that event. */
#include <string.h>

#include "allocators/serve/server.h"

/* No memory changes streams. */
static bool is_alone(const bp_step_server *s)
{
    return s->seen == 0 || (s->seen & (s->seen - 1)) == 0;
}

/* The bits of atoms [first, end) in a word that has some of them. */
static uint64_t bits_in(uint32_t word, uint32_t first, uint32_t end)
{
    return (word == first / 64 ? serve_bits_from(first) : ~(uint64_t)0) &
           (word == (end - 1) / 64 ? serve_bits_to(end) : ~(uint64_t)0);
}

/* Atoms [first, end) were used by streams, and by no others since, and are freed now. */
static void set_users(bp_step_server *s, uint32_t users, uint32_t first, uint32_t end)
{
    for (uint32_t word = first / 64; word <= (end - 1) / 64; word++) {
        const uint64_t bits = bits_in(word, first, end);
        serve_word *of = &s->order[word];
        for (uint32_t left = of->users | users; left != 0; left &= left - 1) {
            const uint32_t stream = (uint32_t)__builtin_ctz(left);
            uint64_t *used = &s->streams[stream].used[word];
            *used = users >> stream & 1 ? *used | bits : *used & ~bits;
        }
        of->latest = s->clock;
        if (bits == ~(uint64_t)0) {
            of->users = users;
            of->time = s->clock;
            continue;
        }
        of->users |= users;
        for (uint64_t left = of->time < s->clock ? bits : 0; left != 0; left &= left - 1)
            s->times[word * 64 + (uint32_t)__builtin_ctzll(left)] = s->clock;
    }
}

void serve_forget_order(bp_step_server *s)
{
    if (!is_alone(s) && s->atom_count > 0)
        set_users(s, s->seen, 0, s->atom_count);
}

void serve_see(bp_step_server *s, uint32_t stream)
{
    if (s->seen & 1u << stream)
        return;
    if (s->seen != 0 && is_alone(s) && s->atom_count > 0) /* all that was freed so far was the first stream's */
        set_users(s, s->seen, 0, s->atom_count);
    s->seen |= 1u << stream;
}

static serve_event *event_of(serve_stream *stream, uint64_t point)
{
    return &stream->events[point % KEPT_EVENTS];
}

/* Records an event of a stream. False: not possible now. */
static bool record_event(bp_step_server *s, uint32_t stream)
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
    if ((other->points == 0 || event_of(other, other->points)->time <= time) && !record_event(s, before))
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

/* The latest time at which atoms [first, end) of a bitmap were freed; `floor` if that was earlier. */
static uint32_t latest(const bp_step_server *s, const uint64_t *used, uint32_t first, uint32_t end, uint32_t floor)
{
    uint32_t time = floor;
    for (uint32_t word = first / 64, last = (end - 1) / 64; word <= last; word++) {
        uint64_t bits = used[word] & bits_in(word, first, end);
        if (bits == 0 || s->order[word].latest <= time)
            continue;
        time = s->order[word].time > time ? s->order[word].time : time;
        for (; bits != 0 && s->order[word].latest > time; bits &= bits - 1) {
            const uint32_t freed = s->times[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            time = freed > time ? freed : time;
        }
    }
    return time;
}

bool serve_order(bp_step_server *s, uint32_t stream, uint32_t first, uint32_t end)
{
    uint32_t others = 0;
    if (is_alone(s))
        return true;
    for (uint32_t word = first / 64; word <= (end - 1) / 64; word++)
        others |= s->order[word].users;
    for (others &= ~(1u << stream); others != 0; others &= others - 1) {
        const uint32_t before = (uint32_t)__builtin_ctz(others), waited = s->streams[stream].waited[before];
        const uint64_t *used = s->streams[before].used;
        if (serve_any(used, first, end) &&
            !wait_for(s, stream, before, latest(s, used, first, end, waited > 0 ? waited - 1 : 0)))
            return false;
    }
    return true;
}

void serve_release(bp_step_server *s, uint32_t users, uint32_t first, uint32_t end, bool records)
{
    if (is_alone(s))
        return;
    set_users(s, users, first, end);
    for (uint32_t left = records ? users : 0; left != 0; left &= left - 1)
        record_event(s, (uint32_t)__builtin_ctz(left)); /* else when somebody waits */
}
