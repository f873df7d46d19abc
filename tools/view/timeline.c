#include "view/timeline_play.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- slabs and roles ---------------------------------------------------------------------------------------------------------- */

static _Thread_local const bp_snapshot_slab *sorted_slabs;

static int by_address(const void *left, const void *right)
{
    uint64_t a = sorted_slabs[*(const uint32_t *)left].address, b = sorted_slabs[*(const uint32_t *)right].address;
    return (a > b) - (a < b);
}

static void sort_slabs(view_player *p)
{
    for (size_t i = 0; i < p->pool->about.slabs; i++)
        p->by_address[i] = (uint32_t)i;
    sorted_slabs = p->pool->slabs;
    qsort(p->by_address, p->pool->about.slabs, sizeof *p->by_address, by_address);
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

/* ---- making it ------------------------------------------------------------------------------------------------------------------- */

static bool allocate(view_player *p)
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

static bp_status fill(view_player *p)
{
    view_pool *pool = p->pool;
    for (size_t i = 0; i < pool->about.requests; i++) {
        pool->requests[i].size = sizeof *pool->requests;
        bp_status status = bp_snapshot_request_get(pool->snapshot, pool->index, i, &pool->requests[i]);
        if (status != BP_OK)
            return status;
        pool->role_of[i] = find_role(pool, pool->requests[i].role);
        p->holds[i].span = VIEW_NO_SPAN;
    }
    for (size_t i = 0; i < pool->about.slabs; i++) {
        pool->slabs[i].size = sizeof *pool->slabs;
        bp_status status = bp_snapshot_slab_get(pool->snapshot, pool->index, i, &pool->slabs[i]);
        if (status != BP_OK)
            return status;
        pool->slab_bytes += pool->slabs[i].bytes;
        p->resident[i] = pool->slabs[i].resident_at_start != 0;
        p->first_held[i] = VIEW_NO_REQUEST;
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
             "pool %.60s: its slabs come back too often: with them buckets are live again more than %zu times; record "
             "fewer steps",
             pool->about.name, view_most_returns(pool));
    return bp_error_record(BP_ERR_FORMAT, text);
}

static bp_status make(view_player *p)
{
    if (!allocate(p))
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
    bp_status status = fill(p);
    if (status != BP_OK)
        return status;
    sort_slabs(p);
    if (!view_play(p))
        return p->returns > view_most_returns(p->pool)
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
    view_player p = {.pool = pool};
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

/* ---- changes in the order of time ---------------------------------------------------------------------------------------------- */

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
