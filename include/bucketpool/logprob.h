/** @file
 * Per-token log-probabilities and entropies of logits, forward and backward. In the library bucketpool-logprob.
 *
 * With the logits x of a token, its target t, the temperature T, the largest logit M, and S = sum of exp((x - M) / T)
 * over the whole vocabulary (the shards of all ranks):
 * @verbatim
 * log-probability   lp = (x[t] - M) / T - log S               0 if t is not in the vocabulary
 * entropy           H = log S - E,  E = sum p (x - M) / T     p = exp((x - M) / T) / S; terms with p = 0 are 0
 * gradient          d lp / dx[v] = ([v = t] - p[v]) / T;      d H / dx[v] = p[v] (E - (x[v] - M) / T) / T
 * @endverbatim
 *
 * @code
 * bp_logprob_create(device, &config, &client);           // once
 * bp_logprob_forward(client, &batch, &outputs, stream);  // lp, H, and 8 or 12 bytes a token for backward
 * bp_logprob_backward(client, &batch, &gradients, stream);
 * @endcode
 *
 * One pass over the logits computes both outputs, a second one the gradient. Nothing of the size of the logits is
 * allocated. Arithmetic is fp32 or wider.
 *
 * Special values:
 * - A target outside the vocabulary has the gradient -p / T.
 * - A row with NaN or +inf, or with only -inf, has NaN as outputs and gradients, except for the log-probability of a
 *   target outside the vocabulary, which is 0.
 * - If x - M exceeds fp32 (logits of 2e38 and -2e38), p is 0. Results beyond their dtype are infinite.
 *
 * Tensors: per-token tensors are views with strides in elements, which may be negative. A stride of 0 repeats one
 * value; it is refused for outputs. Logits need the natural alignment of their dtype. Inputs are never written,
 * except for the gradient in place on request.
 *
 * Determinism: for one kind of kernels (plain, AVX2, AVX-512, CUDA) the result of a row depends only on its logits,
 * target, upstream gradients and the temperature, not on chunks, threads, grid, alignment or other rows. With several
 * ranks the result is the same on all ranks and in every run.
 *
 * Streams: calls enqueue on `stream`, a stream of the client's device, and return; inputs and outputs must stay valid
 * until the work has run. NULL: a stream of the client, and the call returns after the work has run. No memory is
 * allocated after creation, except for the threads that OpenMP starts with the first work of a stream. Host devices
 * queue at most 64 calls; further calls wait.
 *
 * Thread safety: one call at a time for a client; its calls may be on different streams. Capture: cuda with one rank
 * (the exchange between ranks cannot be captured). The workspaces come from a pool: declare the capture to
 * bp_logprob_info.pool, as capture.h says.
 *
 * Sources: vocabulary-parallel cross entropy of Megatron-LM and ChunkedDistributedLogprob of SkyRL for the contract;
 * Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018) for merging partial sums. */
#ifndef BUCKETPOOL_LOGPROB_H
#define BUCKETPOOL_LOGPROB_H

#include <bucketpool/comm.h>
#include <bucketpool/device.h>
#include <bucketpool/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- views --------------------------------------------------------------------------------------------------------- */

