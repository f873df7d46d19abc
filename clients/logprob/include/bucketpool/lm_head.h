/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The fused language-model head: log-probabilities and entropies from hidden states and the weight of the head,
 * without storing the logits. In the library bucketpool-logprob. Definitions, views, targets, streams, threads and
 * captures as in logprob.h.
 * @verbatim
 * forward    for each chunk: logits = hidden W^T + bias into a workspace, their sums; one exchange for all tokens at the end
 * backward   for each chunk: logits again, their gradient d in the same memory,
 *            hidden_grad = d W, weight_grad += d^T hidden, bias_grad += sum of d over tokens
 * @endverbatim
 *
 * On cuda two chunk workspaces alternate, so that the matrix product of a chunk runs beside the kernels of its neighbour.
 * On the host a chunk is taken in tiles of 2048 columns or more, so that the logits stay in the caches: one workspace of
 * about 8 MiB. All workspaces are requests of a plan, served by a pool. The memory is hidden states + weight +
 * gradients + chunks of fp32 logits + bp_lm_head_info.other_bytes.
 *
 * Products use cuBLAS on cuda and BLAS on the host, both loaded at run time, with sums in fp32:
 * @verbatim
 *                                        hidden states, weight        d
 * cuda                                   in their dtype               rounded to the dtype of the weight
 * host                                   widened tile by tile         fp32
 * host, bf16, with a bf16 product        in place                     the sum of two bf16 numbers: 16 bits
 * @endverbatim
 * A bf16 product is that of MKL (also PyTorch's), used on Intel processors with AMX-BF16 or AVX512-BF16. The BLAS
 * library is the first of: one linked into the process, that of a loaded libtorch_cpu.so, libopenblas.so.0,
 * libblis.so.4, libmkl_rt.so.2, libblas.so.3, loaded ones first.
 *
 * Determinism: the same results in every run with the same chunk size, BLAS and threads; equal within rounding for
 * other chunk sizes.
 *
 * Sources: chunked log-probabilities of SkyRL, and Cut Cross-Entropy of Apple (arXiv 2411.09009), for not storing
 * logits. */
#ifndef BUCKETPOOL_LM_HEAD_H
#define BUCKETPOOL_LM_HEAD_H

#include <bucketpool/logprob.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_lm_head bp_lm_head;

typedef struct bp_lm_head_config {
    size_t size;
    uint64_t max_tokens;  /**< tokens (batch x sequence) of a call, at most */
    uint32_t max_targets; /**< as in bp_logprob_config */
    uint64_t hidden;      /**< columns of hidden states and weight */
    uint64_t vocab;       /**< rows of the shard of the weight on this rank; at most 2^30 */
    uint64_t vocab_start;
    bp_dtype dtype; /**< dtype of hidden states and weight: fp32, bf16 or fp16 */
    /** tokens in each chunk: a part of a sequence, or several short sequences. 0: a whole sequence of max_tokens */
    int64_t chunk;
    bp_comm *comm; /**< as in bp_logprob_config */
    bp_targets targets;
    uint32_t threads;
    uint32_t kernels;
    int32_t forward_only; /**< 1: no workspaces for backward */
    /** 1: hidden_grad is the partial sum of this rank, for callers that reduce it. 0: the sum over ranks */
    int32_t partial_hidden_grad;
} bp_lm_head_config;

/** Sets the defaults: chunks of 1024 tokens, bf16, one rank, one target a token, BP_TARGETS_ERROR. Errors:
 * BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_lm_head_config_init(bp_lm_head_config *config, size_t size);

/** Creates a head with its workspaces. Collective with a communicator. The caller owns the head: bp_lm_head_destroy.
 *
 * Errors: as bp_logprob_create; BP_ERR_INVALID_ARGUMENT (no hidden size, a negative chunk; hidden, vocab or tokens of
 * a chunk above 2^30 - 1), BP_ERR_UNSUPPORTED (no BLAS or no cuBLAS was found: the message says which libraries were
 * tried). */
BP_API bp_status bp_lm_head_create(bp_device *device, const bp_lm_head_config *config, bp_lm_head **head);
/** Waits for the work of the head and destroys it. Accepts NULL and a pointer to NULL; sets *head to NULL. */
BP_API void bp_lm_head_destroy(bp_lm_head **head);

typedef struct bp_lm_head_info {
    const char *kernels;      /**< as in bp_logprob_info */
    const char *products;     /**< file name of the BLAS library, or "cublas" */
    uint32_t threads;         /**< threads of the kernels, and of products if MKL or OpenBLAS 0.3.27 computes them */
    uint64_t chunk_bytes;     /**< bytes of a chunk workspace; on cuda there are two, unless one chunk is enough */
    uint64_t other_bytes;     /**< partial sums, widened tiles, sums of hidden_grad, workspace of cuBLAS */
    uint64_t workspace_bytes; /**< bytes of all workspaces */
    uint64_t planned_bytes;   /**< planned bytes of the workspaces */
    uint64_t vocab;           /**< of all ranks together */
    bp_pool *pool;            /**< as in bp_logprob_info */
} bp_lm_head_info;

/** Properties of a head. Lives as long as the head and never changes. NULL for NULL. Any thread. */
BP_API const bp_lm_head_info *bp_lm_head_get_info(const bp_lm_head *head);

typedef struct bp_lm_head_batch {
    size_t size;
    bp_token_rows hidden;  /**< [batch, sequence, hidden] in the config's dtype */
    const void *weight;    /**< [vocab, hidden] in the config's dtype */
    int64_t weight_stride; /**< between rows; 0: without gaps */
    const float *bias;     /**< [vocab], added to the logits before they are rounded; NULL: none */
    /** as in bp_logprob_batch. The hidden state of a masked or ignored token may be anything, on cuda anything finite */
    bp_logprob_tokens tokens;
} bp_lm_head_batch;

/** Sets the defaults: as bp_logprob_batch_init; no bias. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_lm_head_batch_init(bp_lm_head_batch *batch, size_t size);

/** Enqueues the outputs. Outputs, `saved` and errors as of bp_logprob_forward. */
BP_API bp_status bp_lm_head_forward(bp_lm_head *head, const bp_lm_head_batch *batch, const bp_logprob_outputs *outputs,
                                    bp_stream *stream);

typedef struct bp_lm_head_gradients {
    size_t size;
    bp_token_values logprob_grad; /**< as in bp_logprob_gradients */
    bp_token_values entropy_grad, logsumexp_grad, mean_logprob_grad;
    const void *saved;
    uint64_t saved_bytes;
    bp_token_rows hidden_grad;  /**< fp32 or the config's dtype; data NULL: not wanted */
    void *weight_grad;          /**< fp32 [vocab, hidden]; NULL: not wanted */
    int64_t weight_grad_stride; /**< between rows; 0: without gaps */
    float *bias_grad;           /**< fp32 [vocab]; NULL: not wanted */
    /** 1: weight_grad and bias_grad are added to, 0: overwritten. hidden_grad is always overwritten */
    int32_t accumulate;
} bp_lm_head_gradients;

/** Sets the defaults: fp32 gradients, overwritten. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_lm_head_gradients_init(bp_lm_head_gradients *gradients, size_t size);

/** Enqueues the gradients of hidden states, weight and bias. With several ranks hidden_grad is summed over them, unless
 * config.partial_hidden_grad is set: collective, all ranks want it, in one dtype, with equal batch shapes. The sum is
 * of fp32 values rounded once on the host, and in the dtype of hidden_grad on cuda.
 *
 * Errors: as bp_logprob_backward; BP_ERR_SCHEDULE (a head made with forward_only). */
BP_API bp_status bp_lm_head_backward(bp_lm_head *head, const bp_lm_head_batch *batch,
                                     const bp_lm_head_gradients *gradients, bp_stream *stream);

/** Waits for the work of the head and reports targets, as bp_logprob_check does. */
BP_API bp_status bp_lm_head_check(bp_lm_head *head);

#ifdef __cplusplus
}
#endif
#endif
