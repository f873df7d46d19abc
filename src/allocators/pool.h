/* The pool's own data, and what its chapters do for each other.
 *
 *   segment   a range of a slab that is held or free as one. In fixed and max pools a segment is a buffer (one copy of a size class, or
 *             memory of a single request); where plans let requests overlap partly, slabs are cut at every end of a
 *             request and a request has several segments.
 *   fence     the release points of one live range: what the next user of its memory waits for
 *   entry     a request, by id: the hot half. The other half is the plan's description of it, pool->requests.
 *
 * Who may write what: a request's word is claimed with one compare-and-swap that sets BUSY; until it is stored back without BUSY
 * everything of that request belongs to the claiming call. A segment belongs to the request in its word. Fields that other threads
 * read for messages and sums are relaxed atomics, written by the owner only. */
#ifndef BP_ALLOCATORS_POOL_H
#define BP_ALLOCATORS_POOL_H

#include <bucketpool/pool.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/memory.h"
#include "devices/device.h"
#include "memory/slabs.h"

/* ---- counting ---------------------------------------------------------------------------------------------------- */

/* Owner and others on lines of their own: NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
typedef struct bp_tally {
    _Atomic(const void *) owner; /* identity of a thread; NULL: none yet */
    _Atomic uint64_t acquires,
        live; /* of the owner; live counts down below zero where others release what it acquired */
    _Alignas(64) _Atomic uint64_t shared_acquires, shared_live; /* of all other threads */
    _Atomic uint64_t peak;
} bp_tally;

/* Tells threads apart: the address of their control block. No variable of our own: an initial-exec one would put all thread-local data
 * of the library, 512 bytes of error text, into the small static block that a process shares among the libraries it loads late. */
static inline const void *bp_tally_thread(void)
{
#if __has_builtin(__builtin_thread_pointer)
    return __builtin_thread_pointer();
#else
    return (const void *)pthread_self(); /* the same address, by a call */
#endif
}

static inline bool bp_tally_is_owner(bp_tally *t)
{
    const void *owner = atomic_load_explicit(&t->owner, memory_order_relaxed), *self = bp_tally_thread();
    return owner == self || (owner == NULL && atomic_compare_exchange_strong_explicit(
                                                  &t->owner, &owner, self, memory_order_relaxed, memory_order_relaxed));
}

static inline uint64_t bp_tally_read(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit((_Atomic uint64_t *)counter, memory_order_acquire);
}

/* Only the owner writes these. */
static inline void bp_tally_add(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_release);
}

static inline uint64_t bp_tally_acquires(const bp_tally *t)
{
    return bp_tally_read(&t->acquires) + bp_tally_read(&t->shared_acquires);
}

/* Live bytes modulo 2^48; the shared word counts its changes above them, so that one that changes there and back is seen. */
#define BP_TALLY_BYTES ((1ull << 48) - 1)
#define BP_TALLY_CHANGE (2ull << 48) /* two: a borrow from the bytes takes one away */

/* Both parts as they were at one moment: what one thread released and another took since must not be counted twice. */
static inline uint64_t bp_tally_live(const bp_tally *t)
{
    uint64_t own, shared;
    do {
        shared = bp_tally_read(&t->shared_live);
        own = bp_tally_read(&t->live);
    } while (shared != bp_tally_read(&t->shared_live));
    return (own + shared) & BP_TALLY_BYTES;
}

/* Counts acquires and the bytes that became live. Returns how many acquires there were before. */
static inline uint64_t bp_tally_acquire(bp_tally *t, uint64_t acquires, uint64_t bytes)
{
    uint64_t before;
    if (bp_tally_is_owner(t)) {
        before = bp_tally_acquires(t);
        bp_tally_add(&t->acquires, acquires);
        bp_tally_add(&t->live, bytes);
    } else {
        before = atomic_fetch_add_explicit(&t->shared_acquires, acquires, memory_order_relaxed) +
                 bp_tally_read(&t->acquires);
        atomic_fetch_add_explicit(&t->shared_live, BP_TALLY_CHANGE + bytes, memory_order_acq_rel);
    }
    uint64_t live = bp_tally_live(t), peak = atomic_load_explicit(&t->peak, memory_order_relaxed);
    while (live > peak &&
           !atomic_compare_exchange_weak_explicit(&t->peak, &peak, live, memory_order_relaxed, memory_order_relaxed)) {
    }
    return before;
}

