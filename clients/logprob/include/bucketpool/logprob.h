/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Per-token log-probabilities, entropies and divergences of logits, forward and backward. In the library
 * bucketpool-logprob.
 *
 * With the logits x of a token, its targets t, the temperature T, the largest logit M, and S = sum of exp((x - M) / T)
 * over the whole vocabulary of V tokens (the shards of all ranks):
 * @verbatim
 * log-probability   lp = (x[t] - M) / T - log S
 * entropy           H = log S - E,  E = sum p (x - M) / T     p = exp((x - M) / T) / S; terms with p = 0 are 0
 * logsumexp         L = M / T + log S
 * mean_logprob      A = (sum of lp over the vocabulary) / V   -inf if a logit is -inf
 * gradients         d lp / dx[v] = ([v = t] - p[v]) / T       d H / dx[v] = p[v] (E - (x[v] - M) / T) / T
 *                   d L / dx[v] = p[v] / T                    d A / dx[v] = (1 / V - p[v]) / T
 * @endverbatim
 *
 * @code
 * bp_logprob_create(device, &config, &client);           // once
 * bp_logprob_forward(client, &batch, &outputs, stream);  // lp, H, and 8 or 12 bytes a token for backward
 * bp_logprob_backward(client, &batch, &gradients, stream);
 * @endcode
 *
 * One pass over the logits computes all outputs, a second one the gradient. bp_logprob_forward_backward does both at
 * once if the upstream gradients are known before. Nothing of the size of the logits is allocated. Arithmetic is fp32
 * or wider.
 *
 * Losses made of the outputs:
 * - z-loss: c L^2; its upstream gradient of logsumexp is 2 c L.
 * - Label smoothing e: -(1 - e) lp - e A, over the vocabulary of all ranks. Upstream gradients: e - 1 of logprob, -e of
 *   mean_logprob.
 *
 * Special values:
 * - An ignored target has the log-probability 0 and no gradient. A token whose targets are all ignored is a masked row:
 *   it is not read, and its outputs and gradient are 0.
 * - Any other target outside the vocabulary makes its token NaN, outputs and gradient, and is reported (bp_targets).
 *   With BP_TARGETS_MASK its log-probability is 0, with the gradient -p / T, as in SkyRL's
 *   vocabulary-parallel functions.
 * - A row with NaN or +inf, or with only -inf, has NaN as outputs and gradients, except for log-probabilities that are 0
 *   by the lines above. A soft cap makes infinite logits finite.
 * - If x - M exceeds fp32 (logits of 2e38 and -2e38), p is 0. Results beyond their dtype are infinite. mean_logprob adds
 *   logits in fp32: a sum beyond fp32 makes it infinite or NaN.
 *
 * Tensors: per-token tensors are views with strides in elements, which may be negative. A stride of 0 repeats one
 * value; it is refused for outputs. Logits need the natural alignment of their dtype. Inputs are never written,
 * except for the gradient in place on request.
 *
 * Determinism: for one kind of kernels (plain, AVX2, AVX-512, NEON, CUDA) the result of a row depends only on its logits,
 * targets, upstream gradients and temperature, not on chunks, threads, grid, alignment or other rows. With several
 * ranks the result is the same on all ranks and in every run.
 *
 * Streams: calls enqueue on `stream`, a stream of the client's device, and return; inputs and outputs must stay valid
 * until the work has run. NULL: a stream of the client, and the call returns after the work has run, on the host on the
 * calling thread. No memory is allocated after creation, except for the threads that OpenMP starts with the first work
 * of a thread. Host devices queue at most 64 pieces of work; further calls wait.
 *
 * Thread safety: one call at a time for a client; its calls may be on different streams. Capture: cuda with one rank
 * (the exchange between ranks cannot be captured). Workspaces come from a pool: where bp_logprob_info.pool is not NULL,
 * declare the capture to it, as capture.h says.
 *
 * Sources: vocabulary-parallel cross entropy of Megatron-LM and ChunkedDistributedLogprob of SkyRL for the contract;
 * Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018) for merging partial sums; Agarwal et al.,
 * "On-Policy Distillation of Language Models" (arXiv 2306.13649) for the divergences. */
#ifndef BUCKETPOOL_LOGPROB_H
#define BUCKETPOOL_LOGPROB_H

#include <bucketpool/comm.h>
#include <bucketpool/device.h>
#include <bucketpool/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- views --------------------------------------------------------------------------------------------------------- */

/** One value for each token: a view [batch, sequence]; or one for each target, [batch, sequence, targets]. */
typedef struct bp_token_values {
    void *data; /**< NULL: no tensor */
    int64_t batch_stride, stride;
    int64_t step; /**< between the values of a token, where it has several; otherwise ignored */
} bp_token_values;

