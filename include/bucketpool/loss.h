/** @file
 * The loss of packed sequences and its statistics, each rank on its own tokens: the same numbers however the ranks are arranged. In the
 * library bucketpool-logprob.
 *
 * With log-probabilities lp of the next token and a mask, over all tokens of all data-parallel (DP) and context-parallel (CP) ranks:
 *
 *   loss = - sum(lp mask) / (epsilon + n),  n = sum(mask)
 *
 * Nobody gathers logits or log-probabilities. Every rank sums up its tokens, sequence by sequence, in fp64; one exchange of these sums
 * brings all statistics to all ranks, where numerators and denominators are added up before anything is divided. Tensor-parallel (TP) ranks
 * have the same tokens, which are counted once; only the least and the largest logit are asked of all of them. Padding and dummy
 * sequences never count, whatever the mask says there.
 *
 *   perplexity of a sequence   exp(- sum(lp mask) / n) over all its tokens, on whichever ranks they are; the statistic is the mean over
 *                              sequences that have any
 *   entropy                    sum(H mask) / n
 *
 * Gradients. Runtimes average them over DP x CP ranks, and each rank's loss holds only its own tokens, so the upstream gradient of a
 * log-probability is - mask DP CP / (epsilon + n): averaging then gives the gradient of the loss above. Without a token n is 0, and so are
 * loss and gradients.
 *
 * A step is bp_loss_begin, bp_loss_add for each micro-batch, bp_loss_reduce. Micro-batches whose backward comes before the last forward
 * need n earlier: add their masks alone and reduce, or hand over a count that is known (bp_loss_count_set); then seeds need no exchange.
 *
 * Thread safety: one call at a time per client. Streams: as logprob.h; calls on different streams are ordered by the client. Capture: only
 * bp_loss_seed may be captured; others say BP_ERR_CAPTURE, and the step has failed.
 *
 * Sources: AReaL's loss with its epsilon, and its pull requests 1223, 1242 and 1249 for what goes wrong when statistics are made of one
 * CP rank's slice. */
#ifndef BUCKETPOOL_LOSS_H
#define BUCKETPOOL_LOSS_H

#include <bucketpool/cp.h>
#include <bucketpool/logprob.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_loss bp_loss;

/** What the runtime does with gradients of DP x CP ranks. */
typedef enum bp_loss_gradients { BP_LOSS_AVERAGED = 1, BP_LOSS_SUMMED = 2 } bp_loss_gradients;

typedef struct bp_loss_config {
    size_t size;
    uint32_t tp, cp, dp; /**< ranks of each kind of parallelism */
    uint32_t tp_rank, cp_rank, dp_rank;
    bp_comm *
        comm; /**< of all tp x cp x dp ranks, in any order; must outlive the client. NULL: one rank. For a denominator of its own
                      for each DP rank: that of tp x cp ranks, and dp 1 */
    uint64_t max_sequences; /**< at least 1: added between begin and reduce, dummies included; equal on all ranks */
    double epsilon;         /**< 0 or more; equal on all ranks */
    bp_loss_gradients gradients;
    uint32_t threads; /**< host: as in bp_logprob_config */
} bp_loss_config;

/** One rank, epsilon 1e-5, averaged. */
BP_API bp_status bp_loss_config_init(bp_loss_config *config, size_t size);

/** With a communicator collective: the ranks compare what they are made with, and a rank that fails makes all fail. Nothing is
 * allocated later. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_MISMATCH (the communicator has not tp x cp x dp ranks, two ranks have one place,
 * configurations differ: names the ranks), BP_ERR_UNSUPPORTED (a device without kernels, more than 65536 ranks), BP_ERR_OVERFLOW,
 * BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM. The caller owns the client: bp_loss_destroy. */
BP_API bp_status bp_loss_create(bp_device *device, const bp_loss_config *config, bp_loss **loss);
/** Waits for its work. Accepts NULL and pointers to NULL; sets *loss to NULL. */
BP_API void bp_loss_destroy(bp_loss **loss);

/* ---- a step -------------------------------------------------------------------------------------------------------- */

/** Forgets what was added, and errors. What the last reduce made stays until the next. */
BP_API bp_status bp_loss_begin(bp_loss *loss);

/** Of the tokens of a micro-batch, in local order; strides along the sequence, batch strides are not looked at. */
typedef struct bp_loss_values {
    size_t size;
    uint64_t tokens;                      /**< must be the split's local_tokens */
    bp_token_values mask;                 /**< uint8, 0: not in the loss; shifted like the targets. There must be one */
    bp_token_values logprob;              /**< fp32; NULL: only tokens are counted */
    bp_token_values entropy;              /**< fp32; NULL: none */
    bp_token_values logit_min, logit_max; /**< fp32, of bp_logprob_range; NULL: none */
} bp_loss_values;

/** The defaults. size: sizeof of the struct. */
BP_API bp_status bp_loss_values_init(bp_loss_values *values, size_t size);

