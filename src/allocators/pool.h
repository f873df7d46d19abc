/* SPDX-License-Identifier: Apache-2.0 */
/* Private data of a pool, and the functions that its modules share.
 *
 *   segment   a range of a slab that is held or free as one. In fixed and max pools a segment is a buffer (one copy of a size class, or
 *             memory of a single request); where plans let requests overlap partly, slabs are cut at every end of a
 *             request and a request has several segments.
 *   fence     the release events of one live range: the next user of its memory waits for them
 *   entry     the hot half of a request, by id. The cold half is the plan's description, pool->requests.
 *
 * Ownership: a request's word is claimed with one compare-and-swap that sets BUSY; until it is stored back without BUSY,
 * all fields of the request belong to the claiming call. A segment belongs to the request in its word. Fields that other threads
 * read for messages and sums are relaxed atomics that only the owner writes. Segments, fences and entries start on cache lines, so that
 * threads that serve different requests write to different lines. */
#ifndef BP_ALLOCATORS_POOL_H
#define BP_ALLOCATORS_POOL_H

#include <bucketpool/pool.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "allocators/tally.h"
#include "core/memory.h"
#include "devices/device.h"
#include "devices/memory/slabs.h"

/* ---- pools ------------------------------------------------------------------------------------------------------- */

#define BP_NONE UINT32_MAX

/* Request word: holder, reference count, and BUSY while a call works on the request. */
#define BP_WORD_BUSY (1ull << 63)
#define BP_WORD_REFERENCE (1ull << 32)
#define BP_WORD_REFERENCES(word) ((uint32_t)((word) >> 32 & 0xffff))
#define BP_WORD_ID(word) ((uint32_t)(word)-1) /* BP_NONE: free */
#define BP_MAX_REFERENCES 0xffffu

typedef _Atomic uint64_t bp_word;

typedef struct bp_point {
    bp_stream *stream;
    uint64_t point; /* BP_NO_POINT: bp_pool_set_stream promised that the next user is on this stream */
} bp_point;

#define BP_NO_POINT UINT64_MAX

typedef struct bp_fence {
    _Alignas(BP_LINE) uint32_t count;
    bp_point points[BP_LIVE_STREAMS];
} bp_fence;

typedef struct bp_segment {
    _Alignas(BP_LINE) bp_word word;
    uint32_t fence; /* fence of the live range that ended last; written by the owner when its live range ends */
    _Atomic(const bp_stream *) only; /* stream of all requests that use this memory; NULL: several, or any */
    uint8_t *address;
    uint64_t bytes;
} bp_segment;

/* Cold half of a segment. */
typedef struct bp_segment_place {
    uint64_t offset;      /* in the plan's slab */
    uint64_t made_offset; /* offset in the slab as allocated: guard mode spaces buffers out */
    uint64_t room;        /* bytes that belong to the segment alone, including what guard mode adds */
    uint32_t slab;
    uint32_t class_index; /* BP_NONE: without a class */
    bool joined;          /* a request spans the previous segment and this one */
} bp_segment_place;

/* Index range: of pool->copies for the copies of a class, of segments for the memory of a request. */
typedef struct bp_range {
    uint32_t first, count;
} bp_range;

/* A stream that acquired, used or released a live request. */
typedef struct bp_live_stream {
    bp_stream *stream;
    uint64_t point;   /* covers all work of this live range on the stream; BP_NO_POINT: none recorded yet */
    uint16_t open;    /* acquires and uses on the stream that no release on it has ended */
    uint8_t acquired; /* the stream acquired the request, not only used it */
} bp_live_stream;

/* Source of a request's memory; the first two are planned. BP_KIND_DIRECT: fixed segments; its word is that of the first. BP_KIND_CHOSEN: the planned segments, or
 * others if these are held (assignment.c). BP_KIND_DYNAMIC: allocated by the device. BP_KIND_EMPTY: 0 bytes. BP_KIND_UNUSED: it has
 * bytes, but the plan's schedule never uses it. */
typedef enum bp_kind { BP_KIND_DIRECT, BP_KIND_CHOSEN, BP_KIND_DYNAMIC, BP_KIND_EMPTY, BP_KIND_UNUSED } bp_kind;

