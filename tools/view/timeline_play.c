#include "view/timeline_play.h"

#include <stdlib.h>

static uint64_t since_first(const view_pool *pool, uint64_t time_ns)
{
    return time_ns > pool->first_ns ? time_ns - pool->first_ns : 0;
}

/* ---- tracks ----------------------------------------------------------------------------------------------------------------- */

static void sift_down(uint32_t *heap, size_t count)
{
    for (size_t at = 0, child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (heap[at] <= heap[child])
            return;
        uint32_t low = heap[child];
        heap[child] = heap[at];
        heap[at] = low;
    }
}

static uint32_t take_track(view_player *p, uint64_t bytes)
{
    uint32_t track = (uint32_t)p->pool->track_count;
    if (p->free_count > 0) {
        track = p->free_tracks[0];
        p->free_tracks[0] = p->free_tracks[--p->free_count];
        sift_down(p->free_tracks, p->free_count);
    } else {
        p->pool->tracks[p->pool->track_count++] = 0;
    }
    if (p->pool->tracks[track] < bytes)
        p->pool->tracks[track] = bytes;
    return track;
}

static void give_track(view_player *p, uint32_t track)
{
    size_t at = p->free_count++;
    for (; at > 0 && p->free_tracks[(at - 1) / 2] > track; at = (at - 1) / 2)
        p->free_tracks[at] = p->free_tracks[(at - 1) / 2];
    p->free_tracks[at] = track;
}

/* ---- live bytes ---------------------------------------------------------------------------------------------------------------- */

static uint32_t find_slab(const view_player *p, uint64_t address)
{
    const bp_snapshot_slab *slabs = p->pool->slabs;
    size_t low = 0, high = p->pool->info->slab_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        *(slabs[p->by_address[middle]].address <= address ? &low : &high) =
            slabs[p->by_address[middle]].address <= address ? middle + 1 : middle;
    }
    if (low == 0)
        return VIEW_OUTSIDE;
    uint32_t slab = p->by_address[low - 1];
    return address - slabs[slab].address < slabs[slab].bytes ? slab : VIEW_OUTSIDE;
}

static bool add_span(view_player *p, const view_span *span)
{
    view_pool *pool = p->pool;
    if (pool->span_count == p->span_capacity) {
        size_t larger = 2 * p->span_capacity + 16;
        view_span *moved = realloc(pool->spans, larger * sizeof *moved);
        if (moved == NULL)
            return false;
        pool->spans = moved;
        p->span_capacity = larger;
    }
    pool->spans[pool->span_count++] = *span;
    return true;
}

static void add_live(view_player *p, const view_span *span)
{
    view_pool *pool = p->pool;
    uint64_t bytes = pool->requests[span->request].bytes;
    view_role *role = &pool->roles[pool->role_of[span->request]];
    uint64_t *role_live = &p->role_live[pool->role_of[span->request]];
    p->live += bytes;
    *role_live += bytes;
    if (*role_live > role->peak_bytes) {
        role->peak_bytes = *role_live;
        role->peak_ns = span->begin_ns;
    }
    if (p->live > pool->peak_bytes) {
        pool->peak_bytes = p->live;
        pool->peak_ns = span->begin_ns;
        p->peak_event = p->number;
        p->peak_slab_events = p->next_slab_event;
    }
}

/* What has no elements is nowhere, and what is held in a slab without memory waits for it. False: out of memory. */
static bool begin_span(view_player *p, uint32_t request, uint64_t time_ns)
{
    view_pool *pool = p->pool;
    view_hold *h = &p->holds[request];
    uint64_t bytes = pool->requests[request].bytes;
    if (bytes == 0 || (h->slab != VIEW_OUTSIDE && !p->resident[h->slab]))
        return true;
    const view_span span = {.request = request,
                            .slab = h->slab,
                            .offset = h->slab != VIEW_OUTSIDE ? h->address - pool->slabs[h->slab].address
                                                              : take_track(p, bytes),
                            .begin_ns = since_first(pool, time_ns),
                            .stream = h->stream,
                            .step = h->step,
                            .begin_event = p->number,
                            .end_event = SIZE_MAX};
    h->span = (uint32_t)pool->span_count;
    if (!add_span(p, &span))
        return false;
    add_live(p, &span);
    return true;
}

