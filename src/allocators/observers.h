/* SPDX-License-Identifier: Apache-2.0 */
/* Observers of a pool's requests: guard mode, annotations, zeroing, captures, the event recorder. The engine calls the enabled ones in
 * the order of their bits. */
#ifndef BP_ALLOCATORS_OBSERVERS_H
#define BP_ALLOCATORS_OBSERVERS_H

#include "allocators/pool.h"
#include "devices/nvtx/nvtx.h"

/* Bits of pool->observers. */
#define BP_OBSERVER_GUARD 1u
#define BP_OBSERVER_ANNOTATIONS 2u
#define BP_OBSERVER_ZEROS 4u
#define BP_OBSERVER_CAPTURE 8u
#define BP_OBSERVER_RECORDER 16u
#define BP_OBSERVERS 5

/* Bits of the observers that implement each function. */
#define BP_OBSERVERS_PREPARE (BP_OBSERVER_GUARD | BP_OBSERVER_ANNOTATIONS | BP_OBSERVER_ZEROS)
#define BP_OBSERVERS_CHECK (BP_OBSERVER_GUARD | BP_OBSERVER_CAPTURE)

/* Each function may be NULL. The calling operation has claimed the request. */
typedef struct bp_observer {
    /* A request becomes live; called before the caller's work on `stream`. A failure cancels the acquire and must leave nothing behind. */
    bp_status (*prepare)(bp_pool *pool, uint32_t id, bp_stream *stream);
    /* The acquire is cancelled after prepare. */
    void (*undo)(bp_pool *pool, uint32_t id, bp_stream *stream);
    /* A reference is about to end; `word` is the request's word, `stream` is NULL for a cancel. A failure refuses the release. */
    bp_status (*check)(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream);
    /* The last reference ends; must not fail. `stream` is NULL. */
    void (*close)(bp_pool *pool, uint32_t id, bp_stream *stream);
    /* The operation is complete. */
    void (*note)(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream);
} bp_observer;

/* Definitions: observers.c, requests.c, capture.c, recorder.c. */
extern const bp_observer bp_guard_observer, bp_annotations_observer, bp_zeros_observer, bp_capture_observer,
    bp_recorder_observer;

static inline void bp_observe(bp_pool *pool, unsigned bit)
{
    atomic_fetch_or_explicit(&pool->observers, bit, memory_order_release);
}

static inline void bp_unobserve(bp_pool *pool, unsigned bit)
{
    atomic_fetch_and_explicit(&pool->observers, ~bit, memory_order_release);
}

/* The enabled observers among `bits`. */
BP_HOT unsigned bp_observed(const bp_pool *pool, unsigned bits)
{
    return atomic_load_explicit((atomic_uint *)&pool->observers, memory_order_relaxed) & bits;
}

/* Calls prepare of all observers; undoes the earlier ones if one fails. */
bp_status bp_observers_prepare(bp_pool *pool, uint32_t id, bp_stream *stream);
void bp_observers_undo(bp_pool *pool, uint32_t id, bp_stream *stream);
bp_status bp_observers_check(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream);
void bp_observers_close(bp_pool *pool, uint32_t id);
void bp_observers_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream);

BP_HOT void bp_note_event(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    if (bp_observed(pool, ~0u) != 0)
        bp_observers_note(pool, kind, id, stream);
}

/* ---- guard mode -------------------------------------------------------------------------------------------------- */

/* Protects all planned and overflow memory, and for good the guard pages between buffers. */
bp_status bp_guarded_start(bp_pool *pool);
/* Protects one more segment. */
bp_status bp_guarded_add(bp_pool *pool, uint32_t segment);
/* Makes all memory accessible again, before it is freed. */
void bp_guarded_finish(bp_pool *pool);

/* ---- annotations ------------------------------------------------------------------------------------------------- */

/* Annotations for profilers and compute-sanitizer (nvtx/nvtx.h): slabs are NVTX heaps, live requests are regions and ranges. */

/* Annotation of a request; belongs to the call that has claimed the request's word. */
typedef struct bp_annotation {
    bp_nvtx_name name;
    uint64_t range;   /* range of its live range; 0: none */
    const void *open; /* address of its region; NULL: none */
} bp_annotation;

struct bp_annotations {
    bp_annotation *requests;
    void **heaps;       /* by slab */
    bp_nvtx_name graph; /* shown for memory of a launched graph */
    _Atomic uint64_t step, capture;
};

/* Decides whether the pool is annotated. Errors: BP_ERR_UNSUPPORTED (asked for, and the library was built without),
 * BP_ERR_INVALID_ARGUMENT. */
bp_status bp_annotations_choose(bp_annotate wanted, bool *chosen);

/* Called when all slabs exist: registers them, and allocates for requests that are bound later. */
bp_status bp_annotations_start(bp_pool *pool);
/* Ends open ranges and regions; heaps are unregistered as slabs are freed. */
void bp_annotations_finish(bp_pool *pool);
void bp_annotations_destroy(bp_pool *pool);

/* A request was bound. */
void bp_annotations_bind(bp_pool *pool, uint32_t id);
void bp_annotations_step(bp_pool *pool, uint64_t step);
/* A capture begins; `name` NULL: it ended. */
void bp_annotations_capture(bp_pool *pool, const char *name);
/* The launch of a graph that touches these segments begins or ends. */
void bp_annotations_launch(bp_pool *pool, const uint32_t *segments, uint32_t count);
void bp_annotations_launched(bp_pool *pool, const uint32_t *segments, uint32_t count);

#endif
