/* Pinned memory from within. */
#ifndef BP_PINNED_PINNED_H
#define BP_PINNED_PINNED_H

#include <bucketpool/pinned.h>

#include <pthread.h>
#include <stdatomic.h>

#include "core/fail.h"
#include "pinned/jemalloc.h"
#include "pinned/pages.h"

typedef struct bp_pinned_piece {
    uint8_t *address;
    uint64_t bytes; /* as asked for */
    bp_pages pages; /* planned pieces: their own */
} bp_pinned_piece;

/* In the order of addresses. */
typedef struct bp_pieces {
    bp_pinned_piece *pieces;
    size_t count, capacity;
    uint64_t bytes; /* of all of them */
} bp_pieces;

typedef struct bp_small bp_small;

/* A way to divide the slab of small pieces. `start`, `give` and `finish`: NULL where there is nothing to do. */
typedef struct bp_small_ops {
    /* The slab is there. Fails: it cannot be used, and is given back. */
    bp_status (*start)(bp_small *small);
    /* NULL: no room. */
    uint8_t *(*take)(bp_small *small, uint64_t bytes, uint64_t alignment);
    void (*give)(bp_small *small, uint8_t *address);
    /* Bytes of the slab that pieces take, with all that is lost beside them. */
    uint64_t (*used)(const bp_small *small);
    /* Before the slab goes, also where there is none. */
    void (*finish)(bp_small *small);
} bp_small_ops;

struct bp_small {
    const bp_small_ops *ops;
    void *self;
    bp_pages slab; /* of 0 bytes: not needed yet */
    bool ready;    /* it was started */
    bp_pieces pieces;
};

struct bp_pinned {
    bp_pinned_config config; /* with what was found for 0 */
    atomic_uint references;  /* the caller's, and one for each offload */
    char name[96];
    char because[BP_JEMALLOC_BECAUSE_BYTES];
    pthread_mutex_t lock; /* of all that follows, also while pages are being pinned: nobody allocates on a hot path */
    bp_page_source source;
    uint64_t pinned_bytes, peak_pinned_bytes;
    bp_pieces planned;
    bp_small small;
};

/* For offloads, which keep their pinned memory alive. */
void bp_pinned_retain(bp_pinned *pinned);

/* An arena of its own; no slab yet. False: jemalloc makes none. */
bool bp_small_jemalloc_create(bp_small *small, const bp_jemalloc *jemalloc);

#endif
