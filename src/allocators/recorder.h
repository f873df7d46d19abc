/* The event ring: one fetch-and-add finds a record's place, so that many threads record at once. */
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

/* Hot. */
void bp_recorder_add(bp_pool *pool, bp_recorder *recorder, bp_pool_event_kind kind, uint32_t id,
                     const bp_stream *stream);

static inline void bp_record_event(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    bp_recorder *recorder = atomic_load_explicit(&pool->recorder, memory_order_relaxed);
    if (recorder != NULL)
        bp_recorder_add(pool, recorder, kind, id, stream);
}

#endif