/* Before the memory can be had again. */
static inline void bp_tally_release(bp_tally *t, uint64_t bytes)
{
    if (bp_tally_is_owner(t))
        bp_tally_add(&t->live, 0 - bytes);
    else
        atomic_fetch_add_explicit(&t->shared_live, BP_TALLY_CHANGE - bytes, memory_order_acq_rel);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

#define BP_NONE UINT32_MAX

/* On the path of every acquire and release, where calls cost as much as what they do. */
#define BP_HOT static inline __attribute__((always_inline))

/* A word: who holds, how often, and whether a call is at work. */
#define BP_WORD_BUSY (1ull << 63)
#define BP_WORD_REFERENCE (1ull << 32)
#define BP_WORD_REFERENCES(word) ((uint32_t)((word) >> 32 & 0xffff))
#define BP_WORD_ID(word) ((uint32_t)(word)-1) /* BP_NONE: free */
#define BP_MOST_REFERENCES 0xffffu

typedef _Atomic uint64_t bp_word;

typedef struct bp_point {
    bp_stream *stream;
    uint64_t point; /* BP_NO_POINT: the next user is on this very stream, as bp_pool_set_stream promised */
} bp_point;

#define BP_NO_POINT UINT64_MAX

typedef struct bp_fence {
    uint32_t count;
    bp_point points[BP_LIVE_STREAMS];
} bp_fence;

typedef struct bp_segment {
    bp_word word;
    uint32_t fence;                  /* of the live range that ended last; written by the owner as it ends its own */
    _Atomic(const bp_stream *) only; /* on which all requests of this memory are acquired; NULL: on several, or any */
    uint8_t *address;
    uint64_t bytes;
} bp_segment;

/* The cold half of a segment. */
typedef struct bp_segment_place {
    uint64_t offset;      /* in the plan's slab */
    uint64_t made_offset; /* in the slab as made: guard mode sets buffers apart */
    uint64_t room;        /* bytes that belong to the segment alone, with what guard mode adds */
    uint32_t slab;
    uint32_t class_index; /* BP_NONE: of no class */
    bool joined;          /* some request reaches from the segment before into this one */
} bp_segment_place;

/* A range: of pool->copies for the copies of a class, of segments for what a request takes. */
typedef struct bp_range {
    uint32_t first, count;
} bp_range;

/* A stream that acquired, used or released a live request. */
typedef struct bp_live_stream {
    bp_stream *stream;
    uint64_t point;   /* covers everything of this live range on the stream; BP_NO_POINT: none does yet */
    uint16_t open;    /* acquires and uses on it that no release on it has ended */
    uint8_t acquired; /* the stream acquired, not only used */
} bp_live_stream;

/* How a request gets its memory.
 * BP_KIND_DIRECT: always the same segments; its word is that of the first. BP_KIND_CHOSEN: those of the plan, or others where they are held
 * (assignment.c). BP_KIND_DYNAMIC: the device allocates. BP_KIND_EMPTY: it has no bytes. BP_KIND_UNUSED: it has bytes, but the plan's
 * schedule never uses it. */
typedef enum bp_kind { BP_KIND_DIRECT, BP_KIND_CHOSEN, BP_KIND_DYNAMIC, BP_KIND_EMPTY, BP_KIND_UNUSED } bp_kind;

/* A request. What every acquire and release touches comes first. */
typedef struct bp_entry {
    bp_word *word; /* its own, or that of its only possible first segment: then one claim takes both */
    _Atomic(uint8_t *) address;
    uint32_t first, count; /* segments of its live range, or of the last one */
    uint32_t fence;        /* that the end of the live range is written to */
    const bp_stream *only; /* that it is acquired on; NULL: any */
    uint8_t kind, zero;
    uint8_t streams;     /* in `live` */
    uint8_t used;        /* it was used while live: it is no unused prefetch */
    uint64_t live_bytes; /* aligned: what it adds to what is live */
    uint64_t key;
    bp_word own_word;

    _Atomic uint64_t acquires, releases, hash, since_acquire, since_step;
    _Atomic(const bp_stream *) since_stream;
    _Atomic uint64_t records, elided;

    bp_live_stream live[BP_LIVE_STREAMS];

    _Atomic uint64_t waits, repeated, cancelled, deviations, overflows, dynamic;
    bp_range home;        /* segments that the plan assigns; count 0: none */
    uint32_t class_index; /* whose copies it may get; BP_NONE: of no class */
    uint64_t bytes;       /* with padding */
    bool stopped;         /* BUSY until its offloaded memory is back; under the binding lock */
} bp_entry;

struct bp_pool;

/* Who offloads the pool's slabs. */
typedef struct bp_residents {
    void *user; /* NULL: nobody */
    void (*gone)(void *user);
    atomic_bool *closed; /* by slab: its memory is away, or on its way */
} bp_residents;

typedef struct bp_recorder bp_recorder;
typedef struct bp_annotations bp_annotations;
typedef struct bp_exports bp_exports;

#define BP_WATCH_CAPTURING 1u /* a capture has begun and not ended */
#define BP_WATCH_ASK 2u       /* ask the driver about the call's stream */

/* Dynamic memory that the device refused to take back; tried again when the pool goes. */
typedef struct bp_unfreed {
    void *address;
    uint64_t bytes;
} bp_unfreed;
#define BP_MOST_UNFREED 64

/* Lines of the cache are kept apart on purpose: NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct bp_pool {
    bp_device *device;
    bp_entry *entries; /* by id */
    atomic_uint request_count;
    bp_segment *segments;
    bp_fence *fences; /* fence 0 is empty and stays so */
    atomic_uint sealed, overflow_allowed;
    atomic_uint watch;     /* BP_WATCH bits: 0 where acquire, use and release have nothing to do with captures */
    atomic_uint observers; /* bits of those that are on (observers.h) */
    _Atomic(bp_recorder *) recorder; /* NULL: nothing is recorded */
    bp_annotations *annotations;     /* NULL: there are none */
    bool guarded;
    bp_strict strict;

    _Alignas(64) bp_tally tally;
    _Atomic uint64_t step, busy, refused;

    /* cold from here on */
    _Alignas(64) pthread_mutex_t binding; /* bind, and what bind changes */
    bp_pool_info info;
    bp_strings strings;
    bp_slabs slabs;
    bp_pool_slab *slab_infos;
    bp_plan_request *requests; /* by id */
    uint32_t planned_count, request_capacity;
    bp_exports *exports; /* NULL: nothing was lent; made under `binding` */
    uint64_t page_bytes;
    bp_segment_place *places;
    uint32_t planned_segments, segment_capacity;
    uint32_t *copies; /* segments of the classes, class by class */
    bp_range *classes;
    uint32_t class_count;
    uint32_t overflow_first, overflow_count; /* segments */
    uint32_t next_persistent;                /* segment */
    uint32_t persistent_slab;
    uint64_t persistent_bytes, persistent_used;
    bp_stream *reaper; /* frees dynamic memory after its release points */
    bp_unfreed unfreed[BP_MOST_UNFREED];
    uint32_t unfreed_count;
    bool guarding;          /* guard mode has begun: its traces must be removed */
    bp_recorder *recording; /* the caller's last one, also when stopped */
    bool profiled;          /* a profile has the pool */
    char fingerprint[BP_FINGERPRINT_CHARS];
    bp_capture_check capture_check;
    struct bp_capture *capturing; /* NULL: none */
    struct bp_capture *captures;  /* all that were begun and not destroyed */
    uint32_t capture_number;
    bp_residents residency;
    bp_message_function *on_message;
    void *user;
};

