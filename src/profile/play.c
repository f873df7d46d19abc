#include "profile/play.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

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
    uint32_t slab = bp_scene_slab(t->scene->pool, id, t->references[id].address);
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
        if (t->shown[id] && bp_scene_slab(pool, id, t->references[id].address) == slab)
            end_block(p, t, id);
    }
    t->resident[slab] = gained;
    p->audience->slab(p->audience->user, pool, slab, gained, p->beginning, p->time_ns);
    for (uint32_t id = 0; gained && id < t->scene->count; id++) {
        if (t->references[id].live && bp_scene_slab(pool, id, t->references[id].address) == slab)
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

/* A pool begins with the first event that is known of it: before, others may have had its dynamic memory. */
static void begin_part(play *p, part *t)
{
    const bp_scene_pool *s = t->scene;
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
}

static bool slab_is_next(const part *t)
{
    const bp_profiled *of = t->scene->of;
    return t->slab_event < of->slab_event_count && of->slab_events[t->slab_event].before <= t->next;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* UINT64_MAX: there is nothing left. */
static uint64_t next_time(const part *t)
{
    if (!t->begun)
        return later(t->time_ns, t->scene->begin_ns);
    if (slab_is_next(t))
        return later(t->time_ns, t->scene->of->slab_events[t->slab_event].time_ns);
    if (t->next == t->scene->next)
        return UINT64_MAX;
    return later(t->time_ns, bp_recorder_read(t->scene->of->recorder, t->next).time_ns);
}

static void play_event(play *p, part *t)
{
    if (!t->begun) {
        begin_part(p, t);
        return;
    }
    if (slab_is_next(t)) {
        const bp_slab_event *e = &t->scene->of->slab_events[t->slab_event++];
        change_slab(p, t, e->slab, e->gained);
        return;
    }
    const bp_pool_event e = bp_recorder_read(t->scene->of->recorder, t->next++);
    if (e.id >= t->scene->count)
        return;
    if (e.kind == BP_EVENT_ACQUIRE)
        take_hold(p, t, e.id, &(bp_live_note){.address = e.address, .step = e.step, .stream = e.stream, .live = true});
    else if (e.kind == BP_EVENT_RELEASE || e.kind == BP_EVENT_CANCEL)
        take_hold(p, t, e.id, &(bp_live_note){0});
}

/* Where pools went on unrecorded: to what there is now. */
static void end_part(const play *p, const part *t)
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

static uint64_t begin_of(const bp_scene *scene)
{
    uint64_t begin = scene->now_ns;
    for (size_t i = 0; i < scene->count; i++)
        begin = scene->pools[i].begin_ns < begin ? scene->pools[i].begin_ns : begin;
    return begin;
}

static void play_run(play *p, const bp_scene *scene)
{
    p->begin_ns = begin_of(scene);
    for (size_t i = 0; i < p->count; i++)
        p->parts[i].time_ns = p->begin_ns;
    for (part *t = find_next(p); t != NULL; t = find_next(p)) {
        p->time_ns = t->time_ns = next_time(t);
        play_event(p, t);
    }
    p->time_ns = later(p->time_ns, scene->now_ns);
    for (size_t i = 0; i < p->count; i++)
        end_part(p, &p->parts[i]);
}

/* ---- making it ------------------------------------------------------------------------------------------------------ */

static bp_status init_part(const bp_scene_pool *scene, part *t)
{
    void *memory;
    *t = (part){.scene = scene, .next = scene->first, .slab_event = scene->first_slab_event};
    BP_TRY(bp_new_array(scene->count, sizeof *t->references, &memory));
    t->references = memory;
    BP_TRY(bp_new_array(scene->count, sizeof *t->shown, &memory));
    t->shown = memory;
    BP_TRY(bp_new_array(scene->count, sizeof *t->from_before, &memory));
    t->from_before = memory;
    BP_TRY(bp_new_array(scene->pool->slabs.count, sizeof *t->resident, &memory));
    t->resident = memory;
    return BP_OK;
}

static bp_status play_init(const bp_scene *scene, uint32_t device, play *p)
{
    void *memory;
    BP_TRY(bp_new_array(scene->count, sizeof *p->parts, &memory));
    p->parts = memory;
    for (size_t i = 0; i < scene->count; i++) {
        if (device == BP_ALL_DEVICES || scene->pools[i].of->device == device)
            BP_TRY(init_part(&scene->pools[i], &p->parts[p->count++]));
    }
    return BP_OK;
}

bp_status bp_play(const bp_scene *scene, uint32_t device, const bp_audience *audience)
{
    play p = {.audience = audience};
    bp_status status = play_init(scene, device, &p);
    if (status == BP_OK)
        play_run(&p, scene);
    for (size_t i = 0; i < p.count; i++) {
        free(p.parts[i].references);
        free(p.parts[i].shown);
        free(p.parts[i].from_before);
        free(p.parts[i].resident);
    }
    free(p.parts);
    return status;
}
