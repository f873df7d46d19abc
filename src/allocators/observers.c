/* SPDX-License-Identifier: Apache-2.0 */
/* Guard mode, annotations, and the dispatch to all enabled observers. Zeroing is in requests.c, captures in capture.c, the recorder in
 * recorder.c. */
#include "allocators/observers.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocators/report.h"

/* ---- guard mode -------------------------------------------------------------------------------------------------- */

/* Guard mode detects uses after release and writes past the end. Debugging only: it touches every byte.
 *
 * A range is `bytes` of a bucket
 * in `room` bytes that belong to it alone (room >= bytes). A closed range must not be touched: its whole pages are protected, and
 * AddressSanitizer, if present, has the rest poisoned. In an open range the bucket is accessible, and the bytes after it are a redzone.
 * Streams must be idle on the range.
 *
 * Sources: Electric Fence (pages), AddressSanitizer's manual poisoning. */

#define REDZONE_BYTES 4096u /* checked bytes, at most */
#define REDZONE_BYTE 0xfd

/* Present if the program runs under AddressSanitizer, even if this library was built without. */
extern __attribute__((weak)) void __asan_poison_memory_region(const volatile void *address, size_t bytes);
extern __attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *address, size_t bytes);

static void poison(const uint8_t *address, uint64_t bytes)
{
    if (__asan_poison_memory_region != NULL && bytes > 0)
        __asan_poison_memory_region(address, bytes);
}

static void unpoison(const uint8_t *address, uint64_t bytes)
{
    if (__asan_unpoison_memory_region != NULL && bytes > 0)
        __asan_unpoison_memory_region(address, bytes);
}

/* Sets the access of the pages that lie entirely in a range. */
static bp_status permit_range(const bp_device *device, uint8_t *address, uint64_t bytes, bp_access access)
{
    uint64_t page = device->traits.page_bytes;
    uint64_t skipped = (page - (uintptr_t)address % page) % page;
    if (skipped >= bytes)
        return BP_OK;
    uint64_t whole = (bytes - skipped) / page * page;
    return whole > 0 ? device->ops->protect(device->self, address + skipped, whole, access) : BP_OK;
}

/* Opens and closes pages segment by segment: a page shared by two segments cannot be closed for one of them. */
static bp_status permit(bp_pool *pool, uint32_t first, uint32_t count, bp_access access)
{
    for (uint32_t s = first; s < first + count; s++)
        BP_TRY(permit_range(pool->device, pool->segments[s].address, pool->places[s].room, access));
    return BP_OK;
}

/* Bytes from the request's start to the end of its exclusive memory. */
static uint64_t room_of(const bp_pool *pool, const bp_entry *r)
{
    uint32_t last = r->first + r->count - 1;
    return (uint64_t)(pool->segments[last].address - pool->segments[r->first].address) + pool->places[last].room;
}

/* Redzone bytes of an open request. */
static uint64_t redzone_bytes(const bp_entry *r, uint64_t room)
{
    return room - r->bytes < REDZONE_BYTES ? room - r->bytes : REDZONE_BYTES;
}

bp_status bp_guarded_add(bp_pool *pool, uint32_t segment)
{
    BP_TRY(permit(pool, segment, 1, BP_ACCESS_NONE));
    poison(pool->segments[segment].address, pool->places[segment].room);
    return BP_OK;
}

