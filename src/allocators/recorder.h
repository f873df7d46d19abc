/* The event ring: one fetch-and-add finds a record's place, so that many threads record at once. */
#ifndef BP_ALLOCATORS_RECORDER_H
#define BP_ALLOCATORS_RECORDER_H

#include "allocators/pool.h"

/* One event: half a line of the cache. Atomics, as a ring that is too small may be lapped while it is written. */
typedef struct bp_record {
    _Atomic uint64_t what; /* kind, stream, id */
    _Atomic uint64_t step, time_ns;
    _Atomic(const void *) address;
} bp_record;

struct bp_recorder {
    _Atomic uint64_t next;  /* number of the next event, from 0 */
    _Atomic uint64_t whole; /* events before this number may have been written over in part */
    uint64_t mask;
    bool timestamps;
    bp_record *ring;
};

#define BP_MOST_ENTRIES ((size_t)1 << 30)

/* A ring of `entries` (1 to BP_MOST_ENTRIES), rounded up to a power of two. All its memory is there from now on: recording neither allocates nor
 * meets pages for the first time. */
bp_status bp_recorder_create(size_t entries, bool timestamps, bp_recorder **recorder);
void bp_recorder_destroy(bp_recorder **recorder);

/* Events go into the ring from now on; what it had is dropped. BP_ERR_SCHEDULE: another one records the pool. */
bp_status bp_recorder_start(bp_pool *pool, bp_recorder *recorder);
void bp_recorder_stop(bp_pool *pool, const bp_recorder *recorder);

/* Numbers of events: those from oldest to before next are in the ring. */
static inline uint64_t bp_recorder_next(const bp_recorder *recorder)
{
    return bp_read(&recorder->next);
}

static inline uint64_t bp_recorder_oldest(const bp_recorder *recorder)
{
    uint64_t next = bp_read(&recorder->next), whole = bp_read(&recorder->whole);
    uint64_t oldest = next <= recorder->mask ? 0 : next - recorder->mask - 1;
    return oldest > whole ? oldest : whole;
}

bp_pool_event bp_recorder_read(const bp_recorder *recorder, uint64_t number);

#endif