/** Enqueues the sums of a micro-batch. Not collective. The same values must be there in all micro-batches, on all ranks. Errors:
 * BP_ERR_INVALID_ARGUMENT (another number of tokens than the split's, no mask, a split of other CP ranks, more than max_sequences,
 * values that are not aligned or others than in the micro-batch before), BP_ERR_OVERFLOW (strides), what the device reports; bp_loss_reduce
 * tells the other ranks. */
BP_API bp_status bp_loss_add(bp_loss *loss, const bp_cp_split *split, const bp_loss_values *values, bp_stream *stream);

/** Collective: whether all ranks fared well until here, in bp_loss_add and by `status`; else all get the status and the words of one that
 * did not, now and from bp_loss_reduce until the next begin. To be called before other collectives (the forward pass of TP ranks), where
 * nobody should wait for a rank that has failed. A small exchange of host memory; waits for no work. Not while capturing. Errors: those of the
 * rank that failed; BP_ERR_COMM, BP_ERR_TIMEOUT. */
BP_API bp_status bp_loss_agree(bp_loss *loss, bp_status status);

/** Collective, and the only exchange that a step needs: all ranks call it, those that failed, too. `status`: how this rank fared until here, anywhere
 * (in its loader, its rearrangements, its forward pass); BP_OK as a rule. Waits for the sums. Where one rank failed, here, in bp_loss_add
 * or by what `status` says, all get that status and a sentence that names it, with the last words recorded on its thread (bp_error_record for
 * one's own); then there are no statistics, and seeds are 0.
 * Errors: BP_ERR_MISMATCH (CP or TP ranks of one DP rank added other batches; TP ranks other masks or values, as counts and sums tell; ranks
 * values of other kinds: names two ranks), what a rank failed with, BP_ERR_COMM. */
BP_API bp_status bp_loss_reduce(bp_loss *loss, bp_status status, bp_stream *stream);

/** Tokens that count in all, where the caller knows: instead of a reduce before seeds. The same on all ranks. Not collective; at any
 * time. Errors: BP_ERR_INVALID_ARGUMENT (NULL). */
BP_API bp_status bp_loss_count_set(bp_loss *loss, uint64_t valid);

/** Enqueues upstream gradients for bp_logprob_backward: seed = factor mask DP CP / (epsilon + n), without DP CP where gradients are summed.
 * `factor`: -1 for log-probabilities; - c for entropies where - c sum(H mask) / (epsilon + n) is added to the loss. n is of the last reduce or
 * bp_loss_count_set, in a graph that of the capture. `mask` as in bp_loss_values, `seed` fp32; both of `tokens` local tokens; every one is
 * written. Errors: as bp_loss_add; BP_ERR_SCHEDULE (n is not known yet). */
BP_API bp_status bp_loss_seed(bp_loss *loss, const bp_cp_split *split, uint64_t tokens, const bp_token_values *mask,
                              float factor, const bp_token_values *seed, bp_stream *stream);

/* ---- statistics ---------------------------------------------------------------------------------------------------- */

/** Of all ranks. Sums come with what they are to be divided by, so that statistics of several steps can be merged. */
typedef struct bp_loss_statistics {
    size_t size;
    uint64_t sequences; /**< without dummies */
    uint64_t tokens;    /**< without padding and dummies */
    uint64_t valid;     /**< n: those whose mask is not 0 */
    double logprob_sum, entropy_sum;
    double perplexity_sum;         /**< over sequences with log-probabilities of valid tokens, */
    uint64_t perplexity_sequences; /**< of which there are so many */
    double logit_min, logit_max;   /**< of valid tokens; +inf and -inf where there are none, NaN where one is */
    double epsilon;
    double loss, entropy, perplexity; /**< the quotients; 0 where the denominator is */
} bp_loss_statistics;

/** Of nothing: what others are merged into. */
BP_API bp_status bp_loss_statistics_init(bp_loss_statistics *statistics, size_t size);

/** Of the last reduce. Errors: BP_ERR_SCHEDULE (there was none, or it failed). */
BP_API bp_status bp_loss_statistics_get(const bp_loss *loss, bp_loss_statistics *statistics);

/** Adds those of another step: the loss of an evaluation over many steps, every token with the same weight, and the epsilon in it
 * once. Takes the epsilon from `step`. Errors: BP_ERR_OVERFLOW. */
BP_API bp_status bp_loss_statistics_merge(const bp_loss_statistics *step, bp_loss_statistics *total);

/** A sequence of this DP rank, all its CP ranks together. */
typedef struct bp_loss_sequence {
    uint64_t valid;
    double logprob_sum, entropy_sum;
    double perplexity; /**< 0 without valid tokens */
} bp_loss_sequence;

typedef struct bp_loss_info {
    bp_pool *pool;                     /**< serves the workspace. Not a reference */
    const bp_loss_sequence *sequences; /**< of the last reduce, in the order they were added, without dummies */
    uint64_t sequence_count;           /**< 0: there was no reduce, or it failed */
} bp_loss_info;

/** Lives as long as the client; bp_loss_reduce changes the sequences. NULL for NULL. */
BP_API const bp_loss_info *bp_loss_get_info(const bp_loss *loss);

#ifdef __cplusplus
}
#endif
#endif
