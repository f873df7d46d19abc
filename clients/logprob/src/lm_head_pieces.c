/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a batch: equal numbers of tokens, and the views of tensors that belong to them. */
#include <bucketpool/core/arith.h>

#include "lm_head.h"

uint64_t bp_pieces_of(uint64_t whole, uint64_t part)
{
    return part == 0 ? 1 : whole / part + (whole % part != 0);
}

uint64_t bp_piece_size(const bp_tokens_work *all, uint64_t max)
{
    const uint64_t sequences = max / all->sequence; /* whole sequences per piece; 0: a sequence takes several pieces */
    if (sequences == 0)
        return bp_head_equal(all->sequence, max);
    return bp_pieces_of(all->batch, bp_pieces_of(all->batch, sequences)) * all->sequence;
}

uint64_t bp_piece_count(const bp_tokens_work *all, uint64_t size)
{
    const uint64_t sequences = size / all->sequence;
    return sequences > 0 ? bp_pieces_of(all->batch, sequences) : all->batch * bp_pieces_of(all->sequence, size);
}

bp_piece bp_piece_at(const bp_tokens_work *all, uint64_t size, uint64_t index)
{
    const uint64_t sequences = size / all->sequence;
    bp_piece p = {.batches = 1, .count = all->sequence};
    if (sequences > 0) {
        p.batch = index * sequences;
        p.batches = bp_min_u64(sequences, all->batch - p.batch);
    } else {
        const uint64_t pieces = bp_pieces_of(all->sequence, size);
        p.batch = index / pieces;
        p.first = index % pieces * size;
        p.count = bp_min_u64(size, all->sequence - p.first);
    }
    p.token = p.batch * all->sequence + p.first;
    p.rows = p.batches * p.count;
    return p;
}

bp_piece bp_piece_half(const bp_piece *p, unsigned half)
{
    bp_piece h = *p;
    const bool has_sequences = p->batches > 1;
    const uint64_t all = has_sequences ? p->batches : p->count, before = half == 0 ? 0 : (all + 1) / 2;
    const uint64_t mine = half == 0 ? (all + 1) / 2 : all - before;
    if (has_sequences) {
        h.batch += before;
        h.batches = mine;
    } else {
        h.first += before;
        h.count = mine;
    }
    h.token += before * (has_sequences ? p->count : 1);
    h.rows = h.batches * h.count;
    return h;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

static const void *piece_view(const void *all, int64_t batch_stride, int64_t stride, const bp_piece *p, int64_t bytes)
{
    if (all == NULL)
        return NULL;
    return (const uint8_t *)all + ((int64_t)p->batch * batch_stride + (int64_t)p->first * stride) * bytes;
}

bp_tokens_work bp_piece_tokens(const bp_tokens_work *all, const bp_piece *p)
{
    bp_tokens_work tokens = *all;
    tokens.batch = p->batches;
    tokens.sequence = p->count;
    tokens.target = piece_view(all->target, all->target_batch_stride, all->target_stride, p,
                               all->target_is_64 ? sizeof(int64_t) : 4);
    tokens.mask = piece_view(all->mask, all->mask_batch_stride, all->mask_stride, p, 1);
    tokens.temperature = piece_view(all->temperature, all->temperature_batch_stride, all->temperature_stride, p,
                                    sizeof *all->temperature);
    return tokens;
}

static bp_output_work piece_output(const bp_output_work *all, const bp_piece *p)
{
    bp_output_work output = *all;
    if (all->data != NULL)
        output.data += (int64_t)p->batch * all->batch_stride + (int64_t)p->first * all->stride;
    return output;
}

static bp_upstream_work piece_upstream(const bp_upstream_work *all, const bp_piece *p)
{
    bp_upstream_work upstream = *all;
    upstream.data = piece_view(all->data, all->batch_stride, all->stride, p, sizeof *all->data);
    return upstream;
}

static bp_saved_work piece_saved(const bp_saved_work *all, const bp_piece *p)
{
    if (all->max == NULL)
        return *all;
    return (bp_saved_work){.max = all->max + p->token,
                           .log_sum = all->log_sum + p->token,
                           .energy = all->energy == NULL ? NULL : all->energy + p->token};
}

bp_results_work bp_piece_results(const bp_results_work *all, const bp_piece *p)
{
    return (bp_results_work){.logprob = piece_output(&all->logprob, p),
                             .entropy = piece_output(&all->entropy, p),
                             .logsumexp = piece_output(&all->logsumexp, p),
                             .mean_logprob = piece_output(&all->mean_logprob, p),
                             .saved = piece_saved(&all->saved, p),
                             .first_token = p->token};
}

bp_gradient_work bp_piece_gradient(const bp_gradient_work *all, const bp_piece *p)
{
    bp_gradient_work work = *all;
    work.tokens = bp_piece_tokens(&all->tokens, p);
    work.saved = piece_saved(&all->saved, p);
    work.logprob = piece_upstream(&all->logprob, p);
    work.entropy = piece_upstream(&all->entropy, p);
    work.logsumexp = piece_upstream(&all->logsumexp, p);
    work.mean_logprob = piece_upstream(&all->mean_logprob, p);
    return work;
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static bool can_step(int64_t stride, uint64_t columns)
{
    return stride >= 0 && (uint64_t)stride >= columns && stride <= INT32_MAX;
}

uint64_t bp_piece_matrix(const bp_token_rows *rows, const bp_piece *p, uint64_t row, bp_matrix *matrix)
{
    const int64_t bytes = bp_dtype_bits(rows->dtype) / 8;
    const uint64_t batch = p->batch + row / p->count, token = p->first + row % p->count;
    *matrix = (bp_matrix){.data = (uint8_t *)rows->data +
                                  ((int64_t)batch * rows->batch_stride + (int64_t)token * rows->stride) * bytes,
                          .dtype = rows->dtype};
    if (p->count == 1 && can_step(rows->batch_stride, rows->columns)) {
        matrix->stride = rows->batch_stride;
        return p->rows - row;
    }
    if (p->count > 1 && can_step(rows->stride, rows->columns)) {
        const bool is_one_line = p->batches == 1 || rows->batch_stride == (int64_t)p->count * rows->stride;
        matrix->stride = rows->stride;
        return is_one_line ? p->rows - row : p->count - row % p->count;
    }
    matrix->stride = (int64_t)rows->columns;
    return 1;
}
