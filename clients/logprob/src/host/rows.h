/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a call and the rows of their logits, for the jobs of host engines. */
#ifndef BP_LOGPROB_HOST_ROWS_H
#define BP_LOGPROB_HOST_ROWS_H

#include <bucketpool/core/arith.h>

#include <math.h>
#include <stdalign.h>

#include "host/jobs.h"

#define BP_PIECE_TOKENS 256u
#define BP_PIECE_COLUMNS (8 * BP_TILE_COLUMNS)
/* Larger outputs are written with non-temporal stores. A constant, because reported cache sizes may be those of a whole socket. */
#define BP_CACHED_BYTES (16u << 20)

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static inline uint64_t bp_token_count(const bp_tokens_work *tokens)
{
    return tokens->batch * tokens->sequence;
}

/* Offset of a token in a strided [batch, sequence] tensor. */
static inline int64_t bp_token_offset(const bp_tokens_work *tokens, uint64_t token, int64_t batch_stride,
                                      int64_t stride)
{
    return (int64_t)(token / tokens->sequence) * batch_stride + (int64_t)(token % tokens->sequence) * stride;
}

static inline int64_t bp_token_target(const bp_tokens_work *tokens, uint64_t token, uint32_t k)
{
    int64_t offset = bp_token_offset(tokens, token, tokens->target_batch_stride, tokens->target_stride) +
                     (int64_t)k * tokens->target_step;
    return tokens->target_is_64 ? ((const int64_t *)tokens->target)[offset] : ((const int32_t *)tokens->target)[offset];
}

/* A token is also masked if all its targets are ignored. */
static inline bool bp_token_is_masked(const bp_tokens_work *tokens, uint64_t token)
{
    if (tokens->mask != NULL &&
        tokens->mask[bp_token_offset(tokens, token, tokens->mask_batch_stride, tokens->mask_stride)] == 0)
        return true;
    bool ignored = tokens->ignores != 0;
    for (uint32_t k = 0; k < tokens->targets && ignored; k++)
        ignored = bp_token_target(tokens, token, k) == tokens->ignored;
    return ignored;
}

/* The number of the token's first bad target; `targets` if none is bad. */
static inline uint32_t bp_token_bad_target(const bp_tokens_work *tokens, uint64_t token)
{
    uint32_t k = tokens->bad != NULL ? 0 : tokens->targets;
    while (k < tokens->targets && !bp_is_bad(tokens, bp_token_target(tokens, token, k)))
        k++;
    return k;
}

/* 1 / temperature; NaN if that of the token is out of range. */
static inline float bp_token_scale(const bp_tokens_work *tokens, uint64_t token)
{
    if (tokens->temperature == NULL)
        return tokens->scale;
    const float temperature =
        tokens
            ->temperature[bp_token_offset(tokens, token, tokens->temperature_batch_stride, tokens->temperature_stride)];
    return isnormal(temperature) && temperature > 0 && isnormal(1 / temperature) ? 1 / temperature : NAN;
}

/* For forward passes: NaN also for a token with a bad target. */
static inline float bp_token_checked_scale(const bp_tokens_work *tokens, uint64_t token)
{
    return bp_token_bad_target(tokens, token) < tokens->targets ? NAN : bp_token_scale(tokens, token);
}

static inline void bp_put_output(const bp_output_work *output, const bp_tokens_work *tokens, uint64_t token, uint32_t k,
                                 float value)
{
    if (output->data != NULL)
        output->data[bp_token_offset(tokens, token, output->batch_stride, output->stride) + (int64_t)k * output->step] =
            value;
}

static inline float bp_upstream_of(const bp_upstream_work *upstream, const bp_tokens_work *tokens, uint64_t token,
                                   uint32_t k)
{
    return upstream->data == NULL
               ? 0
               : upstream->data[bp_token_offset(tokens, token, upstream->batch_stride, upstream->stride) +
                                (int64_t)k * upstream->step];
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* True if there are fewer rows than threads need, so that threads share rows. */
static inline bool bp_has_few_rows(const bp_host_team *team, uint64_t rows)
{
    return team->threads > 1 && rows < 2 * (uint64_t)team->threads;
}

/* Rows that a thread takes at once. */
static inline uint64_t bp_rows_of_piece(uint64_t columns)
{
    return columns < BP_PIECE_COLUMNS ? BP_PIECE_COLUMNS / columns : 1;
}

/* Index of the dtype in the kernel tables. */
static inline int bp_row_dtype(int32_t dtype)
{
    return dtype == BP_DTYPE_FP32 ? BP_ROW_FP32 : dtype == BP_DTYPE_BF16 ? BP_ROW_BF16 : BP_ROW_FP16;
}

static inline uint64_t bp_row_element_bytes(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

/* The row of a token. */
static inline const char *bp_logits_row(const bp_tokens_work *tokens, const bp_logits_work *logits, uint64_t token)
{
    int64_t offset = bp_token_offset(tokens, token, logits->batch_stride, logits->stride);
    return (const char *)logits->data + offset * (int64_t)bp_row_element_bytes(bp_row_dtype(logits->dtype));
}

/* True if rounding or soft cap change the logits: kernels then work on tiles of fp32 that were prepared. */
static inline bool bp_are_prepared(const bp_logits_work *logits)
{
    return logits->cap != 0 || (logits->rounding != BP_DTYPE_FP32 && logits->rounding != logits->dtype);
}

/* A tile of fp32, for the stack. */
typedef struct bp_tile {
    alignas(64) float values[BP_TILE_COLUMNS];
} bp_tile;

/* The `count` logits of a row from `first` on as fp32, rounded and capped: in `tile`, or where they are. */
static inline const float *bp_prepare(const bp_host_team *team, const bp_logits_work *logits, const char *row,
                                      uint64_t first, uint32_t count, bp_tile *tile)
{
    const int dtype = bp_row_dtype(logits->dtype);
    const void *from = row + first * bp_row_element_bytes(dtype);
    if (dtype == BP_ROW_FP32 && !bp_are_prepared(logits))
        return from;
    team->kernels->widen[dtype](from, count, bp_row_dtype(logits->rounding), logits->cap, tile->values);
    return tile->values;
}

#endif
