/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The loss of packed sequences and its statistics, from the local tokens of each rank: the same numbers for every
 * arrangement of ranks. In the library bucketpool-logprob.
 *
 * With log-probabilities lp of the next token and a mask, over all tokens of all data-parallel (DP) and
 * context-parallel (CP) ranks:
 * @verbatim
 * loss                       - sum(lp mask) / (epsilon + n),  n = sum(mask)
 * entropy                    sum(H mask) / n
 * perplexity of a sequence   exp(- sum(lp mask) / n) over its tokens on all ranks; the statistic is the mean
 *                            over sequences with tokens in the mask
 * @endverbatim
 *
 * No rank gathers logits or log-probabilities. Every rank sums its tokens for each sequence in fp64. One exchange of
 * these sums gives all statistics to all ranks; numerators and denominators are added before any division.
 * Tensor-parallel (TP) ranks have the same tokens, which count once; only the smallest and largest logit are reduced
 * over all of them. Padding and dummy sequences never count, whatever the mask says.
 *
 * Gradients: runtimes average them over DP x CP ranks, and the loss of a rank covers only its tokens. So the upstream
 * gradient of a log-probability is - mask DP CP / (epsilon + n), and averaging gives the gradient of the loss above.
 * If n is 0, loss and gradients are 0.
 * @code
 * bp_loss_begin(loss);
 * bp_loss_add(loss, split, &values, stream);  // for each micro-batch
 * bp_loss_reduce(loss, BP_OK, stream);        // the only exchange of a step
 * bp_loss_seed(loss, split, tokens, &mask, -1, &seed, stream);
 * @endcode
 *
 * If the backward of a micro-batch comes before the last forward, n is needed earlier: add the masks alone and
 * reduce, or set a known count (bp_loss_count_set), after which seeds need no exchange.
 *
 * Thread safety: one call at a time for a client. Streams: as logprob.h; the client orders calls on different
 * streams. Capture: only bp_loss_seed; other calls are BP_ERR_CAPTURE, and the step has failed.
 *
 * Sources: the loss of AReaL with its epsilon; its pull requests 1223, 1242 and 1249 for statistics that were wrong
 * because they covered one CP rank. */
#ifndef BUCKETPOOL_LOSS_H
#define BUCKETPOOL_LOSS_H

#include <bucketpool/cp.h>
#include <bucketpool/logprob.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_loss bp_loss;

/** The runtime's reduction of gradients over DP x CP ranks. */
typedef enum bp_loss_gradients { BP_LOSS_AVERAGED = 1, BP_LOSS_SUMMED = 2 } bp_loss_gradients;

typedef struct bp_loss_config {
    size_t size;
    uint32_t tp, cp, dp; /**< ranks of each kind of parallelism */
    uint32_t tp_rank, cp_rank, dp_rank;
    /** communicator of all tp x cp x dp ranks, in any order; must outlive the client. NULL: one rank. For a separate
     * denominator on each DP rank: the communicator of its tp x cp ranks, and dp 1 */
    bp_comm *comm;
    /** sequences between begin and reduce, dummies included; at least 1, equal on all ranks */
    uint64_t max_sequences;
    double epsilon; /**< 0 or more; equal on all ranks */
    bp_loss_gradients gradients;
    uint32_t threads; /**< host: as in bp_logprob_config */
} bp_loss_config;

/** Sets the defaults: one rank, epsilon 1e-5, averaged gradients. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_loss_config_init(bp_loss_config *config, size_t size);

/** Creates a client. Collective with a communicator: the ranks compare their configurations, and an error of one rank
 * is an error of all. Nothing is allocated later. The caller owns the client: bp_loss_destroy.
 *
 * Errors: BP_ERR_MISMATCH (the communicator does not have tp x cp x dp ranks, two ranks have the same coordinates, or
 * configurations differ: the message names the ranks), BP_ERR_UNSUPPORTED (a device without kernels, more than 65536
 * ranks), BP_ERR_INVALID_ARGUMENT, BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM. */
BP_API bp_status bp_loss_create(bp_device *device, const bp_loss_config *config, bp_loss **loss);
/** Waits for the work of the client and destroys it. Accepts NULL and a pointer to NULL; sets *loss to NULL. */
BP_API void bp_loss_destroy(bp_loss **loss);

/* ---- a step -------------------------------------------------------------------------------------------------------- */

/** Begins a step: drops added values and errors. The results of the last reduce stay until the next one. */
BP_API bp_status bp_loss_begin(bp_loss *loss);

/** Values of the tokens of a micro-batch, in local order. Strides are along the sequence; batch strides are ignored. */
typedef struct bp_loss_values {
    size_t size;
    uint64_t tokens;                      /**< must be the split's local_tokens */
    bp_token_values mask;                 /**< uint8; 0: not in the loss. Shifted like the targets. Required */
    bp_token_values logprob;              /**< fp32; NULL: tokens are only counted */
    bp_token_values entropy;              /**< fp32; NULL: none */
    bp_token_values logit_min, logit_max; /**< fp32, of bp_logprob_range; NULL: none */
} bp_loss_values;

