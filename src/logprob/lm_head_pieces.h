/* A batch in pieces that fit a chunk workspace, and rows of a piece as matrices. */
#ifndef BP_LOGPROB_LM_HEAD_PIECES_H
#define BP_LOGPROB_LM_HEAD_PIECES_H

#include <bucketpool/logprob.h>

#include "logprob/products.h"
#include "logprob/work.h"

/* Tokens [batch, batch + batches) x [first, first + count): a part of one sequence, or several whole ones. */
typedef struct bp_piece {
    uint64_t batch, batches, first, count;
    uint64_t token; /* number of its first one; the others follow */
    uint64_t rows;
} bp_piece;

/* How many pieces of at most `chunk` tokens (not 0). */
uint64_t bp_piece_count(uint64_t batch, uint64_t sequence, uint64_t chunk);
bp_piece bp_piece_at(uint64_t batch, uint64_t sequence, uint64_t chunk, uint64_t index);

/* Tokens and upstream gradients of a piece. */
bp_tokens_work bp_piece_tokens(const bp_tokens_work *all, const bp_piece *piece);
bp_saved_work bp_piece_saved(const bp_saved_work *all, const bp_piece *piece);
const float *bp_piece_values(const float *all, int64_t batch_stride, int64_t stride, const bp_piece *piece);

/* Rows of `piece` from number `row` on, as many as one matrix can hold (at least one): that have one distance, which BLAS can take. */
uint64_t bp_piece_matrix(const bp_token_rows *rows, const bp_piece *piece, uint64_t row, bp_matrix *matrix);

#endif
