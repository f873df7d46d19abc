/* SPDX-License-Identifier: Apache-2.0 */
/* Replays recorded events from rings that may have overwritten their oldest ones. */
#include "allocators/profile/profile.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

/* The slab that contains the address; BP_NONE: none, or the request is dynamic. */
static uint32_t slab_at(const bp_pool *pool, uint32_t id, const uint8_t *address)
{
    for (size_t i = 0; pool->entries[id].kind != BP_KIND_DYNAMIC && i < pool->slabs.count; i++) {
        const bp_slab *slab = &pool->slabs.slabs[i];
        if (address >= slab->address && address < slab->address + slab->bytes)
            return (uint32_t)i;
    }
    return BP_NONE;
}

void bp_request_name_of(const bp_pool *pool, uint32_t id, bp_request_name *name)
{
    const bp_plan_request *request = &pool->requests[id];
    snprintf(name->number, sizeof name->number, "bucket.%u", request->ordinal);
    name->unit = request->unit[0] != '\0' ? request->unit : "outside units";
    name->bucket = request->bucket != NULL ? request->bucket : name->number;
    const char *pieces[BP_NAME_PIECES] = {bp_role_name((bp_role)request->role), " ", name->unit, "/", name->bucket};
    memcpy(name->pieces, pieces, sizeof pieces);
}

/* ---- initial state -------------------------------------------------------------------------------------------------- */

static void fill_recorded(const bp_profile *profile, bp_recorded_pool *s)
{
    const bp_profiled *p = s->of;
    if (profile->info.recording)
        memcpy(s->end, s->now, s->count * sizeof *s->end);
    else
        memcpy(s->end, p->end, p->end_count * sizeof *s->end);
    memcpy(s->resident, p->resident_first, s->pool->slabs.count * sizeof *s->resident);
    s->begin_ns = profile->first_ns;
    const uint64_t oldest = bp_recorder_oldest(p->recorder);
    s->next = bp_recorder_next(p->recorder);
    s->first = oldest > p->first ? oldest : p->first;
    if (s->first == 0) {
        memcpy(s->begin, p->begin, p->begin_count * sizeof *s->begin);
        return;
    }

    /* Events were overwritten: replays backwards from the end to find the live requests before the oldest event, and
     * then the resident slabs. */
    memcpy(s->begin, s->end, s->count * sizeof *s->begin);
    for (uint64_t number = s->next; number-- > s->first;) {
        const bp_pool_event e = bp_recorder_read(p->recorder, number);
        if (e.id >= s->count)
            continue;
        bp_live_note *note = &s->begin[e.id];
        bool ended = e.kind == BP_EVENT_RELEASE || e.kind == BP_EVENT_CANCEL;
        if (e.kind == BP_EVENT_ACQUIRE)
            *note = (bp_live_note){0};
        else if (ended || note->unsure)
            *note = (bp_live_note){e.address, e.step, e.stream, true, true};
    }
    while (s->first_slab_event < p->slab_event_count && p->slab_events[s->first_slab_event].before <= s->first) {
        const bp_slab_event *e = &p->slab_events[s->first_slab_event++];
        s->resident[e->slab] = e->gained;
    }
    if (s->first < s->next)
        s->begin_ns = bp_recorder_read(p->recorder, s->first).time_ns;
}

static bp_status init_pool(const bp_profile *profile, const bp_profiled *of, bp_recorded_pool *s)
{
    void *memory;
    uint32_t count = bp_request_count(of->pool);
    *s = (bp_recorded_pool){.of = of, .pool = of->pool, .count = count};
    bp_live_note **arrays[] = {&s->begin, &s->end, &s->now};
    for (size_t i = 0; i < 3; i++) {
        BP_TRY(bp_new_array(count, sizeof **arrays[i], &memory));
        *arrays[i] = memory;
    }
    BP_TRY(bp_new_array(of->pool->slabs.count, sizeof *s->resident, &memory));
    s->resident = memory;
    bp_profile_note_live(of->pool, s->now);
    if (profile->recorded) {
        fill_recorded(profile, s);
        return BP_OK;
    }
    /* nothing has been recorded yet: shows the current state only */
    memcpy(s->begin, s->now, s->count * sizeof *s->begin);
    memcpy(s->end, s->now, s->count * sizeof *s->end);
    memcpy(s->resident, of->resident, s->pool->slabs.count * sizeof *s->resident);
    s->begin_ns = bp_clock_ns();
    return BP_OK;
}

