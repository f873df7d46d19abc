#include "allocators/guarded.h"

#include "allocators/explain.h"
#include "allocators/observers.h"
#include "core/fail.h"

/* Pages are opened and closed segment by segment: one that two segments share could not be closed for one of them alone. */
static bp_status permit(bp_pool *pool, uint32_t first, uint32_t count, bp_access access)
{
    for (uint32_t s = first; s < first + count; s++)
        BP_TRY(bp_guard_permit(pool->device, pool->segments[s].address, pool->places[s].room, access));
    return BP_OK;
}

/* Bytes from the request's start to the end of what belongs to it alone. */
static uint64_t room_of(const bp_pool *pool, const bp_entry *r)
{
    uint32_t last = r->first + r->count - 1;
    return (uint64_t)(pool->segments[last].address - pool->segments[r->first].address) + pool->places[last].room;
}

bp_status bp_guarded_add(bp_pool *pool, uint32_t segment)
{
    BP_TRY(permit(pool, segment, 1, BP_ACCESS_NONE));
    bp_guard_close(pool->segments[segment].address, pool->places[segment].room);
    return BP_OK;
}

bp_status bp_guarded_start(bp_pool *pool)
{
    pool->guarding = true;
    bp_observe(pool, BP_OBSERVER_GUARD);
    for (size_t i = 0; i < pool->slabs.count; i++) {
        if (pool->slab_infos[i].planned_bytes > 0)
            BP_TRY(bp_guard_permit(pool->device, pool->slabs.slabs[i].address, pool->slabs.slabs[i].bytes,
                                   BP_ACCESS_NONE));
    }
    for (uint32_t first = 0, end; first < pool->planned_segments; first = end) {
        end = first + 1;
        while (end < pool->planned_segments && pool->places[end].joined)
            end++;
        const bp_segment_place *last = &pool->places[end - 1];
        uint8_t *address = pool->segments[first].address;
        uint64_t bytes = last->made_offset + last->room - pool->places[first].made_offset;
        BP_TRY(bp_guard_permit(pool->device, address, bytes, BP_ACCESS_READ_WRITE));
        BP_TRY(permit(pool, first, end - first, BP_ACCESS_NONE));
        bp_guard_close(address, bytes);
    }
    for (uint32_t i = 0; i < pool->overflow_count; i++)
        BP_TRY(bp_guarded_add(pool, pool->overflow_first + i));
    return BP_OK;
}

static void close_request(bp_pool *pool, uint32_t id)
{
    bp_entry *r = &pool->entries[id];
    if (r->count == 0)
        return;
    permit(pool, r->first, r->count, BP_ACCESS_NONE); /* what stays open is only not watched */
    bp_guard_close(pool->segments[r->first].address, room_of(pool, r));
}

/* Opens the memory of a request for work on `stream`. */
static bp_status guarded_prepare(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    bp_entry *r = &pool->entries[id];
    if (r->kind == BP_KIND_EMPTY)
        return BP_OK;
    if (r->kind == BP_KIND_DYNAMIC) /* the device's own memory: no page of it is ours to close */
        return bp_stream_fill(stream, atomic_load_explicit(&r->address, memory_order_relaxed), 0xff, r->bytes);
    bp_status status = permit(pool, r->first, r->count, BP_ACCESS_READ_WRITE);
    if (status != BP_OK) {
        close_request(pool, id);
        return status;
    }
    bp_guard_open(pool->segments[r->first].address, r->bytes, room_of(pool, r));
    return BP_OK;
}

static void undo(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    (void)stream;
    close_request(pool, id);
}

/* Waits for the streams of a hold that is to end and checks its redzone: it is whole again after an error, and the hold goes on. */
static bp_status guarded_check(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream)
{
    bp_entry *r = &pool->entries[id];
    if (BP_WORD_REFERENCES(word) > 1 || r->count == 0)
        return BP_OK;
    for (uint32_t i = 0; i < r->streams; i++)
        BP_TRY(bp_stream_quiesce(r->live[i].stream));
    if (stream != NULL)
        BP_TRY(bp_stream_quiesce(stream));
    uint8_t *address = pool->segments[r->first].address;
    uint64_t bad = bp_guard_check(address, r->bytes, room_of(pool, r));
    if (bad != 0) {
        char name[BP_REQUEST_BYTES];
        return bp_fail(BP_ERR_SCHEDULE, "pool %s: %s was written past its end: byte %llu of %llu, at %p",
                       pool->info.name, bp_explain_request(pool, id, name), (unsigned long long)bad,
                       (unsigned long long)r->bytes, (void *)(address + bad));
    }
    return BP_OK;
}

const bp_observer bp_guard_observer = {
    .prepare = guarded_prepare, .undo = undo, .check = guarded_check, .close = close_request};

void bp_guarded_finish(bp_pool *pool)
{
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        if (pool->segments[s].address != NULL)
            bp_guard_end(pool->segments[s].address, pool->places[s].room);
    }
}
