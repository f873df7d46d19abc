/* SPDX-License-Identifier: Apache-2.0 */
/* Order between streams that use the same memory of a step plan one after the other.
 *
 * Plays each kind of step twice, as a server does: the stream that gets memory of another one waits for an event that this
 * one recorded at the free or later. All that the other stream did up to that event, and waited for, is then in order. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/fail.h>

#include "planner/steps/planner.h"

enum { KEPT_EVENTS = 64 }; /* of each stream, in servers */

/* The begin or the end of an item's live range. */
typedef struct operation {
    uint64_t time;
    uint32_t item;
    bool begins;
} operation;

/* Bytes between two offsets of items. */
typedef struct atom {
    uint32_t user; /* the last item, or BP_TRACE_NONE */
    uint32_t time; /* the clock when it was freed */
} atom;

typedef struct stream_event {
    uint32_t time, waited[BP_STEP_PLAN_STREAMS];
} stream_event;

typedef struct player {
    const bp_step_plan_item *items;
    size_t count, operation_count, atom_count;
    operation *operations;
    uint64_t *offsets; /* of atoms, ascending */
    uint32_t *first;   /* by item: its first atom, and the one behind the last */
    atom *atoms;
    bool *precedes; /* by item: another stream uses its memory next */
    uint32_t clock;
    stream_event events[BP_STEP_PLAN_STREAMS][KEPT_EVENTS];
    uint64_t event_counts[BP_STEP_PLAN_STREAMS];
    uint32_t waited[BP_STEP_PLAN_STREAMS][BP_STEP_PLAN_STREAMS];
    uint64_t waits[BP_STEP_PLAN_STREAMS][BP_STEP_PLAN_STREAMS];
} player;

/* ---- tables -------------------------------------------------------------------------------------------------------- */

static int by_operation_time(const void *left, const void *right)
{
    const operation *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins ? 1 : -1;
    return (a->item > b->item) - (a->item < b->item);
}