/** One value for each token: a view [batch, sequence]. */
typedef struct bp_token_values {
    void *data; /**< NULL: no tensor */
    int64_t batch_stride, stride;
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

/** Targets outside the vocabulary.
 * - BP_TARGETS_ANY: their log-probability is 0.
 * - BP_TARGETS_CHECKED: they are BP_ERR_INVALID_ARGUMENT, with the token and the value, except in masked rows.
 *   bp_logprob_check returns the error, and so does a call with `stream` NULL, also for calls before it. */
typedef enum bp_targets { BP_TARGETS_ANY = 1, BP_TARGETS_CHECKED = 2 } bp_targets;

/** Kernels of host devices. */
enum { BP_KERNELS_PLAIN = 1u, BP_KERNELS_AVX2 = 2u, BP_KERNELS_AVX512 = 4u };

typedef struct bp_logprob_config {
    size_t size;
    uint64_t max_tokens;  /**< tokens (batch x sequence) of a call, at most */
    uint64_t vocab;       /**< columns of the shard of this rank; at most 2^31 - 1 */
    uint64_t vocab_start; /**< token id of the first column */
    /** communicator of the ranks that share the vocabulary; must outlive the client. NULL: one rank */
    bp_comm *comm;
    bp_targets targets;
    uint32_t threads; /**< host: threads, at most 1024. 0: as OpenMP chooses */
    /** host: BP_KERNELS bits of permitted kernels; the best that the machine supports is used. Plain is always
     * permitted */
    uint32_t kernels;
} bp_logprob_config;

/** Sets the defaults: one rank, the whole vocabulary, any targets, all kernels. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_config_init(bp_logprob_config *config, size_t size);

/** Creates a client with its workspaces: 16 bytes a token, with several ranks 16 more for each rank. With a
 * communicator it is collective: the ranks compare their shards, which must cover the vocabulary exactly once and may
 * be uneven. Adds a reference to the device. The caller owns the client: bp_logprob_destroy.
 *
 * Errors, on all ranks:
 * - BP_ERR_INVALID_ARGUMENT: no tokens, no vocabulary, shards with a gap or an overlap (the message names the ranks).
 * - BP_ERR_MISMATCH: the configurations of ranks differ.
 * - BP_ERR_UNSUPPORTED: a device without kernels, a build without CUDA kernels, more than 512 ranks.
 * - BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM, errors of the device. */
BP_API bp_status bp_logprob_create(bp_device *device, const bp_logprob_config *config, bp_logprob **client);

/** Waits for the work of the client and destroys it. Accepts NULL and a pointer to NULL; sets *client to NULL. */
BP_API void bp_logprob_destroy(bp_logprob **client);

typedef struct bp_logprob_info {
    const char *kernels; /**< "plain", "avx2", "avx512", "cuda" */
    uint32_t threads;    /**< 1 on cuda */
    uint64_t workspace_bytes;
    uint64_t planned_bytes; /**< planned bytes of the workspaces */
    uint64_t vocab;         /**< of all ranks together */
    bp_pool *pool;          /**< pool of the workspaces, for statistics, registration and captures; borrowed */
} bp_logprob_info;

/** Properties of a client. Lives as long as the client and never changes. NULL for NULL. Any thread. */
BP_API const bp_logprob_info *bp_logprob_get_info(const bp_logprob *client);

/* ---- calls --------------------------------------------------------------------------------------------------------- */

/** The inputs of forward and backward, the same for both. */
typedef struct bp_logprob_batch {
    size_t size;
    bp_token_rows logits;   /**< fp32, bf16 or fp16; columns: the config's vocab */
    bp_token_values target; /**< token ids in the whole vocabulary */
    bp_dtype target_dtype;  /**< int64 or int32 */
    /** uint8; 0: the logits of the row are not read, its outputs and gradient are 0. NULL: no mask */
    bp_token_values mask;
    /** tokens along the sequence for each chunk, 0: all. Has no effect on results, time or memory, because the logits
     * exist already; accepted for callers that chunk. Negative values are refused */
    int64_t chunk;
    float temperature; /**< 1.2e-38 to 8.5e37: it and its inverse are normal numbers */
} bp_logprob_batch;

/** Sets the defaults: int64 targets, no mask, no chunks, temperature 1. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_batch_init(bp_logprob_batch *batch, size_t size);

/** Bytes of `saved`, which forward writes for backward: 8 a token, 12 with entropy. Contiguous device memory, aligned
 * to 4.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_OVERFLOW. */
BP_API bp_status bp_logprob_saved_bytes(uint64_t tokens, int with_entropy, uint64_t *bytes);

typedef struct bp_logprob_outputs {
    size_t size;
    bp_token_values logprob; /**< fp32; NULL: not wanted */
    bp_token_values entropy; /**< fp32; NULL: not wanted */
    void *saved;             /**< NULL: inference only */
    uint64_t saved_bytes;    /**< at least bp_logprob_saved_bytes, with entropy if `entropy` is wanted */
} bp_logprob_outputs;

/** Sets the defaults: no outputs. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_logprob_outputs_init(bp_logprob_outputs *outputs, size_t size);

/** Enqueues the pass over the logits. With several ranks it is collective, with one exchange of 16 bytes a token and
 * equal batch shapes on all ranks. A batch without tokens succeeds.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (a dtype, a negative chunk, columns other than in the config, a missing or
 * misaligned pointer, overlapping rows, more than max_tokens: the message has the name and the numbers),
 * BP_ERR_OVERFLOW, BP_ERR_CAPTURE, errors of the device and the communicator. After an error nothing was enqueued,
 * unless a device failed or a target is invalid. Without a stream, all work has ended after an error too. */
BP_API bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch,
                                    const bp_logprob_outputs *outputs, bp_stream *stream);

typedef struct bp_logprob_gradients {
    size_t size;
    bp_token_values logprob_grad; /**< fp32, upstream; NULL: zeros */
    bp_token_values entropy_grad; /**< fp32, upstream; NULL: zeros. Needs entropies in `saved` */
    const void *saved;            /**< written by the forward of the same batch */
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

/** Enqueues the smallest and the largest logit of each row of the shard of this rank, without the temperature, for
 * statistics. A separate pass over the logits, without communication. `least` and `largest` are fp32; NULL: not
 * wanted. NaN if a logit of the row is NaN. Masked rows are not read and get 0. Targets are not read and may be
 * missing. Errors: as bp_logprob_forward. */
BP_API bp_status bp_logprob_range(bp_logprob *client, const bp_logprob_batch *batch, const bp_token_values *least,
                                  const bp_token_values *largest, bp_stream *stream);

/** Waits for the work of the client (for all streams of the device on cuda and without checked targets) and reports
 * the first invalid target since the last call: BP_ERR_INVALID_ARGUMENT. Not during a capture. Other errors: those of
 * the device. */
BP_API bp_status bp_logprob_check(bp_logprob *client);

#ifdef __cplusplus
}
#endif
#endif