BP_HOT uint8_t *bp_entry_address(const bp_entry *r)
{
    return atomic_load_explicit((_Atomic(uint8_t *) *)&r->address, memory_order_relaxed);
}

/* Ids are below. */
BP_HOT uint32_t bp_request_count(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->request_count, memory_order_acquire);
}

BP_HOT bool bp_is_capturing(const bp_pool *pool)
{
    return (atomic_load_explicit((atomic_uint *)&pool->watch, memory_order_relaxed) & BP_WATCH_CAPTURING) != 0;
}

/* The copies of a request's class, which it may get. */
static inline bp_range bp_copies_of(const bp_pool *pool, const bp_entry *r)
{
    return r->class_index != BP_NONE ? pool->classes[r->class_index] : (bp_range){0};
}

/* Whether requests must get the copy that the plan assigns: sealed, or inside a capture, where addresses become part of a graph. */
static inline bool bp_is_fixed(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->sealed, memory_order_relaxed) != 0 || bp_is_capturing(pool);
}

static inline void bp_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

static inline uint64_t bp_read(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit((_Atomic uint64_t *)counter, memory_order_relaxed);
}

/* ---- requests (requests.c) --------------------------------------------------------------------------------------- */

/* Makes room for the plan's requests and `extra` more, and copies the descriptions of the plan's. */
bp_status bp_requests_init(bp_pool *pool, const bp_plan_info *plan, uint32_t extra);

