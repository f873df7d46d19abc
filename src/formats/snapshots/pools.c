/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the "bucketpool" half of a snapshot: docs/reference/snapshot_files.md. */
#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <string.h>

#include "formats/snapshots/snapshot_file.h"

#define FORMAT "bucketpool.snapshot/1"

/* A role's name, or the number of a runtime's own role. */
static bp_status snapshot_pool_read_role(const bp_snapshot_at *at, const char **name)
{
    if (at->value.kind != BP_PICKLE_INTEGER)
        return bp_snapshot_text_or_none(at, name);
    char text[32];
    uint64_t number = 0;
    BP_TRY(bp_snapshot_number(at, UINT32_MAX, &number));
    snprintf(text, sizeof text, "role %u", (unsigned)number);
    const char *known = number < BP_ROLE_COUNT ? bp_role_name((bp_role)number) : text;
    return bp_snapshot_copy(at->reader, known, strlen(known), name);
}

static bp_status read_member(const bp_snapshot_at *at, const char *name, uint64_t *number)
{
    bp_snapshot_at member = bp_snapshot_member(at, name);
    return bp_snapshot_number(&member, UINT64_MAX, number);
}

static bp_status read_member_text(const bp_snapshot_at *at, const char *name, const char **text)
{
    bp_snapshot_at member = bp_snapshot_member(at, name);
    return bp_snapshot_text_or_none(&member, text);
}

/* ---- the plan and statistics -------------------------------------------------------------------------------------------------- */

static bp_status read_plan(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at plan = bp_snapshot_member(at, "plan"), optimal = bp_snapshot_member(&plan, "optimal");
    bp_snapshot_at list = bp_snapshot_member(&plan, "roles");
    void *entries = NULL;
    if (plan.value.kind <= BP_PICKLE_NONE)
        return BP_OK;
    pool->has_plan = 1;
    BP_TRY(read_member(&plan, "bytes", &pool->plan_bytes));
    BP_TRY(read_member(&plan, "lower_bound_bytes", &pool->lower_bound_bytes));
    BP_TRY(bp_snapshot_truth(&optimal, &pool->optimal));
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->roles, &entries, &pool->role_count));
    pool->roles = entries;
    for (size_t i = 0; i < pool->role_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i), role = bp_snapshot_member(&item, "role");
        BP_TRY(snapshot_pool_read_role(&role, &pool->roles[i].role));
        BP_TRY(read_member(&item, "bytes", &pool->roles[i].bytes));
        BP_TRY(read_member(&item, "lower_bound_bytes", &pool->roles[i].lower_bound_bytes));
    }
    return BP_OK;
}

static bp_status read_statistics(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at statistics = bp_snapshot_member(at, "statistics");
    const bp_pickle *pickle = at->reader->pickle;
    const bp_pickle_value *v = &statistics.value;
    if (v->kind != BP_PICKLE_DICTIONARY)
        return BP_OK;
    void *entries = NULL;
    BP_TRY(bp_snapshot_room(at->reader, v->count / 2, sizeof *pool->statistics, &entries));
    pool->statistics = entries;
    for (size_t i = 0; i + 1 < v->count; i += 2) {
        bp_pickle_value key = bp_pickle_get(pickle, v->items[i]), value = bp_pickle_get(pickle, v->items[i + 1]);
        if (key.kind != BP_PICKLE_STRING || value.kind != BP_PICKLE_INTEGER || value.is_negative)
            continue;
        bp_snapshot_statistic *entry = &pool->statistics[pool->statistic_count];
        BP_TRY(bp_snapshot_copy(at->reader, key.text, key.count, &entry->name));
        entry->value = value.magnitude;
        pool->statistic_count++;
    }
    return BP_OK;
}

/* ---- slabs, requests, streams --------------------------------------------------------------------------------------------------- */

static bp_status read_slabs(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at list = bp_snapshot_member(at, "slabs");
    void *entries = NULL;
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->slabs, &entries, &pool->slab_count));
    pool->slabs = entries;
    for (size_t i = 0; i < pool->slab_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i), resident = bp_snapshot_member(&item, "resident");
        bp_snapshot_slab *slab = &pool->slabs[i];
        BP_TRY(read_member(&item, "address", &slab->address));
        BP_TRY(read_member(&item, "bytes", &slab->bytes));
        if (slab->bytes > UINT64_MAX - slab->address)
            return bp_snapshot_fail(&item, "%llu bytes at 0x%llx exceed 64-bit addresses",
                                    (unsigned long long)slab->bytes, (unsigned long long)slab->address);
        BP_TRY(read_member(&item, "planned_bytes", &slab->planned_bytes));
        BP_TRY(read_member_text(&item, "group", &slab->group));
        BP_TRY(bp_snapshot_truth(&resident, &slab->resident));
        slab->resident_at_start = slab->resident;
    }
    return BP_OK;
}

