/* SPDX-License-Identifier: Apache-2.0 */
/* Pools for benchmarks: a device with streams, a plan, and a pool of it. */
#ifndef BP_BENCH_POOLS_H
#define BP_BENCH_POOLS_H

#include <bucketpool/bucketpool.h>
#include <bucketpool/plan.h>

#include "measure.h"

/* A plan of one request in one slab. */
bp_plan *one_slab_plan(uint64_t bytes);

#define WORLD_STREAMS 4u

typedef struct pool_fixture_options {
    bp_device *device;       /* ownership passes to the fixture; NULL: creates one */
    int host;                /* else the null device */
    uint32_t units, buckets; /* buckets per unit */
    uint64_t bytes;          /* per bucket */
    int promised;            /* all requests are promised to stream 0 */
    bp_strict strict;        /* 0: the default */
} pool_fixture_options;

typedef struct pool_fixture {
    bp_device *device;
    bp_stream *streams[WORLD_STREAMS];
    bp_pool *pool;
    uint32_t *ids; /* [unit][bucket]; ids[i] is i */
    uint32_t count;
} pool_fixture;

/* Equal units that share two buffer sets (max policy). */
pool_fixture pool_fixture_create(const pool_fixture_options *options);
/* Disjoint requests in one slab on the null device. Request i is promised to stream i * 4 / requests, or interleaved to stream i % 4. */
pool_fixture pool_fixture_create_apart(uint32_t requests, int interleaved);
/* One slab of 2 x `deep` pieces and `requests` requests: even ones span 1, 2, .. `deep` pieces up from its bottom, odd ones down from its
 * top; ids [2k] and [2k + 1] have k % deep + 1 pieces, each a segment. All are promised to stream 0 of the null device. */
pool_fixture pool_fixture_create_overlapping(uint32_t requests, uint32_t deep);
void pool_fixture_destroy(pool_fixture *w);

/* ---- work on them ------------------------------------------------------------------------------------------------ */

/* Acquires and releases ids[0 ..], ids[each ..], ... cyclically; the number of arrays is a power of two. */
typedef struct work {
    bp_pool *pool;
    const uint32_t *ids;
    size_t arrays, each;
    bp_stream *acquiring, *releasing;
} work;

/* Cycles through eight requests, acquired on stream 0 and released there or on stream 1. */
work work_on(const pool_fixture *w, int two_streams);
/* bench_loop over a work. */
void run_pairs(void *user, size_t pairs);
/* Checks the events per pair that the figures' names state; ends the program on a difference. */
void expect(const pool_fixture *w, const work *k, uint64_t records, uint64_t waits);

#endif
