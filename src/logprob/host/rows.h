/* Tokens of a call and their rows, for the jobs of host engines. */
#ifndef BP_LOGPROB_HOST_ROWS_H
#define BP_LOGPROB_HOST_ROWS_H

#include "logprob/host/kernels.h"

/* An element's place in a view of [batch, sequence]. */
static inline int64_t bp_token_offset(const bp_tokens_work *tokens, uint64_t token, int64_t batch_stride,
                                      int64_t stride)
{
    return (int64_t)(token / tokens->sequence) * batch_stride + (int64_t)(token % tokens->sequence) * stride;
}

static inline bool bp_token_is_masked(const bp_tokens_work *tokens, uint64_t token)
{
    return tokens->has_mask &&
           tokens->mask[bp_token_offset(tokens, token, tokens->mask_batch_stride, tokens->mask_stride)] == 0;
}

static inline int64_t bp_token_target(const bp_tokens_work *tokens, uint64_t token)
{
    int64_t offset = bp_token_offset(tokens, token, tokens->target_batch_stride, tokens->target_stride);
    return tokens->target_is_64 ? ((const int64_t *)tokens->target)[offset] : ((const int32_t *)tokens->target)[offset];
}

/* Whether `target` is one of `count` ids from `first` on: no target is too small or too large to ask. */
static inline bool bp_target_is_within(int64_t target, int64_t first, uint64_t count)
{
    return (uint64_t)target - (uint64_t)first < count;
}

/* Places in the tables of kernels. */
static inline int bp_row_dtype(int32_t dtype)
{
    return dtype == BP_DTYPE_FP32 ? BP_ROW_FP32 : dtype == BP_DTYPE_BF16 ? BP_ROW_BF16 : BP_ROW_FP16;
}

static inline uint64_t bp_row_element_bytes(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

/* The row of a token. */
static inline const char *bp_row_of(const bp_tokens_work *tokens, const bp_logits_work *logits, uint64_t token)
{
    int64_t offset = bp_token_offset(tokens, token, logits->batch_stride, logits->stride);
    return (const char *)logits->data + offset * (int64_t)bp_row_element_bytes(bp_row_dtype(logits->dtype));
}

/* How many rows a thread takes at once. */
#define BP_PIECE_COLUMNS (8 * BP_TILE_COLUMNS)

static inline uint64_t bp_rows_of_piece(uint64_t columns)
{
    return columns < BP_PIECE_COLUMNS ? BP_PIECE_COLUMNS / columns : 1;
}

typedef struct bp_row_outputs {
    float logprob, entropy, max, log_sum, energy;
} bp_row_outputs;

/* Of a token that is not masked. `has_target`: its target is in the vocabulary. */
bp_row_outputs bp_row_finish(const bp_finish_work *work, uint64_t token, bool has_target);

#endif
