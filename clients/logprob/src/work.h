/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel arguments as plain values: the same structures for host kernels and, passed by value, for CUDA kernels. */
#ifndef BP_LOGPROB_WORK_H
#define BP_LOGPROB_WORK_H

#include <bucketpool/dtype.h>

#include "cp/sequences.h"

/* Rows are reduced in tiles of this many columns, each in a fixed order, and tiles are merged in a fixed order: result bits depend on data
 * and column only. */
#define BP_TILE_COLUMNS 2048u

/* Partial result of a shard's row: the largest x, and relative to it the sums of e = exp((x - max) * scale) and of e * (x - max) * scale; the
 * sum of x. A shard of only -inf: max -inf, sums 0, total -inf. x is the logit after rounding and soft cap. BP_SUM_BAD: this rank has a bad
 * target for the token, so that all ranks report it. */
typedef struct bp_partial {
    float max, sum, weighted, total;
} bp_partial;

#define BP_SUM_BAD (-1.0f) /* a sum of exponentials is never negative */

/* Tokens are [batch, sequence]; strides are in elements. A token has `targets` targets, `target_step` apart. */
typedef struct bp_tokens_work {
    uint64_t batch, sequence;
    const void *target;
    int64_t target_batch_stride, target_stride, target_step;
    uint32_t targets;     /* at most BP_MAX_TARGETS */
    int32_t target_is_64; /* 1: int64, 0: int32 */
    const uint8_t *mask;  /* NULL: no mask */
    int64_t mask_batch_stride, mask_stride;
    const float *temperature; /* of each token; NULL: `scale` */
    int64_t temperature_batch_stride, temperature_stride;
    float scale;         /* 1 / temperature */
    int32_t ignores;     /* 1: targets may be `ignored`; such a target has no result and no gradient */
    int64_t ignored;     /* a token whose targets are all ignored is masked */
    int64_t vocab_first; /* ids of the whole vocabulary: [first, first + vocab) */
    uint64_t vocab;
    /* The lowest bp_bad_target of the calls; UINT64_MAX: none. A token with a target outside the vocabulary becomes NaN. NULL: such a target
     * has the log-probability 0. Unused by gradients, where the statistics of the token are NaN. */
    uint64_t *bad;
} bp_tokens_work;

BP_DEVICE int bp_is_ignored(const bp_tokens_work *tokens, int64_t target)
{
    return tokens->ignores != 0 && target == tokens->ignored;
}

/* Distance of an id from the first; at least the number of ids for any id outside them, without overflow. */
BP_DEVICE uint64_t bp_behind(int64_t id, int64_t first)
{
    return (uint64_t)id - (uint64_t)first;
}

BP_DEVICE int bp_is_in_vocabulary(const bp_tokens_work *tokens, int64_t target)
{
    return bp_behind(target, tokens->vocab_first) < tokens->vocab;
}

/* 1 for a target that makes its token NaN. */
BP_DEVICE int bp_is_bad(const bp_tokens_work *tokens, int64_t target)
{
    return tokens->bad != 0 && !bp_is_in_vocabulary(tokens, target) && !bp_is_ignored(tokens, target);
}

/* A target to report, as one number, the lowest of which is the first token's: its index, and the distance of the id from the first, each in
 * 32 bits. Numbers that do not fit become the nearest that does. */
BP_DEVICE uint64_t bp_bad_target(uint64_t index, int64_t target, int64_t first)
{
    const uint64_t above = bp_behind(target, first), below = bp_behind(first, target);
    const uint64_t id = target >= first ? UINT64_C(0x80000000) + (above < 0x7fffffff ? above : 0x7fffffff)
                                        : UINT64_C(0x80000000) - (below < 0x80000000 ? below : 0x80000000);
    return (index < 0xfffffffe ? index : 0xfffffffe) << 32 | id;
}

#define BP_MAX_TARGETS 128u /* the threads of a CUDA block */

typedef struct bp_logits_work {
    const void *data;
    int64_t batch_stride, stride;
    uint64_t columns;
    int64_t first;    /* the id of column 0 */
    int32_t dtype;    /* a bp_dtype: fp32, bf16, fp16 */
    int32_t rounding; /* a bp_dtype to which each logit is rounded first; fp32: none */
    float cap;        /* then x = cap tanh(x / cap); 0: none */
} bp_logits_work;

