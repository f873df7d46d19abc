/* SPDX-License-Identifier: Apache-2.0 */
/* Event ring of a pool. A record's index comes from one fetch-and-add, so that many threads record concurrently. */
#ifndef BP_ALLOCATORS_RECORDER_H
#define BP_ALLOCATORS_RECORDER_H

#include "allocators/pool.h"

/* One event, half a cache line. Fields are atomic because a ring that is too small may be lapped during a write. */
typedef struct bp_record {
    _Atomic uint64_t what; /* kind, stream, id */
    _Atomic uint64_t step, time_ns;
    _Atomic(const void *) address;
} bp_record;

struct bp_recorder {
    _Atomic uint64_t next;  /* number of the next event, from 0 */
    _Atomic uint64_t whole; /* events before this number may be partly overwritten */
    uint64_t mask;
    bool timestamps;
    bp_record *ring;
};

#define BP_MAX_ENTRIES ((size_t)1 << 30)

/* Makes a ring of `entries` (1 to BP_MAX_ENTRIES), rounded up to a power of two. Its pages are touched here: recording neither allocates
 * nor faults. */
bp_status bp_recorder_create(size_t entries, bool timestamps, bp_recorder **recorder);
void bp_recorder_destroy(bp_recorder **recorder);

/* Records events into the ring from now on; drops its old ones. BP_ERR_SCHEDULE: another ring records the pool. */
bp_status bp_recorder_start(bp_pool *pool, bp_recorder *recorder);
void bp_recorder_stop(bp_pool *pool, const bp_recorder *recorder);

/* Events oldest to next - 1 are in the ring. */
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
