#include "view/timeline.h"

#include <stdlib.h>
#include <string.h>

enum { NO_SPAN = UINT32_MAX };

typedef struct player {
    view_pool *pool;
    uint32_t *open;       /* by request: its span */
    uint32_t *by_address; /* slabs */
    uint64_t live, role_live[VIEW_MOST_ROLES];
    size_t peak_event;
    uint32_t *free_tracks; /* a heap, the lowest first */
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

/* ---- playing ------------------------------------------------------------------------------------------------------------------- */

static void begin_span(player *p, uint32_t request, uint64_t address, const bp_snapshot_event *event, size_t number)
{
    view_pool *pool = p->pool;
    uint64_t bytes = pool->requests[request].bytes;
    if (p->open[request] != NO_SPAN || bytes == 0) /* what has no elements is nowhere */
        return;
    view_span *span = &pool->spans[pool->span_count];
    *span = (view_span){.request = request,
                        .begin_ns = since_first(pool, event->time_ns),
                        .stream = event->stream,
                        .step = event->step,
                        .begin_event = number,
                        .end_event = SIZE_MAX};
    span->slab = find_slab(p, address);
    span->offset = span->slab != VIEW_OUTSIDE ? address - pool->slabs[span->slab].address : take_track(p, bytes);
    p->open[request] = (uint32_t)pool->span_count++;
    view_role *role = &pool->roles[pool->role_of[request]];
    uint64_t *role_live = &p->role_live[pool->role_of[request]];
    p->live += bytes;
    *role_live += bytes;
    if (*role_live > role->peak_bytes) {
        role->peak_bytes = *role_live;
        role->peak_ns = span->begin_ns;
    }
    if (p->live > pool->peak_bytes) {
        pool->peak_bytes = p->live;
        pool->peak_ns = span->begin_ns;
        p->peak_event = number;
    }
}

static void end_span(player *p, uint32_t request, uint64_t time_ns, size_t number)
{
    view_pool *pool = p->pool;
    if (p->open[request] == NO_SPAN)
        return;
    view_span *span = &pool->spans[p->open[request]];
    span->end_ns = since_first(pool, time_ns);
    span->end_event = number;
    p->open[request] = NO_SPAN;
    p->live -= pool->requests[request].bytes;
    p->role_live[pool->role_of[request]] -= pool->requests[request].bytes;
    if (span->slab == VIEW_OUTSIDE)
        give_track(p, (uint32_t)span->offset);
}

static void play(player *p)
{
    view_pool *pool = p->pool;
    for (size_t i = 0; i < pool->about.live; i++) {
        bp_snapshot_live live = {.size = sizeof live};
        if (bp_snapshot_live_get(pool->snapshot, pool->index, i, &live) != BP_OK)
            continue;
        const bp_snapshot_event before = {.time_ns = 0, .stream = live.stream, .step = live.step};
        begin_span(p, live.id, live.address, &before, 0);
    }
    for (size_t i = 0; i < pool->about.events; i++) {
        bp_snapshot_event event = {.size = sizeof event};
        if (bp_snapshot_event_get(pool->snapshot, pool->index, i, &event) != BP_OK)
            continue;
        if (event.kind == BP_EVENT_ACQUIRE)
            begin_span(p, event.id, event.address, &event, i + 1);
        else if (event.kind == BP_EVENT_RELEASE || event.kind == BP_EVENT_GIVE_UP)
            end_span(p, event.id, event.time_ns, i + 1);
    }
    for (size_t i = 0; i < pool->span_count; i++) {
        if (pool->spans[i].end_event == SIZE_MAX)
            pool->spans[i].end_ns = pool->length_ns;
    }
}

/* ---- making it ------------------------------------------------------------------------------------------------------------------- */

static bool allocate(player *p)
{
    view_pool *pool = p->pool;
    size_t spans = pool->about.live + pool->about.events + 1;
    pool->requests = calloc(pool->about.requests + 1, sizeof *pool->requests);
    pool->role_of = calloc(pool->about.requests + 1, sizeof *pool->role_of);
    pool->slabs = calloc(pool->about.slabs + 1, sizeof *pool->slabs);
    pool->spans = calloc(spans, sizeof *pool->spans);
    pool->tracks = calloc(spans, sizeof *pool->tracks);
    p->open = malloc((pool->about.requests + 1) * sizeof *p->open);
    p->by_address = calloc(pool->about.slabs + 1, sizeof *p->by_address);
    p->free_tracks = calloc(spans, sizeof *p->free_tracks);
    return pool->requests != NULL && pool->role_of != NULL && pool->slabs != NULL && pool->spans != NULL &&
           pool->tracks != NULL && p->open != NULL && p->by_address != NULL && p->free_tracks != NULL;
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
        p->open[i] = NO_SPAN;
    }
    for (size_t i = 0; i < pool->about.slabs; i++) {
        pool->slabs[i].size = sizeof *pool->slabs;
        bp_status status = bp_snapshot_slab_get(pool->snapshot, pool->index, i, &pool->slabs[i]);
        if (status != BP_OK)
            return status;
        pool->slab_bytes += pool->slabs[i].bytes;
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

static bp_status make(player *p)
{
    if (!allocate(p))
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
    bp_status status = fill(p);
    if (status != BP_OK)
        return status;
    sort_slabs(p);
    play(p);
    if (!view_find_peak(p->pool, p->peak_event))
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
    free(p.open);
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
