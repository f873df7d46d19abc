/* Pools to measure: a device with streams, a plan and the pool that is made from it. */
#ifndef BP_BENCH_POOLS_H
#define BP_BENCH_POOLS_H

#include <bucketpool/bucketpool.h>
#include <bucketpool/plan.h>

#include "measure.h"

/* One request for one slab. */
bp_plan *one_slab_plan(uint64_t bytes);

#define WORLD_STREAMS 4u

typedef struct world_options {
    bp_device *device;       /* taken over; NULL: a new one */
    int host;                /* else the null device */
    uint32_t units, buckets; /* buckets of each unit */
    uint64_t bytes;          /* of a bucket */
    int promised;            /* all requests are acquired on stream 0, and the pool knows */
    bp_strict strict;        /* 0: the default */
} world_options;

typedef struct world {
    bp_device *device;
    bp_stream *streams[WORLD_STREAMS];
    bp_pool *pool;
    uint32_t *ids; /* all, unit by unit: ids[i] is i */
    uint32_t count;
} world;

/* Equal units that share two buffer sets, by the max policy. */
world world_create(const world_options *options);
/* Requests with a piece of one slab each, on the null device. The first quarter of the requests is promised to stream 0, and so on; or
 * request i to stream i modulo 4. */
world world_create_apart(uint32_t requests, int interleaved);
/* One slab of 2 x `deep` pieces and `requests` requests: even ones reach 1, 2, .. `deep` pieces up from its bottom, odd ones down from
 * its top; ids [2k] and [2k + 1] have k % deep + 1 pieces, which are that many segments. All are
 * promised to stream 0 of the null device. */
world world_create_overlapping(uint32_t requests, uint32_t deep);
void world_destroy(world *w);

/* ---- work on them ------------------------------------------------------------------------------------------------ */

/* Acquires and releases ids[0 ..], ids[each ..], ... of a power of two of arrays. */
typedef struct work {
    bp_pool *pool;
    const uint32_t *ids;
    size_t arrays, each;
    bp_stream *acquiring, *releasing;
} work;

/* Eight requests in turn, acquired on stream 0 and released there or on stream 1. */
work work_on(const world *w, int two_streams);
/* A bench_loop of a work. */
void run_pairs(void *user, size_t pairs);
/* The figures' names say what a pair takes: ends the program where it takes something else. */
void expect(const world *w, const work *k, uint64_t records, uint64_t waits);

#endif