/* Sums of a forward pass: each level includes those before. */
enum { BP_SUMS_PLAIN = 0, BP_SUMS_WEIGHTED = 1, BP_SUMS_TOTAL = 2 };

/* Saved statistics of the rows, as planes of [batch * sequence]. */
typedef struct bp_saved_work {
    float *max, *log_sum; /* NULL: not saved */
    float *energy;        /* E of logprob.h; NULL: without entropy */
} bp_saved_work;

/* An output of one fp32 per token, or `step` apart per target. NULL: not wanted. */
typedef struct bp_output_work {
    float *data;
    int64_t batch_stride, stride, step;
} bp_output_work;

/* An upstream gradient, as bp_output_work. NULL: 0. */
typedef struct bp_upstream_work {
    const float *data;
    int64_t batch_stride, stride, step;
} bp_upstream_work;

/* Results made of the sums over the whole vocabulary. */
typedef struct bp_results_work {
    bp_output_work logprob; /* per target */
    bp_output_work entropy, logsumexp, mean_logprob;
    bp_saved_work saved;
    uint64_t first_token; /* index of token 0 in the batch, for bp_bad_target */
} bp_results_work;

/* Logits to partials, [batch * sequence] contiguous, and to the logits of the targets, [batch * sequence, targets] contiguous (0 where a
 * target is outside this shard). Masked rows are not read; their partials are unused. `partials` NULL: the shard is the vocabulary, and
 * `results` are written instead. Host engines can `continue` a pass: the shard follows those whose sums are in `partials`, at a multiple of
 * BP_TILE_COLUMNS from the first column, which gives the bits of a pass over all of them. */
typedef struct bp_forward_work {
    bp_tokens_work tokens;
    bp_logits_work logits;
    int32_t level; /* BP_SUMS_...; sums above it are 0 */
    int32_t continues;
    bp_partial *partials;
    float *target_logits;
    bp_results_work results;
} bp_forward_work;

/* Partials and target logits of all ranks, in rank order, to results. */
typedef struct bp_finish_work {
    bp_tokens_work tokens;
    const bp_partial *partials; /* of rank 0 */
    const float *target_logits; /* of rank 0 */
    uint64_t rank_bytes;        /* between the ranks, for both; a multiple of 16 */
    uint32_t ranks;
    bp_results_work results;
} bp_finish_work;

/* Statistics and upstream gradients to the gradient of the logits. With g the upstream gradient of the log-probabilities, G its sum over the
 * targets, h, z and m those of entropy, logsumexp and mean_logprob, and d = (x - max) scale:
 *     scale (p (z - m - G + h (energy - d)) + m / vocab + sum of g[k] where target k is the column)
 * times 1 - (x / cap)^2 with a soft cap. `out` may be the logits (same dtype and strides). fp16 or bf16 `out` of fp32 logits may start where
 * their row starts (twice the stride in elements): writes stay behind reads. */
typedef struct bp_gradient_work {
    bp_tokens_work tokens;
    bp_logits_work logits;
    bp_saved_work saved;
    bp_upstream_work logprob; /* per target */
    bp_upstream_work entropy, logsumexp, mean_logprob;
    void *out;
    int64_t out_batch_stride, out_stride;
    int32_t out_dtype; /* a bp_dtype: fp32, bf16, fp16 */
    int32_t narrows_in_place;
} bp_gradient_work;

/* Both passes over the logits of one rank: the results of bp_forward_work without partials, and the gradient, with the bits of the separate
 * passes, but reading each row from memory once. Tokens, logits and the saved statistics of both parts are the same. */
typedef struct bp_fused_work {
    bp_forward_work forward;
    bp_gradient_work gradient;
} bp_fused_work;

/* ---- divergences from a reference -------------------------------------------------------------------------------- */

/* p and q are the distributions of logits and reference, m = (1 - beta) p + beta q. Sums over the columns of a shard: q log(q / m) and
 * p log(p / m), with m = p for beta 0 and m = q for beta 1, where the second and first are not needed and 0. [batch * sequence]. */
