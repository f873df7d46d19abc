/* Small pieces: one slab, and the ways to divide it. */
#ifndef BP_PINNED_SMALL_H
#define BP_PINNED_SMALL_H

#include "pinned/pages.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

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

/* Room for one more, so that adding it cannot fail. */
bp_status bp_pieces_reserve(bp_pieces *pieces);
void bp_pieces_add(bp_pieces *pieces, const bp_pinned_piece *piece);
/* *index is that of the piece at `address`; false: there is none, and *index is not written. */
bool bp_pieces_find(const bp_pieces *pieces, const void *address, size_t *index);
void bp_pieces_remove(bp_pieces *pieces, size_t index);
void bp_pieces_finish(bp_pieces *pieces);

/* ---- the slab ---------------------------------------------------------------------------------------------------- */

/* Small pieces: one slab, and who divides it. */

typedef struct bp_small bp_small;

/* A way to divide the slab. */
typedef struct bp_small_ops {
    /* The slab is there. Fails: it cannot be used, and is given back. */
    bp_status (*start)(bp_small *small);
    /* NULL: no room. */
    uint8_t *(*take)(bp_small *small, uint64_t bytes, uint64_t alignment);
    void (*give)(bp_small *small, uint8_t *address, uint64_t bytes);
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

extern const bp_small_ops bp_small_plain;

struct bp_jemalloc;
/* An arena of its own; no slab yet. False: jemalloc makes none. */
bool bp_small_jemalloc_create(bp_small *small, const struct bp_jemalloc *jemalloc);

#endif
