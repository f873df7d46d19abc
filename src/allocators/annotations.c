#include "allocators/annotations.h"

#include <stdio.h>
#include <stdlib.h>

#include "allocators/observers.h"
#include "core/fail.h"

#define TEXT_BYTES 192

bp_status bp_annotations_choose(bp_annotate wanted, bool *chosen)
{
    if ((unsigned)wanted > BP_ANNOTATE_ON)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: annotate %d is unknown", (int)wanted);
    if (wanted == BP_ANNOTATE_ON && !bp_nvtx_is_built())
        return bp_fail(BP_ERR_UNSUPPORTED, "annotations were asked for, and this library was built without NVTX");
    *chosen = bp_nvtx_is_built() &&
              (wanted == BP_ANNOTATE_ON || (wanted == BP_ANNOTATE_ENVIRONMENT && bp_nvtx_is_asked_for()));
    return BP_OK;
}

/* ---- slabs ---------------------------------------------------------------------------------------------------------- */

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
    void *memory;
    BP_TRY(bp_new_array(1, sizeof *pool->annotations, &memory));
    pool->annotations = memory;
    BP_TRY(bp_new_array(pool->request_capacity, sizeof *pool->annotations->requests, &memory));
    pool->annotations->requests = memory;
    BP_TRY(bp_new_array(pool->slabs.count, sizeof *pool->annotations->heaps, &memory));
    pool->annotations->heaps = memory;
    pool->annotations->graph = bp_nvtx_register("graph");
    const bp_slab_callbacks callbacks = {.attach = annotations_attach, .detach = annotations_detach};
    BP_TRY(bp_slabs_attach(&pool->slabs, &callbacks, pool));
    bp_observe(pool, BP_OBSERVER_ANNOTATIONS);
    return BP_OK;
}

/* ---- requests ------------------------------------------------------------------------------------------------------- */

void bp_annotations_bind(bp_pool *pool, uint32_t id)
{
    char text[TEXT_BYTES], number[24];
    const bp_plan_request *request = &pool->requests[id];
    snprintf(number, sizeof number, "bucket.%u", request->ordinal);
    snprintf(text, sizeof text, "%.80s/%.60s %s", request->unit[0] != '\0' ? request->unit : "outside units",
             request->bucket != NULL ? request->bucket : number, bp_role_name((bp_role)request->role));
    pool->annotations->requests[id].name = bp_nvtx_register(text);
}

/* The region of a request. Memory of slabs only: what the device allocates for one acquire has no heap. */
static bp_status open_region(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    (void)stream;
    const bp_entry *r = &pool->entries[id];
    bp_annotation *a = &pool->annotations->requests[id];
    if (a->open != NULL || (r->kind != BP_KIND_DIRECT && r->kind != BP_KIND_CHOSEN))
        return BP_OK;
    void *heap = pool->annotations->heaps[pool->places[r->first].slab];
    a->open = atomic_load_explicit(&r->address, memory_order_relaxed);
    bp_nvtx_region_register(heap, a->open, r->bytes, a->name);
    return BP_OK;
}

static void close_region(bp_pool *pool, uint32_t id)
{
    bp_annotation *a = &pool->annotations->requests[id];
    if (a->open != NULL)
        bp_nvtx_region_unregister(a->open);
    a->open = NULL;
}

static void undo_region(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    (void)stream;
    close_region(pool, id);
}

static void annotations_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    (void)stream;
    bp_annotation *a = &pool->annotations->requests[id];
    if (kind == BP_EVENT_ACQUIRE) {
        a->range = bp_nvtx_start(a->name);
    } else if (kind == BP_EVENT_RELEASE || kind == BP_EVENT_CANCEL) {
        close_region(pool, id);
        bp_nvtx_end(a->range);
        a->range = 0;
    }
}

const bp_observer bp_annotations_observer = {.prepare = open_region, .undo = undo_region, .note = annotations_note};

/* ---- the end -------------------------------------------------------------------------------------------------------- */

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

/* ---- stages --------------------------------------------------------------------------------------------------------- */

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
