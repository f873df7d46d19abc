/** @file
 * The fused language-model head: log-probabilities and entropies from hidden states and the head's weight, without ever storing the
 * logits. In the library bucketpool-logprob; definitions, views, targets, streams, threads and capture as in logprob.h.
 *
 *   forward    chunk by chunk: logits = hidden W^T / T into a workspace, partial sums of it; one exchange for all tokens at the end
 *   backward   chunk by chunk: logits again, their gradient d in the same memory, hidden_grad = d W / T, weight_grad += d^T hidden / T
 *
 * Two chunk workspaces take turns, so that the matrix product of a chunk runs beside the kernels of its neighbour. They and all other
 * workspaces are requests of a plan, served by a pool. Memory is hidden + weight + gradients + two chunks of logits in fp32 + what
 * bp_lm_head_info counts as `other_bytes`, whatever the number of tokens.
 *
 * Products are cuBLAS's on cuda (loaded at run time, inputs in their dtype, sums in fp32) and the BLAS library's on the host (bf16 and
 * fp16 are widened panel by panel, sums in fp32). On cuda d is rounded to the weight's dtype before its products, on the host it is not.
 *
 * Bits: the same from run to run for the same chunk size, BLAS and threads; within rounding across chunk sizes.
 *
 * Sources: SkyRL's chunked log-probabilities and Apple's Cut Cross-Entropy (arXiv 2411.09009) for not storing logits. */
#ifndef BUCKETPOOL_LM_HEAD_H
#define BUCKETPOOL_LM_HEAD_H

#include <bucketpool/logprob.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_lm_head bp_lm_head;

typedef struct bp_lm_head_config {
    size_t size;
    uint64_t max_tokens; /**< of one call: batch x sequence */
    uint64_t hidden;     /**< columns of hidden states and weight */
    uint64_t vocab;      /**< rows of this rank's shard of the weight; at most 2^30 */
    uint64_t vocab_start;
    bp_dtype dtype; /**< of hidden states and weight: fp32, bf16 or fp16 */
    int64_t
        chunk; /**< tokens along the sequence in one piece, or several short sequences of as many; 0: a whole sequence of max_tokens */
    bp_comm *comm; /**< as in bp_logprob_config */
    bp_targets targets;
    uint32_t threads;
    uint32_t kernels;
    int32_t forward_only; /**< 1: no workspaces for backward */
    int32_t
        partial_hidden_grad; /**< 1: hidden_grad stays this rank's part, for callers that reduce it themselves; 0: summed over ranks */
} bp_lm_head_config;

/** Chunks of 1024 tokens, whole vocabulary, bf16, one rank, any targets. */
BP_API bp_status bp_lm_head_config_init(bp_lm_head_config *config, size_t size);

/** Collective with a communicator. Errors as bp_logprob_create; BP_ERR_INVALID_ARGUMENT (no hidden size, a negative chunk; hidden, vocab or
 * tokens of a chunk above 2^30 - 1);
 * BP_ERR_UNSUPPORTED (a build without BLAS, a machine without cuBLAS: the detail tells what was looked for). The caller owns the
 * head: bp_lm_head_destroy. */
BP_API bp_status bp_lm_head_create(bp_device *device, const bp_lm_head_config *config, bp_lm_head **head);
BP_API void bp_lm_head_destroy(bp_lm_head **head);

typedef struct bp_lm_head_info {
    const char *kernels;      /**< as in bp_logprob_info */
    const char *products;     /**< "cblas", "cublas" */
    uint32_t threads;         /**< of the kernels */
    uint64_t chunk_bytes;     /**< of one chunk workspace; there are two, one where one chunk is all */
    uint64_t other_bytes;     /**< partial sums, widened panels, memory that cuBLAS works in */
    uint64_t workspace_bytes; /**< all of them */
    uint64_t planned_bytes;   /**< of workspaces, as their plan says */
    uint64_t vocab;           /**< of all ranks together */
    bp_pool *pool;            /**< as in bp_logprob_info */
} bp_lm_head_info;

/** Lives as long as the head and never changes. NULL for NULL. Any thread. */
BP_API const bp_lm_head_info *bp_lm_head_get_info(const bp_lm_head *head);

typedef struct bp_lm_head_batch {
    size_t size;
    bp_token_rows hidden;  /**< [batch, sequence, hidden] in the config's dtype */
    const void *weight;    /**< [vocab, hidden] in the config's dtype */
    int64_t weight_stride; /**< between rows; 0: without gaps */
    bp_token_values target;
    bp_dtype target_dtype;
    bp_token_values
        mask; /**< as in bp_logprob_batch: such a token's outputs and gradients are 0. Its hidden state may be anything, on cuda
                             anything finite */
    float temperature;
} bp_lm_head_batch;

/** The defaults. size: sizeof of the struct. */
BP_API bp_status bp_lm_head_batch_init(bp_lm_head_batch *batch, size_t size);

/** As bp_logprob_forward; `saved` likewise. */
BP_API bp_status bp_lm_head_forward(bp_lm_head *head, const bp_lm_head_batch *batch, const bp_logprob_outputs *outputs,
                                    bp_stream *stream);

typedef struct bp_lm_head_gradients {
    size_t size;
    bp_token_values logprob_grad; /**< as in bp_logprob_gradients */
    bp_token_values entropy_grad;
    const void *saved;
    uint64_t saved_bytes;
    bp_token_rows hidden_grad;  /**< fp32 or the config's dtype; data NULL: not wanted */
    void *weight_grad;          /**< fp32 [vocab, hidden]; NULL: not wanted */
    int64_t weight_grad_stride; /**< between rows; 0: without gaps */
    int32_t accumulate;         /**< 1: weight_grad is added to, 0: overwritten. hidden_grad is always overwritten */
} bp_lm_head_gradients;

/** fp32 gradients, overwritten. */
BP_API bp_status bp_lm_head_gradients_init(bp_lm_head_gradients *gradients, size_t size);

/** Enqueues the gradients of both; with several ranks hidden_grad is summed over them (collective: all ranks want it, in one dtype, of batches
 * of one shape) unless the config says otherwise. The sum is of fp32 and rounded once on the host; on cuda it is of hidden_grad's dtype.
 * Errors as bp_logprob_backward; BP_ERR_SCHEDULE (a head made for forward only). */
BP_API bp_status bp_lm_head_backward(bp_lm_head *head, const bp_lm_head_batch *batch,
                                     const bp_lm_head_gradients *gradients, bp_stream *stream);

/** As bp_logprob_check. */
BP_API bp_status bp_lm_head_check(bp_lm_head *head);

#ifdef __cplusplus
}
#endif
#endif
