/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a snapshot's events: live ranges, live bytes, mapped ranges, the peak. */
#include "view/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "view/ranges.h"

#define VIEW_NO_SPAN UINT32_MAX
#define VIEW_NO_REQUEST UINT32_MAX

/* Limit of spans from slabs that are mapped again: a small hostile file can cause many for many buckets. */
static inline size_t view_max_returns(const view_pool *pool)
{
    return ((size_t)1 << 16) + 4 * (pool->info->live_count + pool->info->event_count + pool->info->slab_event_count);
}

/* A held request: live while its slab is mapped. */
typedef struct view_hold {
    uint64_t address, stream, step;
    uint32_t span;         /* VIEW_NO_SPAN: not live */
    uint32_t slab;         /* VIEW_OUTSIDE: none */
    uint32_t next, before; /* held in the slab; VIEW_NO_REQUEST: none */
    bool is_held;
} view_hold;

typedef struct view_player {
    view_pool *pool;
    view_hold *holds;     /* by request */
    uint32_t *first_held; /* by slab */
    view_ranges *gone;    /* by slab: unmapped ranges */
    uint64_t *mapped;     /* by slab: bytes */
    uint64_t mapped_bytes, work;
    uint32_t slab; /* of the slab event that is played, ... */
    uint64_t now_ns, changed_bytes;
    size_t next_slab_event, number, span_capacity, returns;
    uint32_t *by_address; /* slabs */
    uint64_t live, role_live[VIEW_MAX_ROLES];
    size_t peak_event, peak_slab_events; /* number of events before the peak */
    uint32_t *free_tracks;               /* a min-heap */
    size_t free_count;
} view_player;

static uint64_t since_first(const view_pool *pool, uint64_t time_ns)
{
    return time_ns > pool->first_ns ? time_ns - pool->first_ns : 0;
}

/* ---- tracks ------------------------------------------------------------------------------------------------------ */

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

/* ---- live bytes -------------------------------------------------------------------------------------------------- */

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

/* Begins the span of a held request. Empty requests have none; a request in an unmapped slab gets it when the slab
 * is mapped. false: out of memory. */
static bool begin_span(view_player *p, uint32_t request, uint64_t time_ns)
{
    view_pool *pool = p->pool;
    view_hold *h = &p->holds[request];
    uint64_t bytes = pool->requests[request].bytes;
    if (bytes == 0 || (h->slab != VIEW_OUTSIDE && p->mapped[h->slab] == 0))
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
    if (span->slab == VIEW_OUTSIDE) {
        uint32_t track = (uint32_t)span->offset;
        size_t at = p->free_count++;
        for (; at > 0 && p->free_tracks[(at - 1) / 2] > track; at = (at - 1) / 2)
            p->free_tracks[at] = p->free_tracks[(at - 1) / 2];
        p->free_tracks[at] = track;
    }
}

static bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
}

static bp_status fail_returns(const view_pool *pool)
{
    char text[200];
    snprintf(text, sizeof text,
             "pool %.60s: its slabs come back too often: with them buckets are live again more than %zu times; record "
             "fewer steps",
             pool->info->name, view_max_returns(pool));
    return bp_error_record(BP_ERR_FORMAT, text);
}

/* ---- playing ----------------------------------------------------------------------------------------------------- */

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

/* Part of a slab is mapped, and was not before. */
static bp_status note_gain(void *user, const view_range *range)
{
    view_player *p = user;
    view_pool *pool = p->pool;
    p->changed_bytes += range->end - range->begin;
    if (p->now_ns == range->since_ns)
        return BP_OK;
    if (pool->gone_count == pool->gone_capacity) {
        size_t larger = 2 * pool->gone_capacity + 16;
        view_gone *moved = realloc(pool->gone, larger * sizeof *moved);
        if (moved == NULL)
            return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
        pool->gone = moved;
        pool->gone_capacity = larger;
    }
    pool->gone[pool->gone_count++] =
        (view_gone){p->slab, range->begin, range->end - range->begin, range->since_ns, p->now_ns};
    return BP_OK;
}

static bp_status note_loss(void *user, const view_range *range)
{
    view_player *p = user;
    p->changed_bytes += range->end - range->begin;
    return BP_OK;
}

/* Changes the mapped ranges of a slab. */
static bp_status change_mapping(view_player *p, const bp_snapshot_slab_event *event, uint64_t now_ns)
{
    const view_range range = {event->offset, event->offset + event->bytes, now_ns};
    view_ranges *gone = &p->gone[event->slab];
    p->slab = event->slab;
    p->now_ns = now_ns;
    p->changed_bytes = 0;
    bp_status status = event->gained ? view_ranges_take(gone, range, &p->work, note_gain, p)
                                     : view_ranges_add(gone, range, &p->work, note_loss, p);
    p->mapped[event->slab] += event->gained ? p->changed_bytes : 0 - p->changed_bytes;
    p->mapped_bytes += event->gained ? p->changed_bytes : 0 - p->changed_bytes;
    if (p->mapped_bytes > p->pool->slab_bytes)
        p->pool->slab_bytes = p->mapped_bytes;
    return status;
}

