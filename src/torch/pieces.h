/* A range of memory in pieces, in order: what is handed out, and what is free with the work that used it last. Bookkeeping only. */
#ifndef BP_TORCH_PIECES_H
#define BP_TORCH_PIECES_H

#include <bucketpool/device.h>

#include <stdbool.h>

/* Of a free piece, what its next user has to wait for, from the least to the most.
 * BP_TORCH_CLEAN: nothing. BP_TORCH_MARKED: a point of a stream. BP_TORCH_UNKNOWN: everything on the device. */
typedef enum bp_torch_piece_state {
    BP_TORCH_CLEAN = 0,
    BP_TORCH_MARKED = 1,
    BP_TORCH_UNKNOWN = 2,
    BP_TORCH_LIVE = 3
} bp_torch_piece_state;

typedef struct bp_torch_piece {
    uint64_t offset, bytes;
    bp_torch_piece_state state;
    bool captured;     /* live: handed out to a capture */
    bp_stream *stream; /* marked */
    uint64_t point;
} bp_torch_piece;

typedef struct bp_torch_pieces {
    bp_torch_piece *pieces;
    size_t count, capacity;
} bp_torch_pieces;

/* One clean piece. */
bp_status bp_torch_pieces_init(bp_torch_pieces *pieces, uint64_t bytes);
void bp_torch_pieces_finish(bp_torch_pieces *pieces);

/* The first of the smallest run of free pieces with room for `bytes`, the lowest of these; of pieces that wait for no more than `most`. False: there
 * is none, and *largest is the bytes of the largest. */
bool bp_torch_pieces_find(const bp_torch_pieces *pieces, uint64_t bytes, bp_torch_piece_state most, size_t *first,
                          uint64_t *largest);

/* How many pieces from `first` on make up `bytes`. */
size_t bp_torch_pieces_span(const bp_torch_pieces *pieces, size_t first, uint64_t bytes);

/* Makes one live piece of them; what is left of the last stays as it was. All or nothing: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_torch_pieces_take(bp_torch_pieces *pieces, size_t first, uint64_t bytes);

/* The live piece that begins there; false: there is none. */
bool bp_torch_pieces_live_at(const bp_torch_pieces *pieces, uint64_t offset, size_t *index);

/* A live piece becomes free as `as` says (state, stream, point) and joins neighbours that wait for the same. */
void bp_torch_pieces_give(bp_torch_pieces *pieces, size_t index, const bp_torch_piece *as);

/* The device has done all its work: everything free is clean. */
void bp_torch_pieces_clean(bp_torch_pieces *pieces);

#endif