bp_status bp_guarded_start(bp_pool *pool)
{
    pool->guard.begun = true;
    bp_observe(pool, BP_OBSERVER_GUARD);
    for (size_t i = 0; i < pool->slabs.count; i++) {
        if (pool->slab_infos[i].planned_bytes > 0)
            BP_TRY(
                permit_range(pool->device, pool->slabs.slabs[i].address, pool->slabs.slabs[i].bytes, BP_ACCESS_NONE));
    }
    for (uint32_t first = 0, end; first < pool->planned_segments; first = end) {
        end = first + 1;
        while (end < pool->planned_segments && pool->places[end].joined)
            end++;
        const bp_segment_place *last = &pool->places[end - 1];
        uint8_t *address = pool->segments[first].address;
        uint64_t bytes = last->made_offset + last->room - pool->places[first].made_offset;
        BP_TRY(permit_range(pool->device, address, bytes, BP_ACCESS_READ_WRITE));
        BP_TRY(permit(pool, first, end - first, BP_ACCESS_NONE));
        poison(address, bytes);
    }
    for (uint32_t i = 0; i < pool->overflow.count; i++)
        BP_TRY(bp_guarded_add(pool, pool->overflow.first + i));
    return BP_OK;
}

static void close_request(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    const bp_entry *r = &pool->entries[id];
    (void)stream;
    if (r->count == 0)
        return;
    permit(pool, r->first, r->count, BP_ACCESS_NONE); /* if this fails, the memory stays open and is not checked */
    poison(pool->segments[r->first].address, room_of(pool, r));
}

/* Opens the request's memory for work on `stream`, filled with bytes 0xff: NaN in every floating-point type that has one. */
static bp_status guarded_prepare(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    const bp_entry *r = &pool->entries[id];
    if (r->kind == BP_KIND_EMPTY)
        return BP_OK;
    if (r->kind == BP_KIND_DYNAMIC) /* memory of the device's allocator, whose pages are not private to the request */
        return bp_stream_fill(stream, bp_entry_address(r), 0xff, r->bytes);
    bp_status status = permit(pool, r->first, r->count, BP_ACCESS_READ_WRITE);
    if (status != BP_OK) {
        close_request(pool, id, stream);
        return status;
    }
    uint8_t *address = pool->segments[r->first].address;
    const uint64_t room = room_of(pool, r);
    unpoison(address, room);
    memset(address, 0xff, r->bytes);
    memset(address + r->bytes, REDZONE_BYTE, redzone_bytes(r, room));
    poison(address + r->bytes, room - r->bytes);
    return BP_OK;
}

/* Waits for the request's streams and checks its redzone. After an error the redzone is restored and the request stays live. */
static bp_status guarded_check(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream)
{
    const bp_entry *r = &pool->entries[id];
    if (BP_WORD_REFERENCES(word) > 1 || r->count == 0)
        return BP_OK;
    for (uint32_t i = 0; i < r->streams; i++)
        BP_TRY(bp_stream_quiesce(r->live[i].stream));
    if (stream != NULL)
        BP_TRY(bp_stream_quiesce(stream));

    uint8_t *redzone = pool->segments[r->first].address + r->bytes;
    const uint64_t room = room_of(pool, r), watched = redzone_bytes(r, room);
    uint64_t i = 0;
    unpoison(redzone, room - r->bytes);
    while (i < watched && redzone[i] == REDZONE_BYTE)
        i++;
    if (i < watched)
        memset(redzone, REDZONE_BYTE, watched);
    poison(redzone, room - r->bytes);
    if (i == watched)
        return BP_OK;
    char name[BP_REQUEST_BYTES];
    return bp_fail(BP_ERR_SCHEDULE, "pool %s: %s was written past its end: byte %llu of %llu, at %p", pool->info.name,
                   bp_explain_request(pool, id, name), (unsigned long long)(r->bytes + i), (unsigned long long)r->bytes,
                   (void *)(redzone + i));
}

const bp_observer bp_guard_observer = {
    .prepare = guarded_prepare, .undo = close_request, .check = guarded_check, .close = close_request};

void bp_guarded_finish(bp_pool *pool)
{
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        if (pool->segments[s].address != NULL)
            unpoison(pool->segments[s].address, pool->places[s].room);
    }
}

/* ---- annotations ------------------------------------------------------------------------------------------------- */

#define TEXT_BYTES 192