/* A request. An acquire and a release touch the first line, the line of counters, and the first entry of `live`. */
typedef struct bp_entry {
    _Alignas(BP_LINE)
        bp_word *word; /* its own word, or that of its only possible first segment: then one claim takes both */
    _Atomic(uint8_t *) address;
    uint32_t first, count; /* segments of the present live range, or of the last one */
    uint32_t fence;        /* fence that the end of the live range is written to */
    uint8_t kind, zero;
    uint8_t streams;       /* entries in `live` */
    uint8_t used;          /* used while live, so that it is not an unused prefetch */
    const bp_stream *only; /* stream that it is acquired on; NULL: any */
    uint64_t live_bytes;   /* aligned bytes that it adds to the pool's live bytes */
    uint64_t key;
    bp_word own_word;

    _Atomic uint64_t acquires, releases, hash, since_acquire, since_step;
    _Atomic(const bp_stream *) since_stream;
    _Atomic uint64_t records, elided;

    bp_live_stream live[BP_LIVE_STREAMS];

    _Atomic uint64_t waits, repeated, cancelled, deviations, overflows, dynamic;
    bp_range home;        /* segments that the plan assigns; count 0: none */
    uint32_t class_index; /* class whose copies it may get; BP_NONE: none */
    uint64_t bytes;       /* with padding */
    bool stopped;         /* BUSY until its memory is restored; under the binding lock */
    bool zeroed;          /* the acquire that began the live range wrote zeros; `zero` may have changed since */
} bp_entry;

struct bp_pool;

typedef struct bp_recorder bp_recorder;
typedef struct bp_annotations bp_annotations;
typedef struct bp_exports bp_exports;

#define BP_WATCH_CAPTURING 1u /* a capture has begun and not ended */
#define BP_WATCH_ASK 2u       /* query the driver about the call's stream */

/* ---- what the modules keep in a pool ------------------------------------------------------------------------------- */

/* requests.c: memory of the device's own allocator. */
#define BP_MAX_UNFREED 64
typedef struct bp_unfreed {
    void *address;
    uint64_t bytes;
} bp_unfreed;

typedef struct bp_dynamic_memory {
    bp_stream *reaper;                  /* frees after the release events */
    bp_unfreed unfreed[BP_MAX_UNFREED]; /* that the device failed to free; freed again when the pool is destroyed */
    uint32_t unfreed_count;
} bp_dynamic_memory;

/* requests.c: requests that are bound later and never released. */
typedef struct bp_persistent_memory {
    uint32_t next; /* free segment */
    uint32_t slab;
    uint64_t bytes, used;
} bp_persistent_memory;

/* observers.c: guard mode. */
typedef struct bp_guard_state {
    bool wanted;
    bool begun; /* protections and poisoning must be removed */
    uint64_t page_bytes;
} bp_guard_state;

/* capture.c: captures that were begun and not destroyed. */
typedef struct bp_pool_captures {
    bp_capture_check check;
    struct bp_capture *current; /* NULL: none */
    struct bp_capture *all;
    uint32_t number;
} bp_pool_captures;

/* recorder.c, profile. */
typedef struct bp_recording_state {
    bp_recorder *last; /* the caller's, also if stopped */
    bool profiled;     /* a profile records the pool */
} bp_recording_state;

/* residency.c: the offload of the pool's slabs. */
typedef struct bp_residents {
    void *user; /* NULL: none */
    void (*gone)(void *user);
    atomic_bool *closed; /* by slab: offloaded, or in transition */
} bp_residents;

/* ---- the pool ------------------------------------------------------------------------------------------------------- */