bp_status bp_recording_init(const bp_profile *profile, bp_recording *recording)
{
    void *memory;
    *recording = (bp_recording){.profile = profile, .realtime_offset_ns = profile->realtime_offset_ns};
    BP_TRY(bp_new_array(profile->count, sizeof *recording->pools, &memory));
    recording->pools = memory;
    for (size_t i = 0; i < profile->count; i++) {
        const bp_profiled *of = &profile->pools[i];
        recording->devices = of->device >= recording->devices ? of->device + 1 : recording->devices;
        if (of->pool != NULL)
            BP_TRY(init_pool(profile, of, &recording->pools[recording->count++]));
    }
    recording->now_ns = bp_clock_ns();
    recording->last_ns = profile->recorded && !profile->info.recording ? profile->last_ns : recording->now_ns;
    recording->has_gap = profile->recorded && !profile->info.recording && !profile->ending;
    return BP_OK;
}

void bp_recording_finish(bp_recording *recording)
{
    for (size_t i = 0; i < recording->count; i++) {
        free(recording->pools[i].begin);
        free(recording->pools[i].end);
        free(recording->pools[i].now);
        free(recording->pools[i].resident);
    }
    free(recording->pools);
}

/* The progress of one pool. */
typedef struct pool_replay {
    const bp_recorded_pool *recording;
    uint64_t next; /* index of the next event */
    bool begun;    /* the initial state was shown */
    uint64_t
        time_ns; /* of the last call; threads read the clock before they get their index in the ring, so events may be out of order */
    uint32_t slab_event;      /* index of the next slab event */
    bp_live_note *references; /* by id */
    bool *shown;              /* by id: its block is shown */
    bool *from_before;        /* by id: and was live at the beginning */
    bool *resident;           /* by slab */
} pool_replay;

typedef struct replay {
    const bp_replay_observer *observer;
    pool_replay *parts;
    size_t count;
    uint64_t begin_ns, time_ns;
    bool beginning; /* the initial state is being shown */
} replay;

/* ---- blocks and slabs ----------------------------------------------------------------------------------------------- */

static void show_block(const replay *p, const pool_replay *t, uint32_t id, bool begins)
{
    const bp_entry *r = &t->recording->pool->entries[id];
    const bp_live_note *reference = &t->references[id];
    const bp_block block = {.pool = t->recording->pool,
                            .id = id,
                            .stream = reference->stream,
                            .step = reference->step,
                            .address = reference->address,
                            .bytes = r->bytes,
                            .is_dynamic = r->kind == BP_KIND_DYNAMIC,
                            .from_before = t->from_before[id]};
    t->shown[id] = begins;
    p->observer->block(p->observer->user, &block, begins, p->time_ns);
}

/* True if a live request has mapped memory. */
static bool has_memory(const pool_replay *t, uint32_t id)
{
    const bp_entry *r = &t->recording->pool->entries[id];
    if (!t->references[id].live || r->bytes == 0)
        return false;
    if (r->kind == BP_KIND_DYNAMIC)
        return true;
    uint32_t slab = slab_at(t->recording->pool, id, t->references[id].address);
    return slab != BP_NONE && t->resident[slab];
}

static void end_block(const replay *p, const pool_replay *t, uint32_t id)
{
    if (t->shown[id])
        show_block(p, t, id, false);
    t->from_before[id] = false;
}

static void begin_block(const replay *p, const pool_replay *t, uint32_t id)
{
    if (!t->shown[id] && has_memory(t, id))
        show_block(p, t, id, true);
}

/* Live blocks end when their slab is unmapped, and begin again when it is mapped. */
static void change_slab(const replay *p, const pool_replay *t, uint32_t slab, bool gained)
{
    const bp_pool *pool = t->recording->pool;
    if (t->resident[slab] == gained)
        return;
    for (uint32_t id = 0; !gained && id < t->recording->count; id++) {
        if (t->shown[id] && slab_at(pool, id, t->references[id].address) == slab)
            end_block(p, t, id);
    }
    t->resident[slab] = gained;
    p->observer->slab(p->observer->user, pool, slab, gained, p->beginning, p->time_ns);
    for (uint32_t id = 0; gained && id < t->recording->count; id++) {
        if (t->references[id].live && slab_at(pool, id, t->references[id].address) == slab)
            begin_block(p, t, id);
    }
}

static void set_reference(const replay *p, const pool_replay *t, uint32_t id, const bp_live_note *reference)
{
    end_block(p, t, id);
    t->references[id] = *reference;
    begin_block(p, t, id);
}

/* ---- initial state, events, end ------------------------------------------------------------------------------------- */

static bool slab_is_next(const pool_replay *t)
{
    const bp_profiled *of = t->recording->of;
    return t->slab_event < of->slab_event_count && of->slab_events[t->slab_event].before <= t->next;
}

/* UINT64_MAX: nothing is left. */
static uint64_t next_time(const pool_replay *t)
{
    uint64_t time_ns;
    if (!t->begun)
        time_ns = t->recording->begin_ns;
    else if (slab_is_next(t))
        time_ns = t->recording->of->slab_events[t->slab_event].time_ns;
    else if (t->next == t->recording->next)
        return UINT64_MAX;
    else
        time_ns = bp_recorder_read(t->recording->of->recorder, t->next).time_ns;
    return time_ns > t->time_ns ? time_ns : t->time_ns;
}

