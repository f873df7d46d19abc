/* Kernel arguments as plain values: the same structures for host kernels and, passed by value, for CUDA kernels. */
#ifndef BP_LOGPROB_WORK_H
#define BP_LOGPROB_WORK_H

#include <bucketpool/dtype.h>

#include "logprob/cp/sequences.h"

/* Rows are reduced in tiles of this many columns, each in a fixed order, and tiles are merged in a fixed order: result bits depend on data
 * and column only. */
#define BP_TILE_COLUMNS 2048u

/* Partial result of a shard's row: the largest x, and relative to it the sums of e = exp((x - max) * scale) and of e * (x - max) * scale. A
 * shard of only -inf: max -inf, sums 0. `target`: x of the target if it is in the shard, else 0. */
typedef struct bp_partial {
    float max, sum, weighted, target;
} bp_partial;

/* Tokens are [batch, sequence]; strides are in elements. */
typedef struct bp_tokens_work {
    uint64_t batch, sequence;
    const void *target;
    int64_t target_batch_stride, target_stride;
    int32_t target_is_64; /* 1: int64, 0: int32 */
    int32_t has_mask;
    const uint8_t *mask;
    int64_t mask_batch_stride, mask_stride;
} bp_tokens_work;

typedef struct bp_logits_work {
    const void *data;
    int64_t batch_stride, stride;
    uint64_t columns;
    int64_t first; /* the id of column 0 */
    int32_t dtype; /* a bp_dtype: fp32, bf16, fp16 */
    float scale;   /* 1 / temperature */
} bp_logits_work;

/* Logits to partials, [batch * sequence] contiguous. Masked rows are not read; their partials are unused. */
typedef struct bp_partials_work {
    bp_tokens_work tokens;
    bp_logits_work logits;
    bp_partial *partials;
    int32_t with_entropy; /* 0: `weighted` is not computed, and is 0 */
} bp_partials_work;

/* Saved statistics of the rows, as planes of [batch * sequence]. */
typedef struct bp_saved_work {
    float *max, *log_sum; /* NULL: not saved */
    float *energy;        /* E of logprob.h; NULL: without entropy */
} bp_saved_work;

/* The first target outside the vocabulary: the lowest token and its value. `token` is UINT64_MAX while there is none. */
typedef struct bp_bad_target {
    uint64_t token;
    int64_t value;
} bp_bad_target;

/* Partials of all ranks, in rank order, to outputs and statistics. */
typedef struct bp_finish_work {
    bp_tokens_work tokens;
    const bp_partial *partials; /* rank r's begin at r * batch * sequence */
    uint32_t ranks;
    float scale;
    int64_t vocab_first; /* ids of the whole vocabulary: [first, first + vocab) */
    uint64_t vocab;
    float *logprob; /* NULL: not wanted */
    int64_t logprob_batch_stride, logprob_stride;
    float *entropy; /* NULL: not wanted */
    int64_t entropy_batch_stride, entropy_stride;
    bp_saved_work saved;
    bp_bad_target *bad; /* NULL: targets are not checked */
} bp_finish_work;

/* Statistics and upstream gradients to the gradient of the logits: scale * (g ([v = t] - p) + h p (energy - (x - max) scale)). `out` may be
 * the logits (same dtype and strides). fp16 or bf16 `out` of fp32 logits may start where their row starts (twice the stride in elements):
 * writes stay behind reads. */
typedef struct bp_gradient_work {
    bp_tokens_work tokens;
    bp_logits_work logits;
    bp_saved_work saved;
    const float *logprob_grad; /* g; NULL: 0 */
    int64_t logprob_grad_batch_stride, logprob_grad_stride;
    const float *entropy_grad; /* h; NULL: 0 */
    int64_t entropy_grad_batch_stride, entropy_grad_stride;
    void *out;
    int64_t out_batch_stride, out_stride;
    int32_t out_dtype; /* a bp_dtype: fp32, bf16, fp16 */
    int32_t narrows_in_place;
} bp_gradient_work;

/* The smallest and largest logit of each row; NaN if any is NaN. Masked rows are not read, and both are 0. */
typedef struct bp_range_work {
    bp_tokens_work tokens;
    bp_logits_work logits; /* the scale is ignored */
    float *least;          /* NULL: not wanted */
    int64_t least_batch_stride, least_stride;
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

/* ---- losses ------------------------------------------------------------------------------------------------------ */

#define BP_SUMS_THREADS 512u /* per block of the CUDA kernel; a block takes a sequence */

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
} bp_sums_work;

/* Seeds of the group's local tokens: `value` where a token is valid, else 0. */
typedef struct bp_seed_work {
    bp_sequence_group group;
    const uint8_t *mask;
    float *seed;
    int64_t mask_stride, seed_stride;
    float value;
} bp_seed_work;

#endif
