/* Recording: rings that start and stop, and what else has to be known of the pools at these moments. */
#include "profile/profile.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/fail.h"

static uint64_t read_clock(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t bp_profile_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

void bp_profile_note_clocks(bp_profile *profile)
{
    profile->first_ns = profile->last_ns = bp_profile_now_ns();
    profile->realtime_offset_ns = (int64_t)(read_clock(CLOCK_REALTIME) - profile->first_ns);
}

uint32_t bp_profile_note_live(const bp_pool *pool, bp_live_note *notes)
{
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        const bp_entry *r = &pool->entries[id];
        uint64_t word = atomic_load_explicit(r->word, memory_order_acquire);
        notes[id] = (bp_live_note){0};
        if (BP_WORD_ID(word) != id || BP_WORD_REFERENCES(word) == 0)
            continue;
        const bp_stream *stream =
            atomic_load_explicit((_Atomic(const bp_stream *) *)&r->since_stream, memory_order_acquire);
        notes[id] =
            (bp_live_note){.address = atomic_load_explicit((_Atomic(uint8_t *) *)&r->address, memory_order_relaxed),
                           .step = bp_read(&r->since_step),
                           .stream = stream != NULL ? stream->number & 0xffffff : 0,
                           .live = true};
    }
    return count;
}

/* ---- slabs ---------------------------------------------------------------------------------------------------------- */

/* Room for another one: forgets the older half, and with it the events that came before the youngest of these. */
static void drop_slab_events(bp_profiled *p)
{
    uint32_t dropped = p->slab_event_count / 2;
    for (uint32_t i = 0; i < dropped; i++)
        p->resident_first[p->slab_events[i].slab] = p->slab_events[i].gained;
    p->first = p->slab_events[dropped - 1].before;
    p->slab_event_count -= dropped;
    memmove(p->slab_events, p->slab_events + dropped, p->slab_event_count * sizeof *p->slab_events);
}

static void note_slab(bp_profiled *p, uint32_t slab, bool gained)
{
    p->resident[slab] = gained;
    if (!p->profile->info.recording)
        return;
    if (p->slab_event_count == BP_SLAB_EVENTS)
        drop_slab_events(p);
    p->slab_events[p->slab_event_count++] = (bp_slab_event){
        .before = bp_recorder_next(p->recorder), .time_ns = bp_profile_now_ns(), .slab = slab, .gained = gained};
}

static bp_status gain(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)address;
    (void)bytes;
    note_slab(user, slab, true);
    return BP_OK;
}

static void recording_lose(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)address;
    (void)bytes;
    note_slab(user, slab, false);
}

/* The pool went before the profile: what was recorded of it cannot be told any more. */
static void pool_gone(void *user)
{
    bp_profiled *p = user;
    p->pool = NULL;
}

static const bp_slab_callbacks callbacks = {.attach = gain, .detach = recording_lose, .gone = pool_gone};

/* ---- a pool --------------------------------------------------------------------------------------------------------- */

static bp_status recording_make_arrays(bp_profiled *p)
{
    void *memory;
    size_t slabs = p->pool->slabs.count;
    BP_TRY(bp_new_array(slabs, sizeof *p->resident, &memory));
    p->resident = memory;
    BP_TRY(bp_new_array(slabs, sizeof *p->resident_first, &memory));
    p->resident_first = memory;
    BP_TRY(bp_new_array(BP_SLAB_EVENTS, sizeof *p->slab_events, &memory));
    p->slab_events = memory;
    BP_TRY(bp_new_array(p->pool->request_capacity, sizeof *p->begin, &memory));
    p->begin = memory;
    BP_TRY(bp_new_array(p->pool->request_capacity, sizeof *p->end, &memory));
    p->end = memory;
    return BP_OK;
}

bp_status bp_profiled_init(bp_profiled *profiled, uint64_t entries)
{
    bp_pool *pool = profiled->pool;
    if (pool->profiled)
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s has a profile already: destroy that first", pool->info.name);
    BP_TRY(recording_make_arrays(profiled));
    BP_TRY(bp_recorder_create((size_t)entries, true, &profiled->recorder));
    BP_TRY(bp_pool_attach(pool, &callbacks, profiled));
    profiled->attached = pool->profiled = true;
    return BP_OK;
}

/* Cannot refuse: what a capture or the seal of the pool forbids others is only a list of the pool's here. */
static void recording_leave(bp_profiled *p)
{
    if (p->pool == NULL || !p->attached)
        return;
    (void)bp_slabs_detach(&p->pool->slabs, &callbacks, p);
    p->pool->profiled = false;
}

void bp_profiled_finish(bp_profiled *profiled)
{
    recording_leave(profiled);
    bp_recorder_destroy(&profiled->recorder);
    free(profiled->resident);
    free(profiled->resident_first);
    free(profiled->slab_events);
    free(profiled->begin);
    free(profiled->end);
    free(profiled->plan.roles);
}

/* ---- all pools ------------------------------------------------------------------------------------------------------ */

static void stop_rings(bp_profile *profile, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (profile->pools[i].pool != NULL)
            bp_recorder_stop(profile->pools[i].pool, profile->pools[i].recorder);
    }
}

bp_status bp_profile_begin(bp_profile *profile)
{
    for (size_t i = 0; i < profile->count; i++) {
        bp_profiled *p = &profile->pools[i];
        bp_status status = p->pool != NULL ? bp_recorder_start(p->pool, p->recorder) : BP_OK;
        if (status != BP_OK) {
            stop_rings(profile, i);
            return status;
        }
    }
    for (size_t i = 0; i < profile->count; i++) {
        bp_profiled *p = &profile->pools[i];
        p->first = 0;
        p->slab_event_count = 0;
        if (p->pool == NULL)
            continue;
        memcpy(p->resident_first, p->resident, p->pool->slabs.count * sizeof *p->resident);
        p->begin_count = bp_profile_note_live(p->pool, p->begin);
    }
    bp_profile_note_clocks(profile);
    profile->recorded = true;
    profile->info.recording = 1;
    return BP_OK;
}

void bp_profile_end(bp_profile *profile)
{
    stop_rings(profile, profile->count);
    profile->last_ns = bp_profile_now_ns();
    profile->info.recording = 0;
    for (size_t i = 0; i < profile->count; i++) {
        bp_profiled *p = &profile->pools[i];
        if (p->pool != NULL)
            p->end_count = bp_profile_note_live(p->pool, p->end);
    }
}