static void replay_event(replay *p, pool_replay *t)
{
    const bp_recorded_pool *s = t->recording;
    if (!t->begun) { /* at the pool's first known event: before it, another pool may have had its dynamic memory */
        p->beginning = true;
        for (uint32_t slab = 0; slab < s->pool->slabs.count; slab++)
            change_slab(p, t, slab, s->resident[slab]);
        for (uint32_t id = 0; id < s->count; id++) {
            t->references[id] = s->begin[id];
            t->from_before[id] = has_memory(t, id) && p->time_ns == p->begin_ns;
            begin_block(p, t, id);
        }
        p->beginning = false;
        t->begun = true;
        return;
    }
    if (slab_is_next(t)) {
        const bp_slab_event *e = &s->of->slab_events[t->slab_event++];
        change_slab(p, t, e->slab, e->gained);
        return;
    }
    const bp_pool_event e = bp_recorder_read(s->of->recorder, t->next++);
    if (e.id >= s->count)
        return;
    if (e.kind == BP_EVENT_ACQUIRE)
        set_reference(p, t, e.id,
                      &(bp_live_note){.address = e.address, .step = e.step, .stream = e.stream, .live = true});
    else if (e.kind == BP_EVENT_RELEASE || e.kind == BP_EVENT_CANCEL)
        set_reference(p, t, e.id, &(bp_live_note){0});
}

/* Skips to the current state after an unrecorded interval. */
static void show_current(const replay *p, const pool_replay *t)
{
    const bp_recorded_pool *s = t->recording;
    for (uint32_t id = 0; id < s->count; id++) {
        if (t->references[id].live && (!s->now[id].live || s->now[id].address != t->references[id].address))
            set_reference(p, t, id, &(bp_live_note){0});
    }
    for (uint32_t slab = 0; slab < s->pool->slabs.count; slab++)
        change_slab(p, t, slab, s->of->resident[slab]);
    for (uint32_t id = 0; id < s->count; id++) {
        if (s->now[id].live && !t->references[id].live)
            set_reference(p, t, id, &s->now[id]);
    }
}

/* The pool with the earliest event; NULL: none. */
static pool_replay *find_next(const replay *p)
{
    pool_replay *found = NULL;
    uint64_t min = UINT64_MAX;
    for (size_t i = 0; i < p->count; i++) {
        uint64_t time = next_time(&p->parts[i]);
        if (time < min) {
            min = time;
            found = &p->parts[i];
        }
    }
    return found;
}

static bp_status replay_init(const bp_recording *recording, uint32_t device, replay *p)
{
    void *memory;
    BP_TRY(bp_new_array(recording->count, sizeof *p->parts, &memory));
    p->parts = memory;
    p->begin_ns = recording->now_ns;
    for (size_t i = 0; i < recording->count; i++) {
        const bp_recorded_pool *s = &recording->pools[i];
        p->begin_ns = bp_min_u64(p->begin_ns, s->begin_ns);
        if (device != BP_ALL_DEVICES && s->of->device != device)
            continue;
        pool_replay *t = &p->parts[p->count++];
        *t = (pool_replay){.recording = s, .next = s->first, .slab_event = s->first_slab_event};
        BP_TRY(bp_new_array(s->count, sizeof *t->references, &memory));
        t->references = memory;
        BP_TRY(bp_new_array(s->count, sizeof *t->shown, &memory));
        t->shown = memory;
        BP_TRY(bp_new_array(s->count, sizeof *t->from_before, &memory));
        t->from_before = memory;
        BP_TRY(bp_new_array(s->pool->slabs.count, sizeof *t->resident, &memory));
        t->resident = memory;
    }
    for (size_t i = 0; i < p->count; i++)
        p->parts[i].time_ns = p->begin_ns;
    return BP_OK;
}

bp_status bp_replay(const bp_recording *recording, uint32_t device, const bp_replay_observer *observer)
{
    replay p = {.observer = observer};
    bp_status status = replay_init(recording, device, &p);
    for (pool_replay *t = status == BP_OK ? find_next(&p) : NULL; t != NULL; t = find_next(&p)) {
        p.time_ns = t->time_ns = next_time(t);
        replay_event(&p, t);
    }
    p.time_ns = p.time_ns > recording->now_ns ? p.time_ns : recording->now_ns;
    for (size_t i = 0; status == BP_OK && i < p.count; i++)
        show_current(&p, &p.parts[i]);
    for (size_t i = 0; i < p.count; i++) {
        free(p.parts[i].references);
        free(p.parts[i].shown);
        free(p.parts[i].from_before);
        free(p.parts[i].resident);
    }
    free(p.parts);
    return status;
}