bp_status bp_annotations_choose(bp_annotate wanted, bool *chosen)
{
    if ((unsigned)wanted > BP_ANNOTATE_ON)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: unknown annotate %d", (int)wanted);
    if (wanted == BP_ANNOTATE_ON && !bp_nvtx_is_built())
        return bp_fail(
            BP_ERR_UNSUPPORTED,
            "annotations were requested, but this library was built without NVTX; build with -Dnvtx=enabled");
    *chosen = bp_nvtx_is_built() &&
              (wanted == BP_ANNOTATE_ON || (wanted == BP_ANNOTATE_ENVIRONMENT && bp_nvtx_is_asked_for()));
    return BP_OK;
}

static bp_status annotations_attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    bp_pool *pool = user;
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%.80s, slab %u (%.40s)", pool->info.name, slab, pool->slab_infos[slab].group);
    pool->annotations->heaps[slab] = bp_nvtx_heap_register(text, address, bytes);
    return BP_OK;
}

static void annotations_detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    const bp_pool *pool = user;
    (void)address;
    (void)bytes;
    bp_nvtx_heap_unregister(pool->annotations->heaps[slab]);
    pool->annotations->heaps[slab] = NULL;
}

bp_status bp_annotations_start(bp_pool *pool)
{
    BP_TRY(bp_new_array(1, sizeof *pool->annotations, (void **)&pool->annotations));
    BP_TRY(bp_new_array(pool->request_capacity, sizeof *pool->annotations->requests,
                        (void **)&pool->annotations->requests));
    BP_TRY(bp_new_array(pool->slabs.count, sizeof *pool->annotations->heaps, (void **)&pool->annotations->heaps));
    pool->annotations->graph = bp_nvtx_register("graph");
    const bp_slab_callbacks callbacks = {.attach = annotations_attach, .detach = annotations_detach};
    BP_TRY(bp_slabs_attach(&pool->slabs, &callbacks, pool));
    bp_observe(pool, BP_OBSERVER_ANNOTATIONS);
    return BP_OK;
}

void bp_annotations_bind(bp_pool *pool, uint32_t id)
{
    char text[TEXT_BYTES], number[24];
    const bp_plan_request *request = &pool->requests[id];
    snprintf(number, sizeof number, "bucket.%u", request->ordinal);
    snprintf(text, sizeof text, "%.80s/%.60s %s", request->unit[0] != '\0' ? request->unit : "outside units",
             request->bucket != NULL ? request->bucket : number, bp_role_name((bp_role)request->role));
    pool->annotations->requests[id].name = bp_nvtx_register(text);
}

/* Opens the region of a request in a slab; dynamic memory has no heap, hence no region. */
static bp_status open_region(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    (void)stream;
    const bp_entry *r = &pool->entries[id];
    bp_annotation *a = &pool->annotations->requests[id];
    if (a->open != NULL || (r->kind != BP_KIND_DIRECT && r->kind != BP_KIND_CHOSEN))
        return BP_OK;
    void *heap = pool->annotations->heaps[pool->places[r->first].slab];
    a->open = bp_entry_address(r);
    bp_nvtx_region_register(heap, a->open, r->bytes, a->name);
    return BP_OK;
}

static void close_region(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    bp_annotation *a = &pool->annotations->requests[id];
    (void)stream;
    if (a->open != NULL)
        bp_nvtx_region_unregister(a->open);
    a->open = NULL;
}

static void annotations_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    (void)stream;
    bp_annotation *a = &pool->annotations->requests[id];
    if (kind == BP_EVENT_ACQUIRE) {
        a->range = bp_nvtx_start(a->name);
    } else if (kind == BP_EVENT_RELEASE || kind == BP_EVENT_CANCEL) {
        close_region(pool, id, NULL);
        bp_nvtx_end(a->range);
        a->range = 0;
    }
}

const bp_observer bp_annotations_observer = {.prepare = open_region, .undo = close_region, .note = annotations_note};

