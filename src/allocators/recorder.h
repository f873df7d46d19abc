/* Events of requests, for those who want to know: the event ring, in which one fetch-and-add finds a record's place, so that many threads
 * record at once; and annotations. */
#ifndef BP_ALLOCATORS_RECORDER_H
#define BP_ALLOCATORS_RECORDER_H

#include "allocators/pool.h"

/* One event. Relaxed atomics, as a ring that is too small may be lapped while it is written. */
typedef struct bp_record {
    _Atomic uint64_t what; /* kind, stream, id */
    _Atomic uint64_t step, time_ns;
} bp_record;

struct bp_recorder {
    _Atomic uint64_t next;
    uint64_t mask;
    bool timestamps;
    bp_record *ring;
};

void bp_recorder_destroy(bp_recorder **recorder);

/* Hot where somebody wants to know. */
void bp_recorder_tell(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream);

static inline void bp_record_event(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    if (atomic_load_explicit(&pool->listeners, memory_order_relaxed) != 0)
        bp_recorder_tell(pool, kind, id, stream);
}

#endif
