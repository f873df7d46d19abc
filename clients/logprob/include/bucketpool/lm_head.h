/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The fused language-model head: log-probabilities and entropies from hidden states and the weight of the head,
 * without storing the logits of all tokens. In the library bucketpool-logprob. Definitions, views, targets, streams,
 * threads and captures as in logprob.h.
 *
 * A pass computes the logits of a piece of tokens into a workspace, in fp32, and their sums or gradient d there. There
 * are three ways from hidden states to gradients:
 * @verbatim
 *                     products   logits
 * two calls           4          computed by forward and again by backward
 * one call            3          computed once: bp_lm_head_forward_backward, for upstream gradients that are known
 * kept logits         3          forward writes them to memory of the caller, and backward reads them
 *
 * logits = hidden W^T + bias     hidden_grad = d W     weight_grad = d^T hidden     bias_grad = sum of d over tokens
 * @endverbatim
 *
 * Pieces. config.memory_bytes bounds the workspaces, and so the pieces:
 * @verbatim
 *                     on cuda                                         on the host
 * forward             tokens with whole rows, two workspaces          tokens and 2048 columns or more, which caches keep
 * backward            all tokens and a part of the vocabulary, two    as forward
 * both in one call    tokens with whole rows, one workspace           as on cuda
 * @endverbatim
 * With two workspaces the products of a piece run beside the kernels of its neighbour. Each piece of tokens but the first
 * adds to weight_grad, which is read and written again; if one piece has all tokens, it is written once. Workspaces are requests of a plan, served by a pool.
 *
 * Products have sums in fp32. They use cuBLAS on cuda and BLAS on the host, both loaded at run time:
 * @verbatim
 *                                        hidden states, weight        d
 * cuda                                   in their dtype               rounded to the dtype of the weight
 * host                                   widened tile by tile         fp32
 * host, bf16, AVX512-BF16                in place                     rounded to bf16
 * @endverbatim
 * With AVX512-BF16 the products of bf16 are the library's own, which need no BLAS; on Intel processors MKL's (also
 * PyTorch's) where it is found, which uses AMX-BF16, too. These instructions take subnormal numbers as zeros. The BLAS
 * library is the first of: one linked into the process, that of a loaded libtorch_cpu.so, libopenblas.so.0,
 * libblis.so.4, libmkl_rt.so.2, libblas.so.3, loaded ones first.
 *
 * Determinism: the same results in every run with the same configuration, BLAS and threads; equal within rounding for
 * other pieces and between the three ways.
 *
 * Sources: chunked log-probabilities of SkyRL, and Cut Cross-Entropy of Apple (arXiv 2411.09009), for not storing
 * logits; Liger Kernel (arXiv 2410.10989), for the gradient in the forward call. */
#ifndef BUCKETPOOL_LM_HEAD_H
#define BUCKETPOOL_LM_HEAD_H

#include <bucketpool/logprob.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_lm_head bp_lm_head;

/** Calls that a head has workspaces for. KEPT: forward and backward of batches with `logits`; the others: of batches
 * without. ONE_CALL: bp_lm_head_forward_backward. */
enum { BP_LM_HEAD_FORWARD = 1u, BP_LM_HEAD_BACKWARD = 2u, BP_LM_HEAD_ONE_CALL = 4u, BP_LM_HEAD_KEPT = 8u };

typedef struct bp_lm_head_config {
    size_t size;
    uint64_t max_tokens;  /**< tokens (batch x sequence) of a call, at most */
    uint32_t max_targets; /**< as in bp_logprob_config */
    uint64_t hidden;      /**< columns of hidden states and weight */
    uint64_t vocab;       /**< rows of the shard of the weight on this rank; at most 2^30 */
    uint64_t vocab_start;
    bp_dtype dtype; /**< dtype of hidden states and weight: fp32, bf16 or fp16 */
    /** tokens in each piece: a part of a sequence, or several short sequences; on cuda with whole rows in two workspaces.
     * 0: as many as memory_bytes allows */
    int64_t chunk;
    /** with chunk 0, bytes of all workspaces together, at most. More where pieces of 1024 tokens (max_tokens, if fewer)
     * need more: bp_lm_head_info.workspace_bytes. The same on all ranks */
    uint64_t memory_bytes;
    bp_comm *comm; /**< as in bp_logprob_config */
    bp_targets targets;
    uint32_t threads;
    uint32_t kernels;
    uint32_t passes; /**< BP_LM_HEAD_ bits; other calls are errors */
    /** 1: hidden_grad is the partial sum of this rank, for callers that reduce it. 0: the sum over ranks */
    int32_t partial_hidden_grad;
} bp_lm_head_config;

/** Sets the defaults: memory_bytes of 1 GiB, chunk 0, bf16, one rank, one target a token, BP_TARGETS_ERROR, forward and
 * backward in separate calls. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_lm_head_config_init(bp_lm_head_config *config, size_t size);

/** Creates a head with its workspaces. Collective with a communicator. The caller owns the head: bp_lm_head_destroy.
 *
 * Errors: as bp_logprob_create; BP_ERR_INVALID_ARGUMENT (no hidden size, no passes, a negative chunk; hidden, vocab
 * or tokens of a piece above 2^30 - 1), BP_ERR_UNSUPPORTED (no BLAS or no cuBLAS was found: the message says which libraries were
 * tried). */
BP_API bp_status bp_lm_head_create(bp_device *device, const bp_lm_head_config *config, bp_lm_head **head);
/** Waits for the work of the head and destroys it. Accepts NULL and a pointer to NULL; sets *head to NULL. */
BP_API void bp_lm_head_destroy(bp_lm_head **head);

/** Pieces and workspaces of a head. */
typedef struct bp_lm_head_sizes {
    size_t size;
    /** tokens of a piece, at most, in forward, in backward, and in one call for both; 0: not among the passes. A batch is
     * cut into pieces of one size: multiples of 64 tokens of a sequence, or several whole sequences */
    uint64_t forward_tokens, backward_tokens, one_call_tokens;
    uint64_t backward_columns; /**< columns of the vocabulary in a step of backward */
    uint64_t piece_tokens;     /**< the fewest of backward_tokens and one_call_tokens */
    /** logits of a piece, or their gradient; on cuda a second one, whose products run beside the kernels of the first */
    uint64_t chunk_bytes, second_chunk_bytes;
    /** workspace of the products: cuBLAS, copies of hidden states without masked rows, widened operands. On the host an
     * upper bound, because BLAS libraries need less with a bf16 product */
    uint64_t scratch_bytes;
    uint64_t hidden_grad_bytes; /**< fp32 sums of a piece's hidden_grad, over parts of the vocabulary or ranks */
    uint64_t weight_grad_bytes; /**< host: fp32 sums of a part of weight_grad before it is rounded */
    uint64_t partials_bytes, gathered_bytes, target_bytes; /**< sums of each token, those of all ranks, bad targets */
    uint64_t bytes;                                        /**< the sum */
} bp_lm_head_sizes;

/** Sizes of a head with this configuration, whose `comm` is not read: `ranks` share the vocabulary, and config->vocab is
 * the largest shard. Pools round each workspace up, and let some share memory. Needs no device. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_OVERFLOW. */
BP_API bp_status bp_lm_head_estimate(const bp_lm_head_config *config, uint32_t ranks, int32_t is_host,
                                     bp_lm_head_sizes *sizes);

typedef struct bp_lm_head_info {
    const char *kernels;  /**< as in bp_logprob_info */
    const char *products; /**< file name of the BLAS library, "avx512_bf16" or "cublas" */
    uint32_t threads;     /**< threads of kernels and products; BLAS other than MKL and OpenBLAS 0.3.27 has its own */
    /** a batch of so many tokens, at most, is one piece in the gradient passes of this head: of bp_lm_head_sizes */
    uint64_t piece_tokens;
    const bp_lm_head_sizes *sizes; /**< as bp_lm_head_estimate, with the ranks of the head */
    uint64_t workspace_bytes;      /**< bytes of all workspaces */
    uint64_t planned_bytes;        /**< planned bytes of the workspaces */
    uint64_t vocab;                /**< of all ranks together */
    bp_pool *pool;                 /**< as in bp_logprob_info */
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
    /** kept logits: fp32 [batch x sequence, vocab], in the order of the tokens. forward writes them, with the bias;
     * backward of the same batch reads them. Rows of masked tokens may be arbitrary. NULL: pieces in workspaces */
    float *logits;
    int64_t logits_stride; /**< between rows; 0: without gaps */
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
    void *weight_grad;          /**< [vocab, hidden]; NULL: not wanted */
    int64_t weight_grad_stride; /**< between rows; 0: without gaps */
    /** fp32; or the config's dtype without `accumulate`, where the batch has at most piece_tokens of
     * bp_lm_head_info. The sum is rounded once */
    bp_dtype weight_grad_dtype;
    float *bias_grad; /**< fp32 [vocab]; NULL: not wanted */
    /** 1: weight_grad and bias_grad are added to, 0: overwritten. hidden_grad is always overwritten */
    int32_t accumulate;
} bp_lm_head_gradients;

/** Sets the defaults: fp32 gradients, overwritten. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_lm_head_gradients_init(bp_lm_head_gradients *gradients, size_t size);

/** Enqueues the gradients of hidden states, weight and bias. With several ranks hidden_grad is summed over them, unless
 * config.partial_hidden_grad is set: collective, all ranks want it, in one dtype, with equal batch shapes. The sum is
 * of fp32 values, rounded once.
 *
 * Errors: as bp_logprob_backward; BP_ERR_SCHEDULE (a call that is not among the passes of the head). */
BP_API bp_status bp_lm_head_backward(bp_lm_head *head, const bp_lm_head_batch *batch,
                                     const bp_lm_head_gradients *gradients, bp_stream *stream);

/** Forward and backward in one call, for callers that know the upstream gradients before: supervised fine-tuning, losses
 * that are linear in the outputs, policy gradients with known advantages. Three products instead of four. outputs->saved
 * is required; gradients->saved is the same or NULL. With several ranks it is collective, with an exchange for each
 * piece. Errors: as bp_lm_head_forward and bp_lm_head_backward. */
BP_API bp_status bp_lm_head_forward_backward(bp_lm_head *head, const bp_lm_head_batch *batch,
                                             const bp_logprob_outputs *outputs, const bp_lm_head_gradients *gradients,
                                             bp_stream *stream);

/** Waits for the work of the head and reports targets, as bp_logprob_check does. */
BP_API bp_status bp_lm_head_check(bp_lm_head *head);

#ifdef __cplusplus
}
#endif
#endif