void bp_annotations_finish(bp_pool *pool)
{
    bp_annotations *all = pool->annotations;
    if (all->requests == NULL)
        return;
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++)
        annotations_note(pool, BP_EVENT_RELEASE, id, NULL);
    bp_annotations_capture(pool, NULL);
    bp_nvtx_end(atomic_exchange_explicit(&all->step, 0, memory_order_relaxed));
}

void bp_annotations_destroy(bp_pool *pool)
{
    free(pool->annotations->requests);
    free(pool->annotations->heaps);
    free(pool->annotations);
    pool->annotations = NULL;
}

void bp_annotations_step(bp_pool *pool, uint64_t step)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%.80s step %llu", pool->info.name, (unsigned long long)step);
    bp_nvtx_end(atomic_exchange_explicit(&pool->annotations->step, 0, memory_order_relaxed));
    bp_nvtx_end(atomic_exchange_explicit(&pool->annotations->step, bp_nvtx_start_text(text), memory_order_relaxed));
}

void bp_annotations_capture(bp_pool *pool, const char *name)
{
    char text[TEXT_BYTES];
    uint64_t range = 0;
    if (name != NULL) {
        snprintf(text, sizeof text, "capture %.80s", name);
        range = bp_nvtx_start_text(text);
    }
    bp_nvtx_end(atomic_exchange_explicit(&pool->annotations->capture, range, memory_order_relaxed));
}

void bp_annotations_launch(bp_pool *pool, const uint32_t *segments, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const bp_segment *s = &pool->segments[segments[i]];
        bp_nvtx_region_register(pool->annotations->heaps[pool->places[segments[i]].slab], s->address, s->bytes,
                                pool->annotations->graph);
    }
}

void bp_annotations_launched(bp_pool *pool, const uint32_t *segments, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        bp_nvtx_region_unregister(pool->segments[segments[i]].address);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static const bp_observer *const observers[BP_OBSERVERS] = {
    &bp_guard_observer, &bp_annotations_observer, &bp_zeros_observer, &bp_capture_observer, &bp_recorder_observer};

/* Undoes the observers of `bits` below number `end`, in reverse order. */
static void undo_below(bp_pool *pool, uint32_t id, bp_stream *stream, unsigned bits, unsigned end)
{
    while (end-- > 0) {
        if ((bits >> end & 1) != 0 && observers[end]->undo != NULL)
            observers[end]->undo(pool, id, stream);
    }
}

bp_status bp_observers_prepare(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    const unsigned bits = bp_observed(pool, BP_OBSERVERS_PREPARE);
    for (unsigned i = 0; i < BP_OBSERVERS; i++) {
        bp_status status = (bits >> i & 1) != 0 ? observers[i]->prepare(pool, id, stream) : BP_OK;
        if (status != BP_OK) {
            undo_below(pool, id, stream, bits, i);
            return status;
        }
    }
    return BP_OK;
}

void bp_observers_undo(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    undo_below(pool, id, stream, bp_observed(pool, BP_OBSERVERS_PREPARE), BP_OBSERVERS);
}

bp_status bp_observers_check(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream)
{
    const unsigned bits = bp_observed(pool, BP_OBSERVERS_CHECK);
    bp_status status = BP_OK;
    for (unsigned i = 0; status == BP_OK && i < BP_OBSERVERS; i++) {
        if ((bits >> i & 1) != 0)
            status = observers[i]->check(pool, id, word, stream);
    }
    return status;
}

void bp_observers_close(bp_pool *pool, uint32_t id)
{
    const unsigned bits = bp_observed(pool, ~0u);
    for (unsigned i = 0; i < BP_OBSERVERS; i++) {
        if ((bits >> i & 1) != 0 && observers[i]->close != NULL)
            observers[i]->close(pool, id, NULL);
    }
}

void bp_observers_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    const unsigned bits = bp_observed(pool, ~0u);
    for (unsigned i = 0; i < BP_OBSERVERS; i++) {
        if ((bits >> i & 1) != 0 && observers[i]->note != NULL)
            observers[i]->note(pool, kind, id, stream);
    }
}