/** One row for each token: a view [batch, sequence, columns]. The elements of a row are contiguous. */
typedef struct bp_token_rows {
    void *data;
    bp_dtype dtype;
    uint64_t batch, sequence, columns;
    int64_t batch_stride, stride; /**< elements between rows; 0, 0: contiguous */
} bp_token_rows;

/* ---- clients ------------------------------------------------------------------------------------------------------- */

typedef struct bp_logprob bp_logprob;

/** Targets that are neither in the vocabulary (of all ranks) nor ignored, in rows that are not masked.
 * - BP_TARGETS_ERROR: BP_ERR_INVALID_ARGUMENT with the token, the target and the vocabulary, on all ranks, also if one
 *   rank alone has such a target. Forward with `stream` NULL returns it, also for calls before it; for calls on a stream,
 *   which do not wait, bp_logprob_check does. The results and the gradient of the token are NaN.
 * - BP_TARGETS_MASK: their log-probability is 0. */
typedef enum bp_targets { BP_TARGETS_ERROR = 1, BP_TARGETS_MASK = 2 } bp_targets;

/** The default of bp_logprob_tokens.ignore_index, and the value for none. */
#define BP_LOGPROB_IGNORED (-100)
#define BP_LOGPROB_IGNORE_NONE INT64_MIN

/** Kernels of host devices. */
enum {
    BP_KERNELS_PLAIN = 1u,
    BP_KERNELS_AVX2 = 2u,
    BP_KERNELS_AVX512 = 4u,
    BP_KERNELS_NEON = 8u, /* arm64 */
    BP_KERNELS_ALL = 15u
};

/** Targets of a token, at most. */
#define BP_LOGPROB_MAX_TARGETS 128

typedef struct bp_logprob_config {
    size_t size;
    uint64_t max_tokens;  /**< tokens (batch x sequence) of a call, at most */
    uint32_t max_targets; /**< targets of a token, at most: 1 to BP_LOGPROB_MOST_TARGETS */
    uint64_t vocab;       /**< columns of the shard of this rank; at most 2^31 - 1 */
    uint64_t vocab_start; /**< token id of the first column */
    /** communicator of the ranks that share the vocabulary; must outlive the client. NULL: one rank */
    bp_comm *comm;
    bp_targets targets;
    uint32_t threads; /**< host: threads, at most 1024. 0: as OpenMP chooses. One where the
                       * process has no OpenMP runtime and the dynamic loader finds no libgomp.so.1 */
    /** host: BP_KERNELS bits of permitted kernels; the best that the machine supports is used. Plain is always
     * permitted */
    uint32_t kernels;
} bp_logprob_config;

/** Sets the defaults: one rank, one target a token, BP_TARGETS_ERROR, all kernels. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_config_init(bp_logprob_config *config, size_t size);

/** Creates a client with its workspaces: 8 bytes for the report of targets (none with BP_TARGETS_MASK), and with several
 * ranks 16 + 4 max_targets bytes a token, and as much again for each rank. With a communicator it is collective: the ranks compare their shards, which must
 * cover the vocabulary exactly once and may be uneven. Adds a reference to the device. The caller owns the client:
 * bp_logprob_destroy.
 *
 * Errors, on all ranks:
 * - BP_ERR_INVALID_ARGUMENT: no tokens, no vocabulary, max_targets out of range, shards with a gap or an overlap (the
 *   message names the ranks).
 * - BP_ERR_MISMATCH: the configurations of ranks differ.
 * - BP_ERR_UNSUPPORTED: a device without kernels, a build without CUDA kernels, more than 512 ranks.
 * - BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM, errors of the device. */
BP_API bp_status bp_logprob_create(bp_device *device, const bp_logprob_config *config, bp_logprob **client);

/** Waits for the work of the client and destroys it. Accepts NULL and a pointer to NULL; sets *client to NULL. */
BP_API void bp_logprob_destroy(bp_logprob **client);

typedef struct bp_logprob_info {
    const char *kernels; /**< "plain", "avx2", "avx512", "neon", "cuda" */
    uint32_t threads;    /**< 1 on cuda */
    uint64_t workspace_bytes;
    uint64_t planned_bytes; /**< planned bytes of the workspaces */
    uint64_t vocab;         /**< of all ranks together */
    /** pool of the workspaces, for statistics, registration and captures; borrowed. NULL: no workspaces */
    bp_pool *pool;
} bp_logprob_info;

/** Properties of a client. Lives as long as the client and never changes. NULL for NULL. Any thread. */
BP_API const bp_logprob_info *bp_logprob_get_info(const bp_logprob *client);

