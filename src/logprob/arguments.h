/* What callers hand over, checked and turned into the work of kernels. `call` is the function's name in messages. */
#ifndef BP_LOGPROB_ARGUMENTS_H
#define BP_LOGPROB_ARGUMENTS_H

#include <bucketpool/logprob.h>

#include <stdbool.h>

#include "logprob/work.h"

/* How many tokens; at most `most`. */
bp_status bp_check_tokens(const char *call, uint64_t batch, uint64_t sequence, uint64_t most, uint64_t *tokens);

/* Rows of `columns`, with their strides filled in where both are 0. `written`: rows must not overlap each other. No tokens: nothing is
 * looked at. */
bp_status bp_check_rows(const char *call, const char *name, const bp_token_rows *rows, uint64_t columns, bool written,
                        bp_token_rows *checked);
/* A 4-byte value for each token, or nothing where data is NULL. */
bp_status bp_check_values(const char *call, const char *name, const bp_token_values *values, uint64_t batch,
                          uint64_t sequence, bool written);
/* Bytes, or nothing where data is NULL. */
bp_status bp_check_mask(const char *call, const bp_token_values *mask, uint64_t batch, uint64_t sequence);
/* Targets and mask. */
bp_status bp_check_targets(const char *call, const bp_token_values *target, bp_dtype dtype, const bp_token_values *mask,
                           uint64_t batch, uint64_t sequence, bp_tokens_work *tokens);
bp_status bp_check_temperature(const char *call, float temperature);
bp_status bp_check_saved(const char *call, const void *saved, uint64_t saved_bytes, uint64_t tokens, bool with_entropy,
                         bp_saved_work *work);

static inline uint64_t bp_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* 1: the bytes between the first and the last of one lie among those of the other. */
bool bp_rows_meet(const bp_token_rows *a, const bp_token_rows *b);

/* Float types that logits, hidden states and gradients may have. */
bool bp_is_row_dtype(bp_dtype dtype);

#endif