/** Sets the defaults: no values. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_loss_values_init(bp_loss_values *values, size_t size);

/** Enqueues the sums of a micro-batch. Not collective. The same kinds of values must be present in all micro-batches,
 * on all ranks.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (tokens that differ from the split, no mask, a split of other CP ranks, more than
 * max_sequences, misaligned values, other kinds of values than in the last micro-batch), BP_ERR_OVERFLOW (strides),
 * errors of the device. bp_loss_reduce reports the error to the other ranks. */
BP_API bp_status bp_loss_add(bp_loss *loss, const bp_cp_split *split, const bp_loss_values *values, bp_stream *stream);

/** Collective status agreement: returns BP_OK if no rank has failed in bp_loss_add or passes an error as `status`.
 * Otherwise all ranks get the status and message of one that failed, now and from bp_loss_reduce until the next
 * bp_loss_begin. Call it before other collectives (the forward pass of TP ranks), so that no rank waits for one that
 * has failed. A small exchange of host memory; waits for no work. Not during a capture.
 *
 * Errors: those of the rank that failed; BP_ERR_COMM, BP_ERR_TIMEOUT. */
BP_API bp_status bp_loss_agree(bp_loss *loss, bp_status status);

/** Collective, the only exchange of a step. Waits for the sums of all ranks and computes the statistics. All ranks
 * call it, also those that have failed: `status` is BP_OK, or the error of this rank in any earlier part of the step
 * (loader, rearrangement, forward pass). If a rank has failed, all ranks get its status and a message that names it,
 * with the last message of its thread (bp_error_record sets one); there are no statistics, and seeds are 0.
 *
 * Errors: BP_ERR_MISMATCH (CP or TP ranks of one DP rank added different batches, TP ranks added different masks or
 * values as counts and sums show, or ranks added different kinds of values: the message names two ranks), the error
 * of a failed rank, BP_ERR_COMM. */
BP_API bp_status bp_loss_reduce(bp_loss *loss, bp_status status, bp_stream *stream);

/** Sets n, the number of tokens in the mask on all ranks, if the caller knows it: then seeds need no reduce before.
 * The same on all ranks. Not collective; at any time. Errors: BP_ERR_INVALID_ARGUMENT (NULL). */
BP_API bp_status bp_loss_count_set(bp_loss *loss, uint64_t valid);

/** Enqueues upstream gradients for bp_logprob_backward: seed = factor mask DP CP / (epsilon + n), without DP CP if
 * gradients are summed. `factor` is -1 for log-probabilities, and -c for entropies if - c sum(H mask) / (epsilon + n)
 * is part of the loss. n is that of the last reduce or bp_loss_count_set; a graph keeps the n of its capture. `mask`
 * as in bp_loss_values; `seed` is fp32. Both have `tokens` local tokens, and all of `seed` is written.
 *
 * Errors: as bp_loss_add; BP_ERR_SCHEDULE (n is not known yet). */
BP_API bp_status bp_loss_seed(bp_loss *loss, const bp_cp_split *split, uint64_t tokens, const bp_token_values *mask,
                              float factor, const bp_token_values *seed, bp_stream *stream);

/* ---- statistics ---------------------------------------------------------------------------------------------------- */

/** Statistics of all ranks. Each sum has its denominator, so that statistics of several steps can be merged. */
typedef struct bp_loss_statistics {
    size_t size;
    uint64_t sequences; /**< without dummy sequences */
    uint64_t tokens;    /**< without padding and dummies */
    uint64_t valid;     /**< n: tokens in the mask */
    double logprob_sum, entropy_sum;
    double perplexity_sum;         /**< sum over sequences with log-probabilities of valid tokens */
    uint64_t perplexity_sequences; /**< number of these sequences */
    /** of valid tokens; +inf and -inf without valid tokens, NaN if one is NaN */
    double logit_min, logit_max;
    double epsilon;
    double loss, entropy, perplexity; /**< quotients; 0 if the denominator is 0 */
} bp_loss_statistics;

/** Sets empty statistics, into which others are merged. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_loss_statistics_init(bp_loss_statistics *statistics, size_t size);

/** Copies the statistics of the last reduce. Errors: BP_ERR_SCHEDULE (no reduce yet, or it failed). */
BP_API bp_status bp_loss_statistics_get(const bp_loss *loss, bp_loss_statistics *statistics);

/** Adds the statistics of `step` to `total`, as for an evaluation over many steps. Every token has the same weight,
 * and epsilon counts once; it is taken from `step`. Errors: BP_ERR_OVERFLOW. */
BP_API bp_status bp_loss_statistics_merge(const bp_loss_statistics *step, bp_loss_statistics *total);

/** Statistics of a sequence of this DP rank, over all CP ranks. */
typedef struct bp_loss_sequence {
    uint64_t valid;
    double logprob_sum, entropy_sum;
    double perplexity; /**< 0 without valid tokens */
} bp_loss_sequence;

typedef struct bp_loss_info {
    bp_pool *pool; /**< pool of the workspace; borrowed */
    /** results of the last reduce, in the order of addition, without dummies */
    const bp_loss_sequence *sequences;
    uint64_t sequence_count; /**< 0 if there was no reduce or it failed */
} bp_loss_info;

/** Properties and results of a client. Lives as long as the client; bp_loss_reduce changes the sequences. NULL for
 * NULL. */
BP_API const bp_loss_info *bp_loss_get_info(const bp_loss *loss);

#ifdef __cplusplus
}
#endif
#endif
