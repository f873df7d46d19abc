/* Fuzzes bp_snapshot_parse; what is answered of a snapshot is consistent: ids, slabs, orders of times. */
#include <bucketpool/snapshot.h>

#include <stdlib.h>
#include <string.h>

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

static void walk_requests(const bp_snapshot *snapshot, size_t pool, const bp_snapshot_pool *about)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < about->requests; i++) {
        bp_snapshot_request r = {.size = sizeof r};
        need(bp_snapshot_request_get(snapshot, pool, i, &r) == BP_OK);
        need_text(r.unit);
        need_text(r.bucket);
        need_text(r.role);
        need_text(r.dtype);
        need_text(r.placement);
        need(!__builtin_add_overflow(sum, r.bytes, &sum));
    }
    for (size_t i = 0; i < about->live; i++) {
        bp_snapshot_live live = {.size = sizeof live};
        need(bp_snapshot_live_get(snapshot, pool, i, &live) == BP_OK && live.id < about->requests);
    }
    for (size_t i = 0; i < about->streams; i++) {
        bp_snapshot_stream stream = {.size = sizeof stream};
        need(bp_snapshot_stream_get(snapshot, pool, i, &stream) == BP_OK);
        need_text(stream.name);
    }
}

static void walk_slabs(const bp_snapshot *snapshot, size_t pool, const bp_snapshot_pool *about)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < about->slabs; i++) {
        bp_snapshot_slab slab = {.size = sizeof slab};
        need(bp_snapshot_slab_get(snapshot, pool, i, &slab) == BP_OK && slab.bytes <= UINT64_MAX - slab.address);
        need_text(slab.group);
        need(!__builtin_add_overflow(sum, slab.bytes, &sum));
    }
    for (size_t i = 0; i < about->roles; i++) {
        bp_snapshot_role role = {.size = sizeof role};
        need(bp_snapshot_role_get(snapshot, pool, i, &role) == BP_OK);
        need_text(role.role);
    }
    for (size_t i = 0; i < about->statistics; i++) {
        const char *name = NULL;
        uint64_t value = 0;
        need(bp_snapshot_statistic_get(snapshot, pool, i, &name, &value) == BP_OK);
        need_text(name);
    }
}

static void walk_events(const bp_snapshot *snapshot, size_t pool, const bp_snapshot_pool *about,
                        const bp_snapshot_about *whole)
{
    uint64_t earliest = whole->first_time_ns;
    for (size_t i = 0; i < about->events; i++) {
        bp_snapshot_event event = {.size = sizeof event};
        need(bp_snapshot_event_get(snapshot, pool, i, &event) == BP_OK && event.id < about->requests);
        need(event.kind >= BP_EVENT_ACQUIRE && event.kind <= BP_EVENT_GIVE_UP);
        need(event.time_ns >= earliest && event.time_ns <= whole->last_time_ns);
        earliest = event.time_ns;
    }
    earliest = whole->first_time_ns;
    for (size_t i = 0; i < about->slab_events; i++) {
        bp_snapshot_slab_event event = {.size = sizeof event};
        need(bp_snapshot_slab_event_get(snapshot, pool, i, &event) == BP_OK && event.slab < about->slabs);
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
    bp_snapshot_about whole = {.size = sizeof whole};
    need(bp_snapshot_about_get(snapshot, &whole) == BP_OK && whole.first_time_ns <= whole.last_time_ns);
    need_text(whole.version);
    need_text(whole.label);
    need_text(whole.coordinates);
    for (size_t pool = 0; pool < whole.pools; pool++) {
        bp_snapshot_pool about = {.size = sizeof about};
        need(bp_snapshot_pool_get(snapshot, pool, &about) == BP_OK);
        need_text(about.name);
        walk_requests(snapshot, pool, &about);
        walk_slabs(snapshot, pool, &about);
        walk_events(snapshot, pool, &about, &whole);
    }
    bp_snapshot_destroy(&snapshot);
    return 0;
}
