/* Pieces that are lent, by address: who frees gives nothing but that. */
#ifndef BP_PINNED_PIECES_H
#define BP_PINNED_PIECES_H

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

/* Room for one more, so that adding it cannot fail. */
bp_status bp_pieces_reserve(bp_pieces *pieces);
void bp_pieces_add(bp_pieces *pieces, const bp_pinned_piece *piece);
/* *index is that of the piece at `address`; false: there is none, and *index is not written. */
bool bp_pieces_find(const bp_pieces *pieces, const void *address, size_t *index);
void bp_pieces_remove(bp_pieces *pieces, size_t index);
void bp_pieces_finish(bp_pieces *pieces);

#endif