/** GPU architectures that this build's CUDA kernels are compiled for, as nvcc names them:
 * "sm_80,sm_90,sm_100,sm_120,compute_80", where compute_80 is PTX, which the driver compiles for other GPUs. "" without CUDA kernels. Needs no GPU. Any thread. */
BP_API const char *bp_logprob_cuda_codes(void);

/* ---- calls --------------------------------------------------------------------------------------------------------- */

/** The inputs for each token besides its logits, the same for forward and backward. The logit x of the formulas is made
 * of the given one by rounding it, then capping it; the temperature divides it in the formulas. */
typedef struct bp_logprob_tokens {
    bp_token_values target; /**< token ids in the whole vocabulary, `targets` for each token */
    bp_dtype target_dtype;  /**< int64 or int32 */
    uint32_t targets;       /**< for each token: 1 to the config's max_targets */
    /** uint8; 0: the logits of the row are not read, its outputs and gradient are 0. NULL: no mask */
    bp_token_values mask;
    float temperature; /**< 1.2e-38 to 8.5e37: it and its inverse are normal numbers */
    float soft_cap;    /**< c, in the range of `temperature`: x = c tanh(x / c). 0: none */
    /** fp32, a temperature for each token; a value out of range makes the results of its token NaN. NULL: `temperature`
     * for all */
    bp_token_values temperatures;
    /** bf16 or fp16: each logit is rounded to it first, to match an engine that stores its logits in it; the gradient
     * passes through unchanged. fp32: no rounding */
    bp_dtype rounding;
    int64_t ignore_index; /**< targets with this value are ignored, also if it is in the vocabulary */
} bp_logprob_tokens;

/** The inputs of forward and backward, the same for both. */
typedef struct bp_logprob_batch {
    size_t size;
    bp_token_rows logits; /**< fp32, bf16 or fp16; columns: the config's vocab */
    bp_logprob_tokens tokens;
} bp_logprob_batch;

/** Sets the defaults: one int64 target a token, ignore_index BP_LOGPROB_IGNORED, no mask, temperature 1, no soft cap, no rounding. Errors:
 * BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_batch_init(bp_logprob_batch *batch, size_t size);

/** Bytes of `saved`, which forward writes for backward: 8 a token, 12 with entropy. Contiguous device memory, aligned
 * to 4.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_OVERFLOW. */
BP_API bp_status bp_logprob_saved_bytes(uint64_t tokens, int with_entropy, uint64_t *bytes);

typedef struct bp_logprob_outputs {
    size_t size;
    bp_token_values logprob;      /**< fp32, one for each target; NULL: not wanted */
    bp_token_values entropy;      /**< fp32; NULL: not wanted */
    bp_token_values logsumexp;    /**< fp32; NULL: not wanted */
    bp_token_values mean_logprob; /**< fp32; NULL: not wanted */
    void *saved;                  /**< NULL: inference only */
    uint64_t saved_bytes;         /**< at least bp_logprob_saved_bytes, with entropy if `entropy` is wanted */
} bp_logprob_outputs;

/** Sets the defaults: no outputs. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_outputs_init(bp_logprob_outputs *outputs, size_t size);

/** Enqueues the pass over the logits. With several ranks it is collective, with one exchange of 16 + 4 targets bytes a
 * token and equal batch shapes on all ranks. A batch without tokens succeeds.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (a dtype, columns other than in the config, a missing or misaligned pointer,
 * overlapping rows, more than max_tokens or max_targets: the message has the name and the numbers),
 * BP_ERR_OVERFLOW, BP_ERR_CAPTURE, errors of the device and the communicator. After an error nothing was enqueued,
 * unless a device failed or a target is invalid. Without a stream, all work has ended after an error too. */
BP_API bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch,
                                    const bp_logprob_outputs *outputs, bp_stream *stream);

typedef struct bp_logprob_gradients {
    size_t size;
    bp_token_values logprob_grad;   /**< fp32, upstream, one for each target; NULL: zeros */
    bp_token_values entropy_grad;   /**< fp32, upstream; NULL: zeros. Needs entropies in `saved` */
    bp_token_values logsumexp_grad; /**< fp32, upstream; NULL: zeros */
    /** fp32, upstream; NULL: zeros. V is that of the client: a backward pass over a shard needs a client of all ranks */
    bp_token_values mean_logprob_grad;
    const void *saved; /**< written by the forward of the same batch */
    uint64_t saved_bytes;
    bp_token_rows logits_grad; /**< shape of the logits, any strides; fp32, or the dtype of the logits */
    /** 1: logits_grad overwrites the logits, with their memory, dtype and strides. Nobody may need the logits
     * afterwards, not even another backward. 0: memory with a byte between the first and the last of the logits, gaps
     * included, is refused */
    int32_t in_place;
} bp_logprob_gradients;

