/* Recorded events as a story: what can be told from a ring that has forgotten its oldest events. */
#include "profile/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/timeout.h"

/* The slab that has the address; BP_NONE: none, or it is dynamic. */
static uint32_t scene_slab(const bp_pool *pool, uint32_t id, const uint8_t *address)
{
    for (size_t i = 0; pool->entries[id].kind != BP_KIND_DYNAMIC && i < pool->slabs.count; i++) {
        const bp_slab *slab = &pool->slabs.slabs[i];
        if (address >= slab->address && address < slab->address + slab->bytes)
            return (uint32_t)i;
    }
    return BP_NONE;
}

void bp_scene_name(const bp_pool *pool, uint32_t id, bp_request_name *name)
{
    const bp_plan_request *request = &pool->requests[id];
    snprintf(name->number, sizeof name->number, "bucket.%u", request->ordinal);
    name->unit = request->unit[0] != '\0' ? request->unit : "outside units";
    name->bucket = request->bucket != NULL ? request->bucket : name->number;
    const char *pieces[BP_NAME_PIECES] = {bp_role_name((bp_role)request->role), " ", name->unit, "/", name->bucket};
    memcpy(name->pieces, pieces, sizeof pieces);
}

/* ---- the beginning -------------------------------------------------------------------------------------------------- */

static void fill_recorded(const bp_profile *profile, bp_scene_pool *s)
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

    /* Events are missing: backwards from the end to what was live before the oldest, and which slabs had memory. */
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

static bp_status init_pool(const bp_profile *profile, const bp_profiled *of, bp_scene_pool *s)
{
    void *memory;
    uint32_t count = bp_request_count(of->pool);
    *s = (bp_scene_pool){.of = of, .pool = of->pool, .count = count};
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
    /* nothing has been recorded yet: all there is is now */
    memcpy(s->begin, s->now, s->count * sizeof *s->begin);
    memcpy(s->end, s->now, s->count * sizeof *s->end);
    memcpy(s->resident, of->resident, s->pool->slabs.count * sizeof *s->resident);
    s->begin_ns = bp_clock_ns();
    return BP_OK;
}

bp_status bp_scene_init(const bp_profile *profile, bp_scene *scene)
{
    void *memory;
    *scene = (bp_scene){.profile = profile, .realtime_offset_ns = profile->realtime_offset_ns};
    BP_TRY(bp_new_array(profile->count, sizeof *scene->pools, &memory));
    scene->pools = memory;
    for (size_t i = 0; i < profile->count; i++) {
        const bp_profiled *of = &profile->pools[i];
        scene->devices = of->device >= scene->devices ? of->device + 1 : scene->devices;
        if (of->pool != NULL)
            BP_TRY(init_pool(profile, of, &scene->pools[scene->count++]));
    }
    scene->now_ns = bp_clock_ns();
    scene->last_ns = profile->recorded && !profile->info.recording ? profile->last_ns : scene->now_ns;
    scene->has_gap = profile->recorded && !profile->info.recording && !profile->ending;
    return BP_OK;
}

void bp_scene_finish(bp_scene *scene)
{
    for (size_t i = 0; i < scene->count; i++) {
        free(scene->pools[i].begin);
        free(scene->pools[i].end);
        free(scene->pools[i].now);
        free(scene->pools[i].resident);
    }
    free(scene->pools);
}

/* A pool's part of the story so far. */
typedef struct part {
    const bp_scene_pool *scene;
    uint64_t next;       /* event */
    bool begun;          /* what was there before is told */
    uint64_t time_ns;    /* of what was told last: threads read the clock before they take their places in the ring */
    uint32_t slab_event; /* next */
    bp_live_note *references; /* by id */
    bool *shown;              /* by id: its block is there */
    bool *from_before;        /* by id: and was at the beginning */
    bool *resident;           /* by slab */
} part;

typedef struct play {
    const bp_audience *audience;
    part *parts;
    size_t count;
    uint64_t begin_ns, time_ns;
    bool beginning; /* what is told was there before */
} play;

/* ---- blocks and slabs ----------------------------------------------------------------------------------------------- */

static void play_tell_block(const play *p, const part *t, uint32_t id, bool begins)
{
    const bp_entry *r = &t->scene->pool->entries[id];
    const bp_live_note *hold = &t->references[id];
    const bp_block block = {.pool = t->scene->pool,
                            .id = id,
                            .stream = hold->stream,
                            .step = hold->step,
                            .address = hold->address,
                            .bytes = r->bytes,
                            .is_dynamic = r->kind == BP_KIND_DYNAMIC,
                            .from_before = t->from_before[id]};
    t->shown[id] = begins;
    p->audience->block(p->audience->user, &block, begins, p->time_ns);
}

/* Whether there is memory below a hold. */
static bool has_memory(const part *t, uint32_t id)
{
    const bp_entry *r = &t->scene->pool->entries[id];
    if (!t->references[id].live || r->bytes == 0)
        return false;
    if (r->kind == BP_KIND_DYNAMIC)
        return true;
    uint32_t slab = scene_slab(t->scene->pool, id, t->references[id].address);
    return slab != BP_NONE && t->resident[slab];
}