/* Cache lines are kept apart on purpose: NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct bp_pool {
    /* the engine: acquire and release */
    bp_device *device;
    bp_entry *entries; /* by id */
    atomic_uint request_count;
    bp_segment *segments;
    bp_fence *fences; /* fence 0 is always empty */
    atomic_uint sealed, overflow_allowed;
    atomic_uint watch;     /* BP_WATCH bits; 0: acquire, use and release skip the checks of captures */
    atomic_uint observers; /* bits of the enabled observers (observers.h) */
    _Atomic uint64_t step;
    bp_tally tally;
    _Atomic uint64_t busy, refused;

    /* the layout: fixed when the pool is created, but for what `binding` protects */
    _Alignas(BP_LINE) pthread_mutex_t binding; /* protects binding, and the data that binding changes */
    bp_pool_info info;
    bp_strings strings;
    bp_slabs slabs;
    bp_pool_slab *slab_infos;
    bp_plan_request *requests; /* by id */
    uint32_t planned_count, request_capacity;
    bp_segment_place *places;
    uint32_t planned_segments, segment_capacity;
    uint32_t *copies; /* segments of the classes, class by class */
    bp_range *classes;
    uint32_t class_count;
    bp_range overflow; /* segments */
    bp_strict strict;
    char fingerprint[BP_FINGERPRINT_CHARS];
    bp_message_function *on_message;
    void *user;

    /* the modules */
    _Atomic(bp_recorder *) recorder; /* NULL: not recording */
    bp_annotations *annotations;     /* NULL: not annotated */
    bp_exports *exports;             /* NULL: nothing was exported; made under `binding` */
    bp_dynamic_memory dynamic;
    bp_persistent_memory persistent;
    bp_guard_state guard;
    bp_pool_captures capture;
    bp_recording_state recording;
    bp_residents residents;
};

BP_HOT uint8_t *bp_entry_address(const bp_entry *r)
{
    return atomic_load_explicit((_Atomic(uint8_t *) *)&r->address, memory_order_relaxed);
}

/* Valid ids are below this number. */
BP_HOT uint32_t bp_request_count(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->request_count, memory_order_acquire);
}

BP_HOT bool bp_is_capturing(const bp_pool *pool)
{
    return (atomic_load_explicit((atomic_uint *)&pool->watch, memory_order_relaxed) & BP_WATCH_CAPTURING) != 0;
}

/* Copies of the request's class that it may get. */
static inline bp_range bp_copies_of(const bp_pool *pool, const bp_entry *r)
{
    return r->class_index != BP_NONE ? pool->classes[r->class_index] : (bp_range){0};
}

/* True if requests must get the planned copy: sealed pools, and captures, whose graphs contain the addresses. */
static inline bool bp_is_fixed(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->sealed, memory_order_relaxed) != 0 || bp_is_capturing(pool);
}

BP_HOT void bp_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

BP_HOT uint64_t bp_read(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit((_Atomic uint64_t *)counter, memory_order_relaxed);
}

/* ---- requests (requests.c) --------------------------------------------------------------------------------------- */

/* Allocates for the plan's requests and `extra` more, and copies the descriptions of the plan's. */
bp_status bp_requests_init(bp_pool *pool, const bp_plan_info *plan, uint32_t extra);

/* Makes the plan's requests servable; needs the segments' addresses. */
bp_status bp_requests_start(bp_pool *pool);

/* Dynamic requests, whose memory the device allocates at each acquire. */

/* Allocates for a request whose word is claimed, for work on `stream`. `patient`: if the device is out of memory, waits for pending
 * frees. */
bp_status bp_dynamic_claim(bp_pool *pool, uint32_t id, bp_stream *stream, bool patient);
/* Records the allocation on its stream, for other streams that acquire the live request. */
bp_status bp_dynamic_mark(bp_pool *pool, uint32_t id, bp_stream *stream);
/* Frees in the order of `stream`: the stream of a cancelled acquire, or the reaper, which waits for release events. */
void bp_dynamic_free(bp_pool *pool, uint32_t id, bp_stream *stream);

/* Frees live memory and the memory that could not be freed before. The device must be idle. */
void bp_dynamic_finish(bp_pool *pool);

/* Called when the pool is destroyed, before its slabs are freed. */
void bp_residency_pool_gone(bp_pool *pool);

/* ---- export (export.c) ------------------------------------------------------------------------------------------- */

/* Number of exported tensors. */
BP_API uint64_t bp_pool_export_count(bp_pool *pool);

/* Called when the pool is destroyed, after its slabs lost their observers: frees the slabs, now or with the last exported tensor. */
void bp_export_pool_gone(bp_pool *pool);

#endif
