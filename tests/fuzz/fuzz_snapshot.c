/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_snapshot_parse: ids, slabs and times of an accepted snapshot are consistent. */
#include <stdlib.h>
#include <string.h>

#include "formats/snapshots/snapshot.h"
#include "target.h"

static void need(int holds)
{
    if (!holds)
        abort();
}

static void need_text(const char *text)
{
    need(text != NULL);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
        need(*c >= 0x20 && *c != 0x7f);
}

static void walk_requests(const bp_snapshot_pool *pool)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < pool->request_count; i++) {
        bp_snapshot_request r = pool->requests[i];
        need_text(r.unit);
        need_text(r.bucket);
        need_text(r.role);
        need_text(r.dtype);
        need_text(r.placement);
        need(!__builtin_add_overflow(sum, r.bytes, &sum));
    }
    for (size_t i = 0; i < pool->live_count; i++) {
        bp_snapshot_live live = pool->live[i];
        need(live.id < pool->request_count);
    }
    for (size_t i = 0; i < pool->stream_count; i++) {
        bp_snapshot_stream stream = pool->streams[i];
        need_text(stream.name);
    }
}

static void walk_slabs(const bp_snapshot_pool *pool)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < pool->slab_count; i++) {
        bp_snapshot_slab slab = pool->slabs[i];
        need(slab.bytes <= UINT64_MAX - slab.address);
        need_text(slab.group);
        need(!__builtin_add_overflow(sum, slab.bytes, &sum));
    }
    for (size_t i = 0; i < pool->role_count; i++) {
        bp_snapshot_role role = pool->roles[i];
        need_text(role.role);
    }
    for (size_t i = 0; i < pool->statistic_count; i++)
        need_text(pool->statistics[i].name);
}

static void walk_events(const bp_snapshot_pool *pool, const bp_snapshot_info *whole)
{
    uint64_t earliest = whole->first_time_ns;
    for (size_t i = 0; i < pool->event_count; i++) {
        bp_snapshot_event event = pool->events[i];
        need(event.id < pool->request_count);
        need(event.kind >= BP_EVENT_ACQUIRE && event.kind <= BP_EVENT_CANCEL);
        need(event.time_ns >= earliest && event.time_ns <= whole->last_time_ns);
        earliest = event.time_ns;
    }
    earliest = whole->first_time_ns;
    for (size_t i = 0; i < pool->slab_event_count; i++) {
        bp_snapshot_slab_event event = pool->slab_events[i];
        need(event.slab < pool->slab_count);
        need(event.time_ns >= earliest && event.time_ns <= whole->last_time_ns);
        earliest = event.time_ns;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_snapshot *snapshot = NULL;
    bp_status status = bp_snapshot_parse(data, size, "input", &snapshot);
    need((status == BP_OK) == (snapshot != NULL));
    if (status != BP_OK) {
        need(status == BP_ERR_FORMAT && *bp_error_detail() != '\0' && strchr(bp_error_detail(), '\n') == NULL);
        return 0;
    }
    const bp_snapshot_info *whole = bp_snapshot_get_info(snapshot);
    need(whole->first_time_ns <= whole->last_time_ns);
    need_text(whole->version);
    need_text(whole->label);
    need_text(whole->coordinates);
    for (size_t i = 0; i < whole->pool_count; i++) {
        const bp_snapshot_pool *pool = &whole->pools[i];
        need_text(pool->name);
        walk_requests(pool);
        walk_slabs(pool);
        walk_events(pool, whole);
    }
    bp_snapshot_destroy(&snapshot);
    return 0;
}