/* Makes the plan's requests servable, once segments have addresses. */
bp_status bp_requests_start(bp_pool *pool);

/* Dynamic requests, whose memory the device allocates at each acquire. */

/* Allocates for a request whose word is claimed, for work on `stream`. `patient`: where the device is out of memory, waits for what
 * is on its way back. */
bp_status bp_dynamic_claim(bp_pool *pool, uint32_t id, bp_stream *stream, bool patient);
/* Marks the allocation on its stream: for streams that acquire the live request too. */
bp_status bp_dynamic_mark(bp_pool *pool, uint32_t id, bp_stream *stream);
/* Frees, in the order of `stream`: that of an acquire whose work has not begun, or the reaper, which waits for release points. */
void bp_dynamic_free(bp_pool *pool, uint32_t id, bp_stream *stream);

/* Frees what is live and what could not be freed before. The device is idle. */
void bp_dynamic_finish(bp_pool *pool);

/* ---- residency of slabs (residency.c) ---------------------------------------------------------------------------- */

/* Slabs whose memory goes away and comes back, as far as requests and graphs are concerned. One caller at a time. */

/* The offloader of a pool: there is one at most. `gone` is called when the pool is being destroyed, while its slabs have what memory they
 * have. Errors: BP_ERR_SCHEDULE (there is one), BP_ERR_UNSUPPORTED (guard mode, a device without memory), BP_ERR_CAPTURE. */
bp_status bp_residency_join(bp_pool *pool, void *user, void (*gone)(void *user));
void bp_residency_leave(bp_pool *pool);
void bp_residency_pool_gone(bp_pool *pool);

/* Whether requests cannot have the slab's memory now. */
bool bp_residency_is_closed(const bp_pool *pool, uint32_t slab);
/* Where a request's own memory is, also while it holds overflow memory; BP_NONE: nowhere. */
uint32_t bp_home_slab(const bp_pool *pool, uint32_t id);
/* Whether that is closed. */
bool bp_is_away(const bp_pool *pool, uint32_t id);

/* Takes the memory of the slabs marked in `chosen` (one entry for each slab) from all requests: what is free cannot be acquired any more,
 * and requests that are live for the pool's life (state roles, persistent) cannot be acquired, used or released. `group` is for messages.
 * Errors, with nothing taken: BP_ERR_SCHEDULE (another request is live, a launch has the memory, a call is at work on a request: by name). */
bp_status bp_residency_close(bp_pool *pool, const bool *chosen, const char *group);
void bp_residency_open(bp_pool *pool, const bool *chosen);

/* Graphs that have collectives in the slabs. check: BP_ERR_CAPTURE when there is one, by name. void: launching them is an error from now on. */
bp_status bp_residency_check_graphs(const bp_pool *pool, const bool *chosen, const char *group);
void bp_residency_void_graphs(bp_pool *pool, const bool *chosen);

/* ---- export (export.c) ------------------------------------------------------------------------------------------- */

/* How many tensors are exported now. */
BP_API uint64_t bp_pool_export_count(bp_pool *pool);

/* The pool is being destroyed and its slabs have no observers any more: gives their memory back, now or with the last tensor. */
void bp_export_pool_gone(bp_pool *pool);

#endif
