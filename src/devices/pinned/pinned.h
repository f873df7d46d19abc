/* SPDX-License-Identifier: Apache-2.0 */
/* Private data of pinned memory. */
#ifndef BP_PINNED_PINNED_H
#define BP_PINNED_PINNED_H

#include <bucketpool/core/fail.h>
#include <bucketpool/pinned.h>

#include <pthread.h>
#include <stdatomic.h>

#include "devices/pinned/jemalloc.h"
#include "devices/pinned/pages.h"

typedef struct bp_pinned_piece {
    uint8_t *address;
    uint64_t bytes; /* as requested */
    bp_pages pages; /* planned pieces: their separate pages */
} bp_pinned_piece;

/* Sorted by address. */
typedef struct bp_pieces {
    bp_pinned_piece *pieces;
    size_t count, capacity;
    uint64_t bytes; /* of all pieces */
} bp_pieces;

typedef struct bp_small bp_small;

/* Allocator of small pieces in a slab. `start`, `give` and `finish` may be NULL. */
typedef struct bp_small_ops {
    /* The slab exists. On failure it cannot be used and is freed. */
    bp_status (*start)(bp_small *small);
    /* NULL: out of room. */
    uint8_t *(*take)(bp_small *small, uint64_t bytes, uint64_t alignment);
    void (*give)(bp_small *small, uint8_t *address);
    /* Bytes of the slab that pieces take, including fragmentation. */
    uint64_t (*used)(const bp_small *small);
    /* Called before the slab is freed, also if there is none. */
    void (*finish)(bp_small *small);
} bp_small_ops;

struct bp_small {
    const bp_small_ops *ops;
    void *self;
    bp_pages slab; /* 0 bytes: not needed yet */
    bool ready;    /* start succeeded */
    bp_pieces pieces;
};

struct bp_pinned {
    bp_pinned_config config; /* with the values that replace zeros */
    atomic_uint references;  /* the caller's, and one per offload */
    char name[96];
    char because[BP_JEMALLOC_BECAUSE_BYTES];
    pthread_mutex_t lock; /* protects the fields below, also while pages are being pinned: no hot path allocates */
    bp_page_source source;
    uint64_t pinned_bytes, peak_pinned_bytes;
    bp_pieces planned;
    bp_small small;
};

/* Adds a reference; used by offloads. */
void bp_pinned_retain(bp_pinned *pinned);

/* Makes an arena without a slab. Returns false if jemalloc cannot. */
bool bp_small_jemalloc_create(bp_small *small, const bp_jemalloc *jemalloc);

#endif