static bp_status read_requests(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at list = bp_snapshot_member(at, "requests");
    void *entries = NULL;
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->requests, &entries, &pool->request_count));
    pool->requests = entries;
    for (size_t i = 0; i < pool->request_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i), role = bp_snapshot_member(&item, "role");
        bp_snapshot_at ordinal = bp_snapshot_member(&item, "ordinal"),
                       references = bp_snapshot_member(&item, "references");
        bp_snapshot_request *request = &pool->requests[i];
        uint64_t number = 0;
        BP_TRY(read_member_text(&item, "unit", &request->unit));
        BP_TRY(read_member_text(&item, "bucket", &request->bucket));
        BP_TRY(bp_snapshot_number(&ordinal, UINT32_MAX, &number));
        request->ordinal = (uint32_t)number;
        BP_TRY(snapshot_pool_read_role(&role, &request->role));
        BP_TRY(read_member_text(&item, "dtype", &request->dtype));
        BP_TRY(read_member(&item, "bytes", &request->bytes));
        BP_TRY(read_member_text(&item, "placement", &request->placement));
        BP_TRY(bp_snapshot_number_or_0(&references, &request->references));
    }
    return BP_OK;
}

static bp_status read_streams(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at list = bp_snapshot_member(at, "streams");
    void *entries = NULL;
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->streams, &entries, &pool->stream_count));
    pool->streams = entries;
    for (size_t i = 0; i < pool->stream_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i);
        BP_TRY(read_member(&item, "number", &pool->streams[i].number));
        BP_TRY(read_member_text(&item, "name", &pool->streams[i].name));
    }
    return BP_OK;
}

/* ---- events ---------------------------------------------------------------------------------------------------------------------- */

static bp_status read_id(const bp_snapshot_at *at, size_t count, const char *what, uint32_t *id)
{
    uint64_t number = 0;
    BP_TRY(bp_snapshot_number(at, UINT64_MAX, &number));
    if (number >= count || number > UINT32_MAX)
        return bp_snapshot_fail(at, "%s %llu, there are %zu", what, (unsigned long long)number, count);
    *id = (uint32_t)number;
    return BP_OK;
}

static bp_status read_live(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at list = bp_snapshot_member(at, "live");
    void *entries = NULL;
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->live, &entries, &pool->live_count));
    pool->live = entries;
    for (size_t i = 0; i < pool->live_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i), id = bp_snapshot_member(&item, "id");
        bp_snapshot_at stream = bp_snapshot_member(&item, "stream"), step = bp_snapshot_member(&item, "step");
        bp_snapshot_at address = bp_snapshot_member(&item, "address");
        BP_TRY(read_id(&id, pool->request_count, "request", &pool->live[i].id));
        BP_TRY(bp_snapshot_number_or_0(&address, &pool->live[i].address));
        BP_TRY(bp_snapshot_number_or_0(&stream, &pool->live[i].stream));
        BP_TRY(bp_snapshot_number_or_0(&step, &pool->live[i].step));
    }
    return BP_OK;
}

enum { EVENT_KIND, EVENT_ID, EVENT_STREAM, EVENT_STEP, EVENT_TIME, EVENT_ADDRESS, EVENT_NUMBERS };

static bp_status read_events(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at list = bp_snapshot_member(at, "events");
    void *entries = NULL;
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->events, &entries, &pool->event_count));
    pool->events = entries;
    uint64_t earliest = 0;
    for (size_t i = 0; i < pool->event_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i), id = bp_snapshot_item(&item, EVENT_ID);
        bp_snapshot_event *event = &pool->events[i];
        uint64_t numbers[EVENT_NUMBERS];
        if (!bp_pickle_is_list(item.value) || item.value.count < EVENT_NUMBERS)
            return bp_snapshot_fail(&item, "expected a list of kind, id, stream, step, time_ns and address");
        for (size_t k = 0; k < EVENT_NUMBERS; k++) {
            bp_snapshot_at number = bp_snapshot_item(&item, k);
            BP_TRY(bp_snapshot_number(&number, UINT64_MAX, &numbers[k]));
        }
        if (numbers[EVENT_KIND] < BP_EVENT_ACQUIRE || numbers[EVENT_KIND] > BP_EVENT_CANCEL)
            return bp_snapshot_fail(&item, "kind %llu; 1 to 6 are known", (unsigned long long)numbers[EVENT_KIND]);
        BP_TRY(read_id(&id, pool->request_count, "request", &event->id));
        event->kind = (bp_pool_event_kind)numbers[EVENT_KIND];
        event->stream = numbers[EVENT_STREAM];
        event->step = numbers[EVENT_STEP];
        /* Threads read the clock before they get their index in the ring, so times may be out of order. */
        earliest = numbers[EVENT_TIME] < earliest ? earliest : numbers[EVENT_TIME];
        event->time_ns = earliest;
        event->address = numbers[EVENT_ADDRESS];
    }
    return BP_OK;
}