/** Sets the defaults: fp32 gradient, not in place. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_gradients_init(bp_logprob_gradients *gradients, size_t size);

/** Enqueues the gradient of the shard of this rank, without communication. Writes every element of logits_grad (masked
 * rows: zeros) and nothing between rows. Errors: as bp_logprob_forward. */
BP_API bp_status bp_logprob_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                     const bp_logprob_gradients *gradients, bp_stream *stream);

/** Forward and backward in one call, with the same bits, for callers that know the upstream gradients before: supervised
 * fine-tuning, policy gradients at ratio 1, distillation. With one rank each logit is read from memory once: 4 bytes for
 * a bf16 logit in place instead of 6. With several ranks the two passes run with the exchange between them, so the call
 * is collective. outputs->saved is required; gradients->saved is the same or NULL. Errors: as bp_logprob_forward and
 * bp_logprob_backward. */
BP_API bp_status bp_logprob_forward_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                             const bp_logprob_outputs *outputs, const bp_logprob_gradients *gradients,
                                             bp_stream *stream);

/** Divergence of each token's distribution p from a distribution q, that of a reference's logits of the same dtype and
 * shape, over the whole vocabulary. Rounding, soft cap and temperature of the batch apply to both.
 * @verbatim
 * beta = 0       KL(q || p) = sum of q log(q / p)
 * beta = 1       KL(p || q)
 * between        generalized Jensen-Shannon: beta KL(q || m) + (1 - beta) KL(p || m),  m = (1 - beta) p + beta q
 * @endverbatim
 * Terms of KL(a || b) with a = 0 are 0; with a > 0 and b = 0 they are infinite. For equal rows divergence and gradient
 * are exactly 0. A token with an infinite divergence has a gradient of NaN. The reference gets no gradient. */
typedef struct bp_logprob_divergence_args {
    size_t size;
    bp_token_rows reference; /**< shape and dtype of the logits, any strides */
    float beta;              /**< 0 to 1 */
    /** required: bp_logprob_divergence_saved_bytes of device memory, aligned to 4. Forward writes it, backward reads it */
    void *saved;
    uint64_t saved_bytes;
    bp_token_values divergence;      /**< forward: fp32 */
    bp_token_values divergence_grad; /**< backward: fp32, upstream */
    bp_token_rows logits_grad;       /**< backward: as in bp_logprob_gradients */
    int32_t in_place;                /**< backward: as in bp_logprob_gradients */
} bp_logprob_divergence_args;

/** Sets the defaults: beta 0, fp32 gradient, not in place. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_divergence_args_init(bp_logprob_divergence_args *args, size_t size);

/** Bytes of `saved` of divergences: 20 a token. Errors: as bp_logprob_saved_bytes. */
BP_API bp_status bp_logprob_divergence_saved_bytes(uint64_t tokens, uint64_t *bytes);

/** Enqueues the divergences: two passes over logits and reference. With several ranks it is collective, with exchanges of
 * 16, 16 and 8 bytes a token. Targets are not read and may be missing. Masked tokens are 0. Errors: as
 * bp_logprob_forward. */
BP_API bp_status bp_logprob_divergence(bp_logprob *client, const bp_logprob_batch *batch,
                                       const bp_logprob_divergence_args *args, bp_stream *stream);

/** Enqueues the gradient of the logits, without communication. Errors: as bp_logprob_backward. */
BP_API bp_status bp_logprob_divergence_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                                const bp_logprob_divergence_args *args, bp_stream *stream);

/** Enqueues the smallest and the largest logit of each row of the shard of this rank, as given (without rounding, soft
 * cap and temperature), for statistics. A separate pass over the logits, without communication. `least` and `largest`
 * are fp32; NULL: not wanted. NaN if a logit of the row is NaN. Masked rows are not read and get 0. Targets are not
 * read and may be missing. Errors: as bp_logprob_forward. */
BP_API bp_status bp_logprob_range(bp_logprob *client, const bp_logprob_batch *batch, const bp_token_values *min,
                                  const bp_token_values *largest, bp_stream *stream);

/** Waits for the work of the client (on cuda and with BP_TARGETS_MASK for all streams of the device) and reports the
 * first target that bp_targets makes an error, since the last report: BP_ERR_INVALID_ARGUMENT. Not during a capture. Other errors: those of
 * the device. */
BP_API bp_status bp_logprob_check(bp_logprob *client);

#ifdef __cplusplus
}
#endif
#endif