typedef struct bp_divergence_sums {
    float reference, logits;
} bp_divergence_sums;

/* The divergence is beta (sum of the reference) + (1 - beta) (sum of the logits); for beta 0 that of the reference alone, for beta 1 that of the
 * logits alone. Masked tokens: 0. */
typedef struct bp_divergence_results {
    bp_output_work divergence;
    float *kept; /* [batch * sequence]: KL(p || m), the sum of the logits, for the gradient */
} bp_divergence_results;

/* Statistics of both rows to sums. `sums` NULL: the shard is the vocabulary, and `results` are written instead. */
typedef struct bp_divergence_work {
    bp_tokens_work tokens;
    bp_logits_work logits, reference;            /* of one dtype and shape */
    bp_saved_work logits_saved, reference_saved; /* without energy */
    float beta;
    bp_divergence_sums *sums;
    bp_divergence_results results;
} bp_divergence_work;

/* Sums of all ranks to results. */
typedef struct bp_divergence_finish_work {
    bp_tokens_work tokens;
    const bp_divergence_sums *sums; /* rank r's begin at r * batch * sequence */
    uint32_t ranks;
    float beta;
    bp_divergence_results results;
} bp_divergence_finish_work;

/* Gradient of the logits: upstream * scale * (1 - beta) p (log(p / m) - kept); for beta 0 upstream * scale * (p - q), for beta 1 upstream * scale *
 * p (log(p / q) - kept); times 1 - (x / cap)^2 with a soft cap. `out` as in bp_gradient_work, but never narrowing in place. */
typedef struct bp_divergence_gradient_work {
    bp_tokens_work tokens;
    bp_logits_work logits, reference;
    bp_saved_work logits_saved, reference_saved;
    float beta;
    const float *kept;
    bp_upstream_work upstream;
    void *out;
    int64_t out_batch_stride, out_stride;
    int32_t out_dtype;
} bp_divergence_gradient_work;

/* ---- ranges and copies ------------------------------------------------------------------------------------------- */

/* The smallest and largest logit of each row; NaN if any is NaN. Masked rows are not read, and both are 0. */
typedef struct bp_range_work {
    bp_tokens_work tokens;
    bp_logits_work logits; /* rounding and cap are ignored */
    float *min;            /* NULL: not wanted */
    int64_t min_batch_stride, min_stride;
    float *largest; /* NULL: not wanted */
    int64_t largest_batch_stride, largest_stride;
} bp_range_work;

/* Copies rows of `from` to `to`; rows with mask 0 become zeros and are not read. The kernel determines the dtypes. */
typedef struct bp_rows_work {
    const void *from;
    int64_t from_stride;
    void *to;
    int64_t to_stride;
    uint64_t rows, columns;
    const uint8_t *mask; /* NULL: no mask. [batch, count]; row 0 has index `first` */
    int64_t mask_batch_stride, mask_stride;
    uint64_t mask_count, mask_first;
} bp_rows_work;

/* Column sums of fp32, bf16 or fp16 rows, in fp32 and row order. */
typedef struct bp_columns_work {
    const void *from;
    int64_t stride;
    uint64_t rows, columns;
    int32_t dtype; /* a bp_dtype */
    int32_t adds;  /* 1: added to `to`; 0: overwrites it */
    float *to;     /* [columns] */
} bp_columns_work;

/* ---- packed sequences -------------------------------------------------------------------------------------------- */

#define BP_FILL_BYTES 16

/* Writes the token, or the fill, to every place of the group in `to_order`. Bytes between tokens are not touched. */
typedef struct bp_rearrange_work {
    bp_sequence_group group;
    const void *from;
    void *to;
    int64_t from_stride, to_stride; /* bytes between tokens */
    uint64_t token_bytes;
    int32_t from_order, to_order, shift; /* a bp_cp_order, a bp_cp_shift */
    uint32_t word_bytes;                 /* 1, 2, 4, 8, 16: divides addresses, strides and token_bytes */
    uint8_t fill[BP_FILL_BYTES];         /* repeated in tokens without a source */
} bp_rearrange_work;