static void end_span(view_player *p, uint32_t request, uint64_t time_ns)
{
    view_pool *pool = p->pool;
    view_hold *h = &p->holds[request];
    if (h->span == VIEW_NO_SPAN)
        return;
    view_span *span = &pool->spans[h->span];
    span->end_ns = since_first(pool, time_ns);
    span->end_event = p->number;
    h->span = VIEW_NO_SPAN;
    p->live -= pool->requests[request].bytes;
    p->role_live[pool->role_of[request]] -= pool->requests[request].bytes;
    if (span->slab == VIEW_OUTSIDE)
        give_track(p, (uint32_t)span->offset);
}

/* ---- playing ------------------------------------------------------------------------------------------------------------------- */

static bool begin_hold(view_player *p, const bp_snapshot_event *event)
{
    view_hold *h = &p->holds[event->id];
    if (h->is_held)
        return true;
    *h = (view_hold){.address = event->address,
                     .stream = event->stream,
                     .step = event->step,
                     .span = VIEW_NO_SPAN,
                     .slab = find_slab(p, event->address),
                     .next = VIEW_NO_REQUEST,
                     .before = VIEW_NO_REQUEST,
                     .is_held = true};
    if (h->slab != VIEW_OUTSIDE) {
        h->next = p->first_held[h->slab];
        if (h->next != VIEW_NO_REQUEST)
            p->holds[h->next].before = event->id;
        p->first_held[h->slab] = event->id;
    }
    return begin_span(p, event->id, event->time_ns);
}

static void end_live_range(view_player *p, const bp_snapshot_event *event)
{
    view_hold *h = &p->holds[event->id];
    if (!h->is_held)
        return;
    end_span(p, event->id, event->time_ns);
    h->is_held = false;
    if (h->slab == VIEW_OUTSIDE)
        return;
    *(h->before != VIEW_NO_REQUEST ? &p->holds[h->before].next : &p->first_held[h->slab]) = h->next;
    if (h->next != VIEW_NO_REQUEST)
        p->holds[h->next].before = h->before;
}

/* What is held in the slab is live while that has memory. */
static bool change_slab(view_player *p, const bp_snapshot_slab_event *event)
{
    bool gained = event->gained != 0;
    p->number++;
    if (p->resident[event->slab] == gained)
        return true;
    p->resident[event->slab] = gained;
    for (uint32_t id = p->first_held[event->slab]; id != VIEW_NO_REQUEST; id = p->holds[id].next) {
        if (!gained)
            end_span(p, id, event->time_ns);
        else if (p->returns++ == view_most_returns(p->pool) || !begin_span(p, id, event->time_ns))
            return false;
    }
    return true;
}

/* Those up to a time. */
static bool play_slabs(view_player *p, uint64_t until_ns)
{
    const view_pool *pool = p->pool;
    while (p->next_slab_event < pool->info->slab_event_count) {
        const bp_snapshot_slab_event *event = &pool->info->slab_events[p->next_slab_event];
        if (event->time_ns > until_ns)
            return true;
        p->next_slab_event++;
        if (!change_slab(p, event))
            return false;
    }
    return true;
}

static bool play_live(view_player *p)
{
    const view_pool *pool = p->pool;
    bool good = true;
    for (size_t i = 0; good && i < pool->info->live_count; i++) {
        bp_snapshot_live live = pool->info->live[i];
        const bp_snapshot_event before = {
            .id = live.id, .address = live.address, .stream = live.stream, .step = live.step};
        good = begin_hold(p, &before);
    }
    return good;
}

bool view_play(view_player *p)
{
    view_pool *pool = p->pool;
    bool good = play_live(p);
    for (size_t i = 0; good && i < pool->info->event_count; i++) {
        bp_snapshot_event event = pool->info->events[i];
        good = play_slabs(p, event.time_ns);
        p->number++;
        if (good && event.kind == BP_EVENT_ACQUIRE)
            good = begin_hold(p, &event);
        else if (good && (event.kind == BP_EVENT_RELEASE || event.kind == BP_EVENT_CANCEL))
            end_live_range(p, &event);
    }
    good = good && play_slabs(p, UINT64_MAX);
    for (size_t i = 0; i < pool->span_count; i++) {
        if (pool->spans[i].end_event == SIZE_MAX)
            pool->spans[i].end_ns = pool->length_ns;
    }
    return good;
}
