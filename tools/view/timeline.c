#include "view/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Spans that may come of slabs that get their memory back: a file can say so of any number of buckets any number of times. */
enum { NO_SPAN = UINT32_MAX, NO_REQUEST = UINT32_MAX, MOST_RETURNS = 1 << 22 };

/* A request that is held: live while there is memory below it. */
typedef struct hold {
    uint64_t address, stream, step;
    uint32_t span;         /* NO_SPAN: not live */
    uint32_t slab;         /* VIEW_OUTSIDE: none */
    uint32_t next, before; /* held in the slab; NO_REQUEST: none */
    bool is_held;
} hold;

typedef struct player {
    view_pool *pool;
    hold *holds;          /* by request */
    uint32_t *first_held; /* by slab */
    bool *resident;       /* by slab */
    size_t next_slab_event, number, span_capacity, returns;
    uint32_t *by_address; /* slabs */
    uint64_t live, role_live[VIEW_MOST_ROLES];
    size_t peak_event, peak_slab_events; /* how many were before it */
    uint32_t *free_tracks;               /* a heap, the lowest first */
    size_t free_count;
} player;

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

static uint32_t take_track(player *p, uint64_t bytes)
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

static void give_track(player *p, uint32_t track)
{
    size_t at = p->free_count++;
    for (; at > 0 && p->free_tracks[(at - 1) / 2] > track; at = (at - 1) / 2)
        p->free_tracks[at] = p->free_tracks[(at - 1) / 2];
    p->free_tracks[at] = track;
}

/* ---- slabs and roles ---------------------------------------------------------------------------------------------------------- */

static _Thread_local const bp_snapshot_slab *sorted_slabs;

static int by_address(const void *left, const void *right)
{
    uint64_t a = sorted_slabs[*(const uint32_t *)left].address, b = sorted_slabs[*(const uint32_t *)right].address;
    return (a > b) - (a < b);
}

static void sort_slabs(player *p)
{
    for (size_t i = 0; i < p->pool->about.slabs; i++)
        p->by_address[i] = (uint32_t)i;
    sorted_slabs = p->pool->slabs;
    qsort(p->by_address, p->pool->about.slabs, sizeof *p->by_address, by_address);
}