/* Requests held in a slab are live while some of it is mapped. */
static bp_status change_slab(view_player *p, const bp_snapshot_slab_event *event)
{
    bool had = p->mapped[event->slab] > 0;
    p->number++;
    bp_status status = change_mapping(p, event, since_first(p->pool, event->time_ns));
    bool has = p->mapped[event->slab] > 0;
    if (status != BP_OK || had == has)
        return status;
    for (uint32_t id = p->first_held[event->slab]; id != VIEW_NO_REQUEST; id = p->holds[id].next) {
        if (!has)
            end_span(p, id, event->time_ns);
        else if (p->returns++ == view_max_returns(p->pool))
            return fail_returns(p->pool);
        else if (!begin_span(p, id, event->time_ns))
            return fail_memory();
    }
    return BP_OK;
}

/* Plays slab events up to a time. */
static bp_status play_slabs(view_player *p, uint64_t until_ns)
{
    const view_pool *pool = p->pool;
    bp_status status = BP_OK;
    while (status == BP_OK && p->next_slab_event < pool->info->slab_event_count) {
        const bp_snapshot_slab_event *event = &pool->info->slab_events[p->next_slab_event];
        if (event->time_ns > until_ns)
            break;
        p->next_slab_event++;
        status = change_slab(p, event);
    }
    return status;
}

/* Maps the ranges of before the first event. */
static bp_status start_slabs(view_player *p)
{
    const bp_snapshot_pool *info = p->pool->info;
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < info->slab_count; i++) {
        const view_range whole = {0, p->pool->slabs[i].bytes, 0};
        if (p->pool->slabs[i].resident_at_start) {
            p->mapped[i] = whole.end;
            p->mapped_bytes += whole.end;
        } else {
            status = view_ranges_add(&p->gone[i], whole, &p->work, NULL, NULL);
        }
    }
    p->pool->slab_bytes = p->mapped_bytes;
    for (; status == BP_OK && p->next_slab_event < info->mapped_at_start; p->next_slab_event++)
        status = change_mapping(p, &info->slab_events[p->next_slab_event], 0);
    return status;
}

/* Ends the ranges that are not mapped at the end. */
static bp_status end_slabs(view_player *p)
{
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < p->pool->info->slab_count; i++) {
        bp_snapshot_slab_event all = {.gained = 1, .slab = i, .bytes = p->pool->slabs[i].bytes};
        uint64_t max = p->pool->slab_bytes;
        status = change_mapping(p, &all, p->pool->length_ns + 1);
        p->pool->slab_bytes = max;
    }
    return status;
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

/* Fills the spans and peaks. */
static bp_status view_play(view_player *p)
{
    view_pool *pool = p->pool;
    bp_status status = start_slabs(p);
    if (status == BP_OK && !play_live(p))
        status = fail_memory();
    for (size_t i = 0; status == BP_OK && i < pool->info->event_count; i++) {
        bp_snapshot_event event = pool->info->events[i];
        status = play_slabs(p, event.time_ns);
        p->number++;
        if (status == BP_OK && event.kind == BP_EVENT_ACQUIRE)
            status = begin_hold(p, &event) ? BP_OK : fail_memory();
        else if (status == BP_OK && (event.kind == BP_EVENT_RELEASE || event.kind == BP_EVENT_CANCEL))
            end_live_range(p, &event);
    }
    if (status == BP_OK)
        status = play_slabs(p, UINT64_MAX);
    for (size_t i = 0; i < pool->span_count; i++) {
        if (pool->spans[i].end_event == SIZE_MAX)
            pool->spans[i].end_ns = pool->length_ns;
    }
    return status == BP_OK ? end_slabs(p) : status;
}

/* ---- slabs and roles --------------------------------------------------------------------------------------------- */

static _Thread_local const bp_snapshot_slab *sorted_slabs;

static int by_address(const void *left, const void *right)
{
    uint64_t a = sorted_slabs[*(const uint32_t *)left].address, b = sorted_slabs[*(const uint32_t *)right].address;
    return (a > b) - (a < b);
}

static uint8_t find_role(view_pool *pool, const char *name)
{
    const char *shown = *name != '\0' ? name : "memory";
    for (size_t i = 0; i < pool->role_count; i++) {
        if (strcmp(pool->roles[i].name, shown) == 0)
            return (uint8_t)i;
    }
    if (pool->role_count == VIEW_MAX_ROLES)
        return VIEW_MAX_ROLES - 1;
    pool->roles[pool->role_count].name = pool->role_count + 1 < VIEW_MAX_ROLES ? shown : "other";
    return (uint8_t)pool->role_count++;
}

/* ---- making it --------------------------------------------------------------------------------------------------- */