static void end_block(const play *p, const part *t, uint32_t id)
{
    if (t->shown[id])
        play_tell_block(p, t, id, false);
    t->from_before[id] = false;
}

static void begin_block(const play *p, const part *t, uint32_t id)
{
    if (!t->shown[id] && has_memory(t, id))
        play_tell_block(p, t, id, true);
}

/* Blocks that stay held lose their memory with the slab, and get it back with it. */
static void change_slab(const play *p, const part *t, uint32_t slab, bool gained)
{
    const bp_pool *pool = t->scene->pool;
    if (t->resident[slab] == gained)
        return;
    for (uint32_t id = 0; !gained && id < t->scene->count; id++) {
        if (t->shown[id] && scene_slab(pool, id, t->references[id].address) == slab)
            end_block(p, t, id);
    }
    t->resident[slab] = gained;
    p->audience->slab(p->audience->user, pool, slab, gained, p->beginning, p->time_ns);
    for (uint32_t id = 0; gained && id < t->scene->count; id++) {
        if (t->references[id].live && scene_slab(pool, id, t->references[id].address) == slab)
            begin_block(p, t, id);
    }
}

static void take_hold(const play *p, const part *t, uint32_t id, const bp_live_note *hold)
{
    end_block(p, t, id);
    t->references[id] = *hold;
    begin_block(p, t, id);
}

/* ---- beginning, events, end ----------------------------------------------------------------------------------------- */

static bool slab_is_next(const part *t)
{
    const bp_profiled *of = t->scene->of;
    return t->slab_event < of->slab_event_count && of->slab_events[t->slab_event].before <= t->next;
}

/* UINT64_MAX: there is nothing left. */
static uint64_t next_time(const part *t)
{
    uint64_t time_ns;
    if (!t->begun)
        time_ns = t->scene->begin_ns;
    else if (slab_is_next(t))
        time_ns = t->scene->of->slab_events[t->slab_event].time_ns;
    else if (t->next == t->scene->next)
        return UINT64_MAX;
    else
        time_ns = bp_recorder_read(t->scene->of->recorder, t->next).time_ns;
    return time_ns > t->time_ns ? time_ns : t->time_ns;
}

static void play_event(play *p, part *t)
{
    const bp_scene_pool *s = t->scene;
    if (!t->begun) { /* with the first event that is known of the pool: before, others may have had its dynamic memory */
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
        take_hold(p, t, e.id, &(bp_live_note){.address = e.address, .step = e.step, .stream = e.stream, .live = true});
    else if (e.kind == BP_EVENT_RELEASE || e.kind == BP_EVENT_CANCEL)
        take_hold(p, t, e.id, &(bp_live_note){0});
}

/* Where pools went on unrecorded: to what there is now. */
static void tell_gap(const play *p, const part *t)
{
    const bp_scene_pool *s = t->scene;
    for (uint32_t id = 0; id < s->count; id++) {
        if (t->references[id].live && (!s->now[id].live || s->now[id].address != t->references[id].address))
            take_hold(p, t, id, &(bp_live_note){0});
    }
    for (uint32_t slab = 0; slab < s->pool->slabs.count; slab++)
        change_slab(p, t, slab, s->of->resident[slab]);
    for (uint32_t id = 0; id < s->count; id++) {
        if (s->now[id].live && !t->references[id].live)
            take_hold(p, t, id, &s->now[id]);
    }
}

/* The pool with the oldest event; NULL: there is none. */
static part *find_next(const play *p)
{
    part *found = NULL;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < p->count; i++) {
        uint64_t time = next_time(&p->parts[i]);
        if (time < least) {
            least = time;
            found = &p->parts[i];
        }
    }
    return found;
}

static bp_status play_init(const bp_scene *scene, uint32_t device, play *p)
{
    void *memory;
    BP_TRY(bp_new_array(scene->count, sizeof *p->parts, &memory));
    p->parts = memory;
    p->begin_ns = scene->now_ns;
    for (size_t i = 0; i < scene->count; i++) {
        const bp_scene_pool *s = &scene->pools[i];
        p->begin_ns = bp_least_u64(p->begin_ns, s->begin_ns);
        if (device != BP_ALL_DEVICES && s->of->device != device)
            continue;
        part *t = &p->parts[p->count++];
        *t = (part){.scene = s, .next = s->first, .slab_event = s->first_slab_event};
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

bp_status bp_play(const bp_scene *scene, uint32_t device, const bp_audience *audience)
{
    play p = {.audience = audience};
    bp_status status = play_init(scene, device, &p);
    for (part *t = status == BP_OK ? find_next(&p) : NULL; t != NULL; t = find_next(&p)) {
        p.time_ns = t->time_ns = next_time(t);
        play_event(&p, t);
    }
    p.time_ns = p.time_ns > scene->now_ns ? p.time_ns : scene->now_ns;
    for (size_t i = 0; status == BP_OK && i < p.count; i++)
        tell_gap(&p, &p.parts[i]);
    for (size_t i = 0; i < p.count; i++) {
        free(p.parts[i].references);
        free(p.parts[i].shown);
        free(p.parts[i].from_before);
        free(p.parts[i].resident);
    }
    free(p.parts);
    return status;
}