static uint32_t find_slab(const player *p, uint64_t address)
{
    const bp_snapshot_slab *slabs = p->pool->slabs;
    size_t low = 0, high = p->pool->about.slabs;
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

static uint8_t find_role(view_pool *pool, const char *name)
{
    const char *shown = *name != '\0' ? name : "memory";
    for (size_t i = 0; i < pool->role_count; i++) {
        if (strcmp(pool->roles[i].name, shown) == 0)
            return (uint8_t)i;
    }
    if (pool->role_count == VIEW_MOST_ROLES)
        return VIEW_MOST_ROLES - 1;
    pool->roles[pool->role_count].name = pool->role_count + 1 < VIEW_MOST_ROLES ? shown : "other";
    return (uint8_t)pool->role_count++;
}

/* ---- live bytes ---------------------------------------------------------------------------------------------------------------- */

static bool add_span(player *p, const view_span *span)
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

static void add_live(player *p, const view_span *span)
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
static bool begin_span(player *p, uint32_t request, uint64_t time_ns)
{
    view_pool *pool = p->pool;
    hold *h = &p->holds[request];
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

static void end_span(player *p, uint32_t request, uint64_t time_ns)
{
    view_pool *pool = p->pool;
    hold *h = &p->holds[request];
    if (h->span == NO_SPAN)
        return;
    view_span *span = &pool->spans[h->span];
    span->end_ns = since_first(pool, time_ns);
    span->end_event = p->number;
    h->span = NO_SPAN;
    p->live -= pool->requests[request].bytes;
    p->role_live[pool->role_of[request]] -= pool->requests[request].bytes;
    if (span->slab == VIEW_OUTSIDE)
        give_track(p, (uint32_t)span->offset);
}

/* ---- playing ------------------------------------------------------------------------------------------------------------------- */

static bool begin_hold(player *p, const bp_snapshot_event *event)
{
    hold *h = &p->holds[event->id];
    if (h->is_held)
        return true;
    *h = (hold){.address = event->address,
                .stream = event->stream,
                .step = event->step,
                .span = NO_SPAN,
                .slab = find_slab(p, event->address),
                .next = NO_REQUEST,
                .before = NO_REQUEST,
                .is_held = true};
    if (h->slab != VIEW_OUTSIDE) {
        h->next = p->first_held[h->slab];
        if (h->next != NO_REQUEST)
            p->holds[h->next].before = event->id;
        p->first_held[h->slab] = event->id;
    }
    return begin_span(p, event->id, event->time_ns);
}

static void end_hold(player *p, const bp_snapshot_event *event)
{
    hold *h = &p->holds[event->id];
    if (!h->is_held)
        return;
    end_span(p, event->id, event->time_ns);
    h->is_held = false;
    if (h->slab == VIEW_OUTSIDE)
        return;
    *(h->before != NO_REQUEST ? &p->holds[h->before].next : &p->first_held[h->slab]) = h->next;
    if (h->next != NO_REQUEST)
        p->holds[h->next].before = h->before;
}

/* What is held in the slab is live while that has memory. */
static bool change_slab(player *p, const bp_snapshot_slab_event *event)
{
    bool gained = event->gained != 0;
    p->number++;
    if (p->resident[event->slab] == gained)
        return true;
    p->resident[event->slab] = gained;
    for (uint32_t id = p->first_held[event->slab]; id != NO_REQUEST; id = p->holds[id].next) {
        if (!gained)
            end_span(p, id, event->time_ns);
        else if (p->returns++ == MOST_RETURNS || !begin_span(p, id, event->time_ns))
            return false;
    }
    return true;
}

/* Those up to a time. */
static bool play_slabs(player *p, uint64_t until_ns)
{
    const view_pool *pool = p->pool;
    while (p->next_slab_event < pool->about.slab_events) {
        bp_snapshot_slab_event event = {.size = sizeof event};
        bool known = bp_snapshot_slab_event_get(pool->snapshot, pool->index, p->next_slab_event, &event) == BP_OK;
        if (known && event.time_ns > until_ns)
            return true;
        p->next_slab_event++;
        if (known && !change_slab(p, &event))
            return false;
    }
    return true;
}

static bool play_live(player *p)
{
    const view_pool *pool = p->pool;
    bool good = true;
    for (size_t i = 0; good && i < pool->about.live; i++) {
        bp_snapshot_live live = {.size = sizeof live};
        if (bp_snapshot_live_get(pool->snapshot, pool->index, i, &live) != BP_OK)
            continue;
        const bp_snapshot_event before = {
            .id = live.id, .address = live.address, .stream = live.stream, .step = live.step};
        good = begin_hold(p, &before);
    }
    return good;
}

static bool play(player *p)
{
    view_pool *pool = p->pool;
    bool good = play_live(p);
    for (size_t i = 0; good && i < pool->about.events; i++) {
        bp_snapshot_event event = {.size = sizeof event};
        if (bp_snapshot_event_get(pool->snapshot, pool->index, i, &event) != BP_OK)
            continue;
        good = play_slabs(p, event.time_ns);
        p->number++;
        if (good && event.kind == BP_EVENT_ACQUIRE)
            good = begin_hold(p, &event);
        else if (good && (event.kind == BP_EVENT_RELEASE || event.kind == BP_EVENT_GIVE_UP))
            end_hold(p, &event);
    }
    good = good && play_slabs(p, UINT64_MAX);
    for (size_t i = 0; i < pool->span_count; i++) {
        if (pool->spans[i].end_event == SIZE_MAX)
            pool->spans[i].end_ns = pool->length_ns;
    }
    return good;
}

/* ---- making it ------------------------------------------------------------------------------------------------------------------- */

static bool allocate(player *p)
{
    view_pool *pool = p->pool;
    size_t spans = pool->about.live + pool->about.events + 1;
    pool->requests = calloc(pool->about.requests + 1, sizeof *pool->requests);
    pool->role_of = calloc(pool->about.requests + 1, sizeof *pool->role_of);
    pool->slabs = calloc(pool->about.slabs + 1, sizeof *pool->slabs);
    pool->tracks = calloc(spans, sizeof *pool->tracks);
    p->holds = calloc(pool->about.requests + 1, sizeof *p->holds);
    p->first_held = calloc(pool->about.slabs + 1, sizeof *p->first_held);
    p->resident = calloc(pool->about.slabs + 1, sizeof *p->resident);
    p->by_address = calloc(pool->about.slabs + 1, sizeof *p->by_address);
    p->free_tracks = calloc(spans, sizeof *p->free_tracks);
    return pool->requests != NULL && pool->role_of != NULL && pool->slabs != NULL && pool->tracks != NULL &&
           p->holds != NULL && p->first_held != NULL && p->resident != NULL && p->by_address != NULL &&
           p->free_tracks != NULL;
}

static bp_status fill(player *p)
{
    view_pool *pool = p->pool;
    for (size_t i = 0; i < pool->about.requests; i++) {
        pool->requests[i].size = sizeof *pool->requests;
        bp_status status = bp_snapshot_request_get(pool->snapshot, pool->index, i, &pool->requests[i]);
        if (status != BP_OK)
            return status;
        pool->role_of[i] = find_role(pool, pool->requests[i].role);
        p->holds[i].span = NO_SPAN;
    }
    for (size_t i = 0; i < pool->about.slabs; i++) {
        pool->slabs[i].size = sizeof *pool->slabs;
        bp_status status = bp_snapshot_slab_get(pool->snapshot, pool->index, i, &pool->slabs[i]);
        if (status != BP_OK)
            return status;
        pool->slab_bytes += pool->slabs[i].bytes;
        p->resident[i] = pool->slabs[i].resident_at_start != 0;
        p->first_held[i] = NO_REQUEST;
    }
    for (size_t i = 0; i < pool->about.roles; i++) {
        bp_snapshot_role role = {.size = sizeof role};
        if (bp_snapshot_role_get(pool->snapshot, pool->index, i, &role) != BP_OK)
            continue;
        view_role *found = &pool->roles[find_role(pool, role.role)];
        found->in_plan = true;
        found->plan_bytes = role.bytes;
        found->lower_bound_bytes = role.lower_bound_bytes;
    }
    return BP_OK;
}

static bp_status fail_returns(const view_pool *pool)
{
    char text[200];
    snprintf(text, sizeof text,
             "pool %.60s: its slabs come back too often: with them buckets are live again more than %d times",
             pool->about.name, MOST_RETURNS);
    return bp_error_record(BP_ERR_FORMAT, text);
}

static bp_status make(player *p)
{
    if (!allocate(p))
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
    bp_status status = fill(p);
    if (status != BP_OK)
        return status;
    sort_slabs(p);
    if (!play(p))
        return p->returns > MOST_RETURNS
                   ? fail_returns(p->pool)
                   : bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
    if (!view_find_peak(p->pool, p->peak_event, p->peak_slab_events))
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the peak is looked at");
    return BP_OK;
}

bp_status view_pool_init(const bp_snapshot *snapshot, size_t index, view_pool *pool)
{
    bp_snapshot_about about = {.size = sizeof about};
    *pool = (view_pool){.snapshot = snapshot, .index = index, .about.size = sizeof pool->about};
    bp_status status = bp_snapshot_about_get(snapshot, &about);
    if (status == BP_OK)
        status = bp_snapshot_pool_get(snapshot, index, &pool->about);
    if (status != BP_OK)
        return status;
    pool->first_ns = about.first_time_ns;
    pool->length_ns = about.last_time_ns - about.first_time_ns;
    player p = {.pool = pool};
    status = make(&p);
    free(p.holds);
    free(p.first_held);
    free(p.resident);
    free(p.by_address);
    free(p.free_tracks);
    return status;
}

void view_pool_finish(view_pool *pool)
{
    free(pool->requests);
    free(pool->role_of);
    free(pool->slabs);
    free(pool->spans);
    free(pool->tracks);
    free(pool->at_peak);
    *pool = (view_pool){0};
}