static bool allocate(view_player *p)
{
    view_pool *pool = p->pool;
    size_t spans = pool->info->live_count + pool->info->event_count + 1;
    pool->role_of = calloc(pool->info->request_count + 1, sizeof *pool->role_of);
    pool->tracks = calloc(spans, sizeof *pool->tracks);
    p->holds = calloc(pool->info->request_count + 1, sizeof *p->holds);
    p->first_held = calloc(pool->info->slab_count + 1, sizeof *p->first_held);
    p->gone = calloc(pool->info->slab_count + 1, sizeof *p->gone);
    p->mapped = calloc(pool->info->slab_count + 1, sizeof *p->mapped);
    p->by_address = calloc(pool->info->slab_count + 1, sizeof *p->by_address);
    p->free_tracks = calloc(spans, sizeof *p->free_tracks);
    return pool->role_of != NULL && pool->tracks != NULL && p->holds != NULL && p->first_held != NULL &&
           p->gone != NULL && p->mapped != NULL && p->by_address != NULL && p->free_tracks != NULL;
}

static bp_status make(view_player *p)
{
    if (!allocate(p))
        return fail_memory();

    view_pool *pool = p->pool;
    for (size_t i = 0; i < pool->info->role_count && !pool->info->has_plan; i++)
        find_role(pool, pool->info->roles[i].role); /* a recording's, in their order */
    for (size_t i = 0; i < pool->info->request_count; i++) {
        pool->role_of[i] = find_role(pool, pool->requests[i].role);
        p->holds[i].span = VIEW_NO_SPAN;
    }
    for (size_t i = 0; i < pool->info->slab_count; i++)
        p->first_held[i] = VIEW_NO_REQUEST;
    for (size_t i = 0; i < pool->info->role_count && pool->info->has_plan; i++) {
        bp_snapshot_role role = pool->info->roles[i];
        view_role *found = &pool->roles[find_role(pool, role.role)];
        found->in_plan = true;
        found->plan_bytes = role.bytes;
        found->lower_bound_bytes = role.lower_bound_bytes;
    }

    for (size_t i = 0; i < p->pool->info->slab_count; i++)
        p->by_address[i] = (uint32_t)i;
    sorted_slabs = p->pool->slabs;
    qsort(p->by_address, p->pool->info->slab_count, sizeof *p->by_address, by_address);

    bp_status status = view_play(p);
    return status == BP_OK ? view_peak_init(p->pool, p->peak_event, p->peak_slab_events) : status;
}

bp_status view_pool_init(const bp_snapshot_info *snapshot, size_t index, view_pool *pool)
{
    const bp_snapshot_pool *info = &snapshot->pools[index];
    *pool = (view_pool){.info = info,
                        .first_ns = snapshot->first_time_ns,
                        .length_ns = snapshot->last_time_ns - snapshot->first_time_ns,
                        .requests = info->requests,
                        .slabs = info->slabs};
    view_player p = {.pool = pool};
    bp_status status = make(&p);
    free(p.holds);
    free(p.first_held);
    for (size_t i = 0; p.gone != NULL && i < info->slab_count; i++)
        view_ranges_finish(&p.gone[i]);
    free(p.gone);
    free(p.mapped);
    free(p.by_address);
    free(p.free_tracks);
    return status;
}

void view_pool_finish(view_pool *pool)
{
    free(pool->role_of);
    free(pool->spans);
    free(pool->tracks);
    free(pool->at_peak);
    free(pool->gone);
    *pool = (view_pool){0};
}

/* ---- changes in the order of time -------------------------------------------------------------------------------- */

static _Thread_local const view_span *sorted_spans;

static int by_end(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    if (sorted_spans[a].end_ns != sorted_spans[b].end_ns)
        return sorted_spans[a].end_ns < sorted_spans[b].end_ns ? -1 : 1;
    return (a > b) - (a < b);
}

bool view_changes_init(const view_pool *pool, view_changes *changes)
{
    *changes = (view_changes){.pool = pool, .ends = calloc(pool->span_count + 1, sizeof *changes->ends)};
    if (changes->ends == NULL)
        return false;
    for (size_t i = 0; i < pool->span_count; i++) {
        if (pool->spans[i].end_event != SIZE_MAX)
            changes->ends[changes->end_count++] = (uint32_t)i;
    }
    sorted_spans = pool->spans;
    qsort(changes->ends, changes->end_count, sizeof *changes->ends, by_end);
    return true;
}

bool view_changes_next(view_changes *c, const view_span **span, bool *begins)
{
    const view_span *spans = c->pool->spans;
    bool has_begin = c->next_begin < c->pool->span_count, has_end = c->next_end < c->end_count;
    if (!has_begin && !has_end)
        return false;
    uint32_t end = has_end ? c->ends[c->next_end] : 0;
    *begins = has_begin && (!has_end || end >= c->next_begin || spans[end].end_ns > spans[c->next_begin].begin_ns);
    *span = *begins ? &spans[c->next_begin++] : &spans[c->ends[c->next_end++]];
    return true;
}

void view_changes_finish(view_changes *changes)
{
    free(changes->ends);
    *changes = (view_changes){0};
}
