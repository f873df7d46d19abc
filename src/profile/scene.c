#include "profile/scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* ---- requests ------------------------------------------------------------------------------------------------------- */

bool bp_scene_is_dynamic(const bp_pool *pool, uint32_t id)
{
    return pool->entries[id].kind == BP_KIND_DYNAMIC;
}

uint32_t bp_scene_slab(const bp_pool *pool, uint32_t id, const uint8_t *address)
{
    for (size_t i = 0; !bp_scene_is_dynamic(pool, id) && i < pool->slabs.count; i++) {
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

/* Events backwards from the end: what was live before the oldest. */
static void go_back(bp_scene_pool *s)
{
    memcpy(s->begin, s->end, s->count * sizeof *s->begin);
    for (uint64_t number = s->next; number-- > s->first;) {
        const bp_pool_event e = bp_recorder_read(s->of->recorder, number);
        if (e.id >= s->count)
            continue;
        bp_live_note *note = &s->begin[e.id];
        bool ended = e.kind == BP_EVENT_RELEASE || e.kind == BP_EVENT_CANCEL;
        if (e.kind == BP_EVENT_ACQUIRE)
            *note = (bp_live_note){0};
        else if (ended || note->unsure)
            *note = (bp_live_note){e.address, e.step, e.stream, true, true};
    }
}

static void apply_slab_events(bp_scene_pool *s)
{
    const bp_profiled *p = s->of;
    while (s->first_slab_event < p->slab_event_count && p->slab_events[s->first_slab_event].before <= s->first) {
        const bp_slab_event *e = &p->slab_events[s->first_slab_event++];
        s->resident[e->slab] = e->gained;
    }
}

/* Whether events of the recording are missing. */
static bool find_events(bp_scene_pool *s)
{
    const bp_profiled *p = s->of;
    uint64_t oldest = bp_recorder_oldest(p->recorder);
    s->next = bp_recorder_next(p->recorder);
    s->first = oldest > p->first ? oldest : p->first;
    return s->first > 0;
}

static void fill_recorded(const bp_profile *profile, bp_scene_pool *s)
{
    const bp_profiled *p = s->of;
    if (profile->info.recording)
        memcpy(s->end, s->now, s->count * sizeof *s->end);
    else
        memcpy(s->end, p->end, p->end_count * sizeof *s->end);
    memcpy(s->resident, p->resident_first, s->pool->slabs.count * sizeof *s->resident);
    s->begin_ns = profile->first_ns;
    if (!find_events(s)) {
        memcpy(s->begin, p->begin, p->begin_count * sizeof *s->begin);
        return;
    }
    go_back(s);
    apply_slab_events(s);
    if (s->first < s->next)
        s->begin_ns = bp_recorder_read(p->recorder, s->first).time_ns;
}

/* Nothing has been recorded yet: all there is is now. */
static void fill_unrecorded(bp_scene_pool *s)
{
    memcpy(s->begin, s->now, s->count * sizeof *s->begin);
    memcpy(s->end, s->now, s->count * sizeof *s->end);
    memcpy(s->resident, s->of->resident, s->pool->slabs.count * sizeof *s->resident);
    s->begin_ns = bp_profile_now_ns();
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
    if (profile->recorded)
        fill_recorded(profile, s);
    else
        fill_unrecorded(s);
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
    scene->now_ns = bp_profile_now_ns();
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
