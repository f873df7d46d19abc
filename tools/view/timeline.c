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
    for (size_t i = 0; i < p->pool->info->slab_count; i++)
        p->by_address[i] = (uint32_t)i;
    sorted_slabs = p->pool->slabs;
    qsort(p->by_address, p->pool->info->slab_count, sizeof *p->by_address, by_address);
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
    size_t spans = pool->info->live_count + pool->info->event_count + 1;
    pool->role_of = calloc(pool->info->request_count + 1, sizeof *pool->role_of);
    pool->tracks = calloc(spans, sizeof *pool->tracks);
    p->holds = calloc(pool->info->request_count + 1, sizeof *p->holds);
    p->first_held = calloc(pool->info->slab_count + 1, sizeof *p->first_held);
    p->resident = calloc(pool->info->slab_count + 1, sizeof *p->resident);
    p->by_address = calloc(pool->info->slab_count + 1, sizeof *p->by_address);
    p->free_tracks = calloc(spans, sizeof *p->free_tracks);
    return pool->role_of != NULL && pool->tracks != NULL && p->holds != NULL && p->first_held != NULL &&
           p->resident != NULL && p->by_address != NULL && p->free_tracks != NULL;
}

static void fill(view_player *p)
{
    view_pool *pool = p->pool;
    for (size_t i = 0; i < pool->info->request_count; i++) {
        pool->role_of[i] = find_role(pool, pool->requests[i].role);
        p->holds[i].span = VIEW_NO_SPAN;
    }
    for (size_t i = 0; i < pool->info->slab_count; i++) {
        pool->slab_bytes += pool->slabs[i].bytes;
        p->resident[i] = pool->slabs[i].resident_at_start != 0;
        p->first_held[i] = VIEW_NO_REQUEST;
    }
    for (size_t i = 0; i < pool->info->role_count; i++) {
        bp_snapshot_role role = pool->info->roles[i];
        view_role *found = &pool->roles[find_role(pool, role.role)];
        found->in_plan = true;
        found->plan_bytes = role.bytes;
        found->lower_bound_bytes = role.lower_bound_bytes;
    }
}

static bp_status fail_returns(const view_pool *pool)
{
    char text[200];
    snprintf(text, sizeof text,
             "pool %.60s: its slabs come back too often: with them buckets are live again more than %zu times; record "
             "fewer steps",
             pool->info->name, view_most_returns(pool));
    return bp_error_record(BP_ERR_FORMAT, text);
}

static bp_status make(view_player *p)
{
    if (!allocate(p))
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
    fill(p);
    sort_slabs(p);
    if (!view_play(p))
        return p->returns > view_most_returns(p->pool)
                   ? fail_returns(p->pool)
                   : bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the events are played");
    if (!view_find_peak(p->pool, p->peak_event, p->peak_slab_events))
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the peak is looked at");
    return BP_OK;
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
    free(p.resident);
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