static bp_status read_slab_events(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at list = bp_snapshot_member(at, "slab_events");
    void *entries = NULL;
    BP_TRY(bp_snapshot_list(&list, sizeof *pool->slab_events, &entries, &pool->slab_event_count));
    pool->slab_events = entries;
    uint64_t earliest = 0;
    for (size_t i = 0; i < pool->slab_event_count; i++) {
        bp_snapshot_at item = bp_snapshot_item(&list, i), gained = bp_snapshot_item(&item, 0);
        bp_snapshot_at slab = bp_snapshot_item(&item, 1), time = bp_snapshot_item(&item, 2);
        bp_snapshot_slab_event *event = &pool->slab_events[i];
        BP_TRY(bp_snapshot_truth(&gained, &event->gained));
        BP_TRY(read_id(&slab, pool->slab_count, "slab", &event->slab));
        BP_TRY(bp_snapshot_number(&time, UINT64_MAX, &event->time_ns));
        event->time_ns = event->time_ns < earliest ? earliest : event->time_ns;
        event->bytes = pool->slabs[event->slab].bytes;
        earliest = event->time_ns;
    }
    for (size_t i = pool->slab_event_count; i-- > 0;) /* a slab's residency at the start follows from its first event */
        pool->slabs[pool->slab_events[i].slab].resident_at_start = !pool->slab_events[i].gained;
    return BP_OK;
}

/* ---- file -------------------------------------------------------------------------------------------------------------------------- */

static bp_status read_pool(const bp_snapshot_at *at, bp_snapshot_pool *pool)
{
    bp_snapshot_at lost = bp_snapshot_member(at, "lost_events");
    if (at->value.kind != BP_PICKLE_DICTIONARY)
        return bp_snapshot_fail(at, "expected a dictionary");
    BP_TRY(read_member_text(at, "name", &pool->name));
    BP_TRY(read_member_text(at, "allocator", &pool->allocator));
    BP_TRY(read_member_text(at, "fingerprint", &pool->fingerprint));
    BP_TRY(read_member_text(at, "device", &pool->device));
    BP_TRY(bp_snapshot_number_or_0(&lost, &pool->lost_events));
    BP_TRY(read_plan(at, pool));
    BP_TRY(read_statistics(at, pool));
    BP_TRY(read_slabs(at, pool));
    BP_TRY(read_requests(at, pool));
    BP_TRY(read_streams(at, pool));
    BP_TRY(read_live(at, pool));
    BP_TRY(read_events(at, pool));
    return read_slab_events(at, pool);
}

static bp_status read_heading(const bp_snapshot_at *ours, bp_snapshot_info *info)
{
    bp_snapshot_at rank = bp_snapshot_member(ours, "rank"), ranks = bp_snapshot_member(ours, "ranks");
    bp_snapshot_at step = bp_snapshot_member(ours, "step"), format = bp_snapshot_member(ours, "format");
    bp_snapshot_at offset = bp_snapshot_member(ours, "realtime_offset_ns");
    const char *name = "";
    uint64_t number = 0;
    BP_TRY(bp_snapshot_text(&format, &name));
    if (strcmp(name, FORMAT) != 0)
        return bp_snapshot_fail(&format, "\"%.40s\", expected \"" FORMAT "\"", name);
    BP_TRY(bp_snapshot_number(&rank, UINT32_MAX, &number));
    info->rank = (uint32_t)number;
    BP_TRY(bp_snapshot_number(&ranks, UINT32_MAX, &number));
    info->ranks = (uint32_t)number;
    info->has_step = step.value.kind == BP_PICKLE_INTEGER;
    BP_TRY(bp_snapshot_number_or_0(&step, &info->step));
    BP_TRY(read_member_text(ours, "version", &info->version));
    BP_TRY(read_member_text(ours, "label", &info->label));
    BP_TRY(read_member_text(ours, "coordinates", &info->coordinates));
    BP_TRY(read_member(ours, "first_time_ns", &info->first_time_ns));
    BP_TRY(read_member(ours, "last_time_ns", &info->last_time_ns));
    const bp_pickle_value *v = &offset.value;
    bool good = v->kind == BP_PICKLE_INTEGER && v->magnitude <= INT64_MAX;
    info->realtime_offset_ns = !good ? 0 : v->is_negative ? -(int64_t)v->magnitude : (int64_t)v->magnitude;
    return BP_OK;
}

bp_status bp_snapshot_read_ours(const bp_snapshot_at *ours)
{
    bp_snapshot *snapshot = ours->reader->snapshot;
    bp_snapshot_at pools = bp_snapshot_member(ours, "pools");
    void *entries = NULL;
    snapshot->info.is_ours = 1;
    BP_TRY(read_heading(ours, &snapshot->info));
    BP_TRY(bp_snapshot_list(&pools, sizeof *snapshot->info.pools, &entries, &snapshot->info.pool_count));
    snapshot->info.pools = entries;
    for (size_t i = 0; i < snapshot->info.pool_count; i++) {
        bp_snapshot_at pool = bp_snapshot_item(&pools, i);
        BP_TRY(read_pool(&pool, &snapshot->info.pools[i]));
    }
    return BP_OK;
}