/* Lanes of a CUDA warp that move a token of `words` words: a power of two. */
BP_DEVICE uint32_t bp_lanes_of_token(uint64_t words)
{
    uint32_t lanes = 1;
    while (lanes < 32 && lanes < words)
        lanes *= 2;
    return lanes;
}

/* A lane of a CUDA warp moves dense tokens, which are words one after the other, as vectors of 16 bytes, this many at once. */
#define BP_VECTORS_AT_ONCE 4u

BP_DEVICE int bp_is_dense(const bp_rearrange_work *work)
{
    const int64_t bytes = (int64_t)work->word_bytes;
    return bytes < 16 && work->token_bytes == work->word_bytes && work->from_stride == bytes &&
           work->to_stride == bytes;
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

/* A sequence is summed in pieces of at least BP_SUMS_TOKENS local tokens, and the pieces are merged in their order. */
#define BP_SUMS_THREADS 512u /* per block of the CUDA kernels; a block sums a piece, and merges those of a sequence */
#define BP_SUMS_TOKENS 8192u
#define BP_SUMS_PIECES BP_SUMS_THREADS /* of a sequence, at most */

/* Sums over the local tokens of a sequence. Without valid tokens: zeros, +inf and -inf. */
typedef struct bp_loss_record {
    double logprob, entropy;
    uint64_t valid;
    float logit_min, logit_max; /* NaN if any is NaN */
} bp_loss_record;

/* Local tokens to records, one for each sequence of the group, including empty ones and dummies. A token is valid if its mask is not 0 and
 * it is data; values of other tokens are not read. Planes are in local order of the whole batch, strides in elements. Sums are fp64, in an
 * order that depends on the sequence's local length only. */
typedef struct bp_sums_work {
    bp_sequence_group group;
    const uint8_t *mask;
    const float *logprob, *entropy, *logit_min, *logit_max; /* NULL: absent, the record has 0, +inf or -inf */
    int64_t mask_stride, logprob_stride, entropy_stride, logit_min_stride, logit_max_stride;
    bp_loss_record *records; /* [group.count] */
    bp_loss_record *pieces;  /* scratch: of sequences with several pieces; indexed like all pieces of the group */
    uint32_t first_piece[BP_GROUP_SEQUENCES + 1];
} bp_sums_work;

/* Local tokens [begin, end) of a sequence, and the place of their sums. */
typedef struct bp_sums_piece {
    uint32_t sequence;
    uint64_t begin, end;
    bp_loss_record *record;
} bp_sums_piece;

BP_DEVICE uint64_t bp_local_tokens(const bp_sequence_group *group, uint32_t sequence)
{
    return (group->padded[sequence + 1] - group->padded[sequence]) / group->ranks;
}

/* Depends on the number of local tokens only. A sequence without tokens has a piece, too. */
BP_DEVICE uint32_t bp_sums_pieces(uint64_t tokens)
{
    const uint64_t pieces = tokens / BP_SUMS_TOKENS + (tokens % BP_SUMS_TOKENS != 0 ? 1 : 0);
    return pieces == 0 ? 1 : pieces < BP_SUMS_PIECES ? (uint32_t)pieces : BP_SUMS_PIECES;
}

BP_DEVICE bp_sums_piece bp_sums_piece_at(const bp_sums_work *work, uint32_t number)
{
    uint32_t first = 0, end = work->group.count;
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (work->first_piece[middle] <= number)
            first = middle;
        else
            end = middle;
    }
    const uint32_t count = work->first_piece[first + 1] - work->first_piece[first];
    const uint64_t tokens = bp_local_tokens(&work->group, first), each = tokens / count + (tokens % count != 0 ? 1 : 0);
    const uint64_t begin = bp_lesser((number - work->first_piece[first]) * each, tokens);
    bp_sums_piece piece;
    piece.sequence = first;
    piece.begin = begin;
    piece.end = bp_lesser(begin + each, tokens);
    piece.record = count == 1 ? work->records + first : work->pieces + number;
    return piece;
}

/* Seeds of the group's local tokens: `value` where a token is valid, else 0. */
typedef struct bp_seed_work {
    bp_sequence_group group;
    const uint8_t *mask;
    float *seed;
    int64_t mask_stride, seed_stride;
    float value;
} bp_seed_work;

#endif