static int by_atom_offset(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static uint32_t player_atom(const player *s, uint64_t offset)
{
    const uint64_t *found = bsearch(&offset, s->offsets, s->atom_count, sizeof *s->offsets, by_atom_offset);
    return (uint32_t)(found - s->offsets);
}

static bp_status make_tables(const bp_step_planner *p, uint32_t kind, player *s)
{
    const bp_trace_step *step = &p->references[kind];
    const uint64_t length = step->end - step->begin;
    const size_t count = s->count;
    s->operations = malloc((2 * count + 1) * sizeof *s->operations);
    s->offsets = malloc((2 * count + 1) * sizeof *s->offsets);
    s->first = calloc(2 * count + 1, sizeof *s->first);
    s->precedes = calloc(count + 1, sizeof *s->precedes);
    if (s->operations == NULL || s->offsets == NULL || s->first == NULL || s->precedes == NULL)
        return bp_fail_memory(2 * count * sizeof *s->operations);
    for (size_t i = 0; i < count; i++) {
        const bp_allocation *a = &p->allocations->all[step->first + i];
        if (s->items[i].offset == BP_STEP_OUTSIDE)
            continue;
        const uint64_t begin = a->begin - step->begin, stop = bp_step_stop(p, a) - step->begin;
        const bool is_carried = stop > length; /* and freed in the next step, which is like this one */
        s->operations[s->operation_count++] = (operation){begin, (uint32_t)i, true};
        s->operations[s->operation_count++] = (operation){is_carried ? stop - length : stop, (uint32_t)i, false};
        s->offsets[s->atom_count++] = s->items[i].offset;
        s->offsets[s->atom_count++] = s->items[i].offset + bp_step_round(s->items[i].bytes);
    }
    qsort(s->operations, s->operation_count, sizeof *s->operations, by_operation_time);
    qsort(s->offsets, s->atom_count, sizeof *s->offsets, by_atom_offset);
    size_t kept = 0;
    for (size_t i = 0; i < s->atom_count; i++) {
        if (kept == 0 || s->offsets[i] != s->offsets[kept - 1])
            s->offsets[kept++] = s->offsets[i];
    }
    s->atom_count = kept;
    s->atoms = malloc((kept + 1) * sizeof *s->atoms);
    if (s->atoms == NULL)
        return bp_fail_memory(kept * sizeof *s->atoms);
    for (size_t i = 0; i < count; i++) {
        if (s->items[i].offset == BP_STEP_OUTSIDE)
            continue;
        s->first[2 * i] = player_atom(s, s->items[i].offset);
        s->first[2 * i + 1] = player_atom(s, s->items[i].offset + bp_step_round(s->items[i].bytes));
    }
    return BP_OK;
}

/* ---- events -------------------------------------------------------------------------------------------------------- */

static stream_event *player_event(player *s, uint32_t stream, uint64_t number)
{
    return &s->events[stream][number % KEPT_EVENTS];
}

static void player_record(player *s, uint32_t stream)
{
    stream_event *event = player_event(s, stream, ++s->event_counts[stream]);
    event->time = ++s->clock;
    memcpy(event->waited, s->waited[stream], sizeof event->waited);
}

static void player_wait(player *s, uint32_t stream, uint32_t before, uint32_t time, bool counts)
{
    if (s->waited[stream][before] > time)
        return;
    uint64_t number = s->event_counts[before];
    if (number == 0 || player_event(s, before, number)->time <= time) {
        player_record(s, before);
        number = s->event_counts[before];
    }
    while (number > 1 && s->event_counts[before] - number < KEPT_EVENTS - 1 &&
           player_event(s, before, number - 1)->time > time)
        number--;
    const stream_event *event = player_event(s, before, number);
    for (uint32_t i = 0; i < BP_STEP_PLAN_STREAMS; i++)
        s->waited[stream][i] = event->waited[i] > s->waited[stream][i] ? event->waited[i] : s->waited[stream][i];
    s->waited[stream][before] = event->time;
    s->waits[stream][before] += counts;
}

/* ---- playing ------------------------------------------------------------------------------------------------------- */

static void player_begin(player *s, uint32_t item, bool counts)
{
    const uint32_t stream = s->items[item].stream;
    uint32_t latest[BP_STEP_PLAN_STREAMS] = {0};
    uint32_t others = 0;
    for (uint32_t i = s->first[2 * item]; i < s->first[2 * item + 1]; i++) {
        const uint32_t user = s->atoms[i].user;
        if (user == BP_TRACE_NONE || s->items[user].stream == stream)
            continue;
        const uint32_t before = s->items[user].stream;
        s->precedes[user] = true;
        others |= 1u << before;
        latest[before] = s->atoms[i].time > latest[before] ? s->atoms[i].time : latest[before];
    }
    for (; others != 0; others &= others - 1) {
        const uint32_t before = (uint32_t)__builtin_ctz(others);
        player_wait(s, stream, before, latest[before], counts);
    }
}

static void player_end(player *s, uint32_t item)
{
    for (uint32_t i = s->first[2 * item]; i < s->first[2 * item + 1]; i++)
        s->atoms[i] = (atom){item, s->clock};
    if (s->precedes[item])
        player_record(s, s->items[item].stream);
}

static void play(player *s, bool counts)
{
    for (size_t i = 0; i < s->operation_count; i++) {
        if (s->operations[i].begins)
            player_begin(s, s->operations[i].item, counts);
        else
            player_end(s, s->operations[i].item);
    }
}

/* Two steps tell which memory changes streams, and two more, with their events, how often a stream waits. */
static void play_steps(player *s, bool repeats)
{
    for (size_t round = 0; round < 2; round++) {
        s->clock = 0;
        memset(s->event_counts, 0, sizeof s->event_counts);
        memset(s->waited, 0, sizeof s->waited);
        for (size_t i = 0; i < s->atom_count; i++)
            s->atoms[i] = (atom){.user = BP_TRACE_NONE};
        if (repeats)
            play(s, false);
        play(s, round == 1);
    }
}

static void player_finish(player *s)
{
    free(s->operations);
    free(s->offsets);
    free(s->first);
    free(s->atoms);
    free(s->precedes);
    free(s);
}

static bool has_streams(const bp_step_plan_kind *kind)
{
    for (size_t i = 1; i < kind->item_count; i++) {
        if (kind->items[i].stream != kind->items[0].stream)
            return true;
    }
    return false;
}

bp_status bp_step_planner_order_streams(const bp_step_planner *p, size_t stream_count, bp_step_plan_waits *waits,
                                        size_t *count)
{
    uint32_t largest = 0;
    for (uint32_t k = 1; k < p->kind_count; k++) {
        if (!p->kinds[k].is_first && p->kinds[k].bytes > p->kinds[largest].bytes)
            largest = k;
    }
    *count = 0;
    for (uint32_t k = 0; k < p->kind_count; k++) {
        if (!has_streams(&p->kinds[k]))
            continue;
        player *s = calloc(1, sizeof *s);
        if (s == NULL)
            return bp_fail_memory(sizeof *s);
        s->items = p->items[k];
        s->count = p->kinds[k].item_count;
        bp_status status = make_tables(p, k, s);
        if (status == BP_OK)
            play_steps(s, !p->kinds[k].is_first);
        for (size_t i = 0; i < s->count && status == BP_OK; i++)
            p->items[k][i].precedes_stream = s->precedes[i];
        for (uint32_t a = 0; a < stream_count && k == largest; a++) {
            for (uint32_t b = 0; b < stream_count; b++) {
                if (s->waits[a][b] > 0)
                    waits[(*count)++] = (bp_step_plan_waits){.waiting = a, .before = b, .waits = s->waits[a][b]};
            }
        }
        player_finish(s);
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}
