#include "logprob/lm_head_pieces.h"

#include "core/arith.h"

/* Whole sequences in one piece; 0: a sequence takes several pieces. */
static uint64_t sequences_in(uint64_t sequence, uint64_t chunk)
{
    return chunk / sequence;
}

static uint64_t pieces_of(uint64_t whole, uint64_t part)
{
    return whole / part + (whole % part != 0);
}

uint64_t bp_piece_count(uint64_t batch, uint64_t sequence, uint64_t chunk)
{
    if (batch == 0 || sequence == 0)
        return 0;
    const uint64_t sequences = sequences_in(sequence, chunk);
    return sequences > 0 ? pieces_of(batch, sequences) : batch * pieces_of(sequence, chunk);
}

bp_piece bp_piece_at(uint64_t batch, uint64_t sequence, uint64_t chunk, uint64_t index)
{
    const uint64_t sequences = sequences_in(sequence, chunk);
    bp_piece piece = {.batches = 1, .count = sequence};
    if (sequences > 0) {
        piece.batch = index * sequences;
        piece.batches = bp_least_u64(sequences, batch - piece.batch);
    } else {
        const uint64_t pieces = pieces_of(sequence, chunk);
        piece.batch = index / pieces;
        piece.first = index % pieces * chunk;
        piece.count = bp_least_u64(chunk, sequence - piece.first);
    }
    piece.token = piece.batch * sequence + piece.first;
    piece.rows = piece.batches * piece.count;
    return piece;
}

/* ---- views of a piece ----------------------------------------------------------------------------------------------- */

static const void *at(const void *all, int64_t batch_stride, int64_t stride, const bp_piece *piece, int64_t bytes)
{
    if (all == NULL)
        return NULL;
    return (const uint8_t *)all + ((int64_t)piece->batch * batch_stride + (int64_t)piece->first * stride) * bytes;
}

bp_tokens_work bp_piece_tokens(const bp_tokens_work *all, const bp_piece *piece)
{
    bp_tokens_work tokens = *all;
    tokens.batch = piece->batches;
    tokens.sequence = piece->count;
    tokens.target =
        at(all->target, all->target_batch_stride, all->target_stride, piece, all->target_is_64 ? sizeof(int64_t) : 4);
    tokens.mask = at(all->mask, all->mask_batch_stride, all->mask_stride, piece, 1);
    return tokens;
}

bp_saved_work bp_piece_saved(const bp_saved_work *all, const bp_piece *piece)
{
    return (bp_saved_work){.max = all->max + piece->token,
                           .log_sum = all->log_sum + piece->token,
                           .energy = all->energy == NULL ? NULL : all->energy + piece->token};
}

const float *bp_piece_values(const float *all, int64_t batch_stride, int64_t stride, const bp_piece *piece)
{
    return at(all, batch_stride, stride, piece, sizeof *all);
}

/* ---- rows as matrices ----------------------------------------------------------------------------------------------- */

static bool can_step(int64_t stride, uint64_t columns)
{
    return stride >= 0 && (uint64_t)stride >= columns && stride <= INT32_MAX;
}

uint64_t bp_piece_matrix(const bp_token_rows *rows, const bp_piece *piece, uint64_t row, bp_matrix *matrix)
{
    const int64_t bytes = bp_dtype_bits(rows->dtype) / 8;
    const uint64_t batch = piece->batch + row / piece->count, token = piece->first + row % piece->count;
    *matrix = (bp_matrix){.data = (uint8_t *)rows->data +
                                  ((int64_t)batch * rows->batch_stride + (int64_t)token * rows->stride) * bytes,
                          .dtype = rows->dtype};
    if (piece->count == 1 && can_step(rows->batch_stride, rows->columns)) {
        matrix->stride = rows->batch_stride;
        return piece->rows - row;
    }
    if (piece->count > 1 && can_step(rows->stride, rows->columns)) {
        const bool is_one_line = piece->batches == 1 || rows->batch_stride == (int64_t)piece->count * rows->stride;
        matrix->stride = rows->stride;
        return is_one_line ? piece->rows - row : piece->count - row % piece->count;
    }
    matrix->stride = (int64_t)rows->columns;
    return 1;
}
