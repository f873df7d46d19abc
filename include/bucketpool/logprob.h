/** @file
 * Per-token log-probabilities and entropies of logits, forward and backward: the library bucketpool-logprob.
 *
 * With logits x of a token, t its target, T the temperature, M the largest x and S the sum of exp((x - M) / T) over the whole
 * vocabulary, all ranks' shards together:
 *
 *   log-probability   lp = (x[t] - M) / T - log S               0 where t is not in the vocabulary
 *   entropy           H = log S - E,  E = sum p (x - M) / T     p = exp((x - M) / T) / S; terms with p = 0 count 0
 *   gradient          d lp / dx[v] = ([v = t] - p[v]) / T;      d H / dx[v] = p[v] (E - (x[v] - M) / T) / T
 *
 * A target outside the vocabulary still has the gradient -p / T. All arithmetic is fp32 or wider. One pass over the logits makes both
 * outputs, a second one the gradient; nothing of the logits' size is allocated. Logits of which one is NaN or +inf, and rows where all
 * are -inf, have no distribution: their outputs and gradients are NaN, but for the log-probability of a target outside the vocabulary,
 * which is 0 as always. Where x - M is beyond fp32 (logits of 2e38 and -2e38) p is 0; results beyond their dtype are infinite.
 *
 * Tensors: per-token ones are views with strides, in elements, negative ones too; a stride of 0 reads one value again and again, and is
 * refused where it would be written. Logits need the natural alignment of their dtype only. Input is never written but for the gradient
 * in place, which is asked for.
 *
 * Bits: on one kind of kernels (plain, AVX2, AVX-512, CUDA) the result of a row depends on its logits, its target, its upstream
 * gradients and the temperature only: not on chunks, threads, grid, alignment, or the rows beside it. With several ranks it is the same
 * on all ranks, and from run to run.
 *
 * Streams: calls enqueue on `stream` of the client's device and return; what they read and write must stay until then. NULL: a
 * stream of the client's own, and the call returns when all is done. Thread safety: one call at a time per client; its calls may be on
 * different streams. No memory is allocated after creation, but for the threads that OpenMP starts when a stream's first work
 * runs. On host devices at most 64 pieces of work are on their way: more wait.
 *
 * Capture: calls may be captured (cuda; one rank: collectives are not captured). The workspaces come from a pool: declare it, with
 * bp_logprob_info.pool, as capture.h says.
 *
 * Sources: Megatron-LM's vocabulary-parallel cross entropy and SkyRL's ChunkedDistributedLogprob for the contract; Milakov and
 * Gimelshein, "Online normalizer calculation for softmax" (2018) for merging partial sums. */
#ifndef BUCKETPOOL_LOGPROB_H
#define BUCKETPOOL_LOGPROB_H

#include <bucketpool/comm.h>
#include <bucketpool/device.h>
#include <bucketpool/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- views --------------------------------------------------------------------------------------------------------- */

/** A value for each token: [batch, sequence] of the call. */
typedef struct bp_token_values {
    void *data; /**< NULL: there is none */
    int64_t batch_stride, stride;
} bp_token_values;

/** A row for each token: [batch, sequence, columns]. Elements of a row are next to each other. */
typedef struct bp_token_rows {
    void *data;
    bp_dtype dtype;
    uint64_t batch, sequence, columns;
    int64_t batch_stride, stride; /**< between rows; 0, 0: rows without gaps */
} bp_token_rows;

/* ---- clients ------------------------------------------------------------------------------------------------------- */

typedef struct bp_logprob bp_logprob;

/** BP_TARGETS_ANY: a target outside the vocabulary has log-probability 0. BP_TARGETS_CHECKED: it is an error (BP_ERR_INVALID_ARGUMENT, with
 * the token and the value): of the call where `stream` is NULL, which tells of calls before it, too, else of bp_logprob_check. Masked
 * rows are not checked. */
typedef enum bp_targets { BP_TARGETS_ANY = 1, BP_TARGETS_CHECKED = 2 } bp_targets;

/** Kernels of host devices. */
enum { BP_KERNELS_PLAIN = 1u, BP_KERNELS_AVX2 = 2u, BP_KERNELS_AVX512 = 4u };

typedef struct bp_logprob_config {
    size_t size;
    uint64_t max_tokens;  /**< of one call: batch x sequence */
    uint64_t vocab;       /**< columns of this rank's shard; at most 2^31 - 1 */
    uint64_t vocab_start; /**< the id of its first column */
    bp_comm *comm;        /**< of the ranks that share the vocabulary; must outlive the client. NULL: one rank */
    bp_targets targets;
    uint32_t threads; /**< host: 0: as many as OpenMP would take; at most 1024 */
    uint32_t
        kernels; /**< host: BP_KERNELS bits; the best of them that the machine has is taken. Plain is always there */
} bp_logprob_config;

/** Whole vocabulary, one rank, any targets, all kernels. */
BP_API bp_status bp_logprob_config_init(bp_logprob_config *config, size_t size);

/** Plans and makes the workspaces: 16 bytes a token, and as many for each rank where there are several. With a communicator: collective;
 * the ranks compare their shards, which must tile the vocabulary exactly once, in the order of their ids, and may be uneven.
 * Errors: BP_ERR_INVALID_ARGUMENT (no tokens, no vocabulary, shards with a gap or an overlap: names the ranks),
 * BP_ERR_MISMATCH (ranks with other configurations), BP_ERR_UNSUPPORTED (a device without kernels; a build without CUDA kernels;
 * more than 512 ranks), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM and what the device reports: on all
 * ranks.
 * The caller owns the client: bp_logprob_destroy. The device is kept. */
BP_API bp_status bp_logprob_create(bp_device *device, const bp_logprob_config *config, bp_logprob **client);

/** Waits for its work. Accepts NULL and pointers to NULL; sets *client to NULL. */
BP_API void bp_logprob_destroy(bp_logprob **client);

typedef struct bp_logprob_info {
    const char *kernels; /**< "plain", "avx2", "avx512", "cuda" */
    uint32_t threads;    /**< 1 on cuda */
    uint64_t workspace_bytes;
    uint64_t planned_bytes; /**< of workspaces, as their plan says */
    uint64_t vocab;         /**< of all ranks together */
    bp_pool *pool;          /**< serves the workspaces: for statistics, registration and captures. Not a reference */
} bp_logprob_info;

/** Lives as long as the client and never changes. NULL for NULL. Any thread. */
BP_API const bp_logprob_info *bp_logprob_get_info(const bp_logprob *client);

/* ---- calls --------------------------------------------------------------------------------------------------------- */

/** What forward and backward are about; the same for both. */
typedef struct bp_logprob_batch {
    size_t size;
    bp_token_rows logits;   /**< fp32, bf16 or fp16; columns: the config's vocab */
    bp_token_values target; /**< ids in the whole vocabulary */
    bp_dtype target_dtype;  /**< int64 or int32 */
    bp_token_values
        mask; /**< uint8, 0: the row's logits are not read, its outputs and its gradient are 0. NULL: no mask */
    int64_t
        chunk; /**< tokens along the sequence in one piece, 0: all. Logits are there already, and no memory depends on it: accepted for
                      callers that chunk, and without any effect on bits, time or memory. Negative sizes are refused */
    float temperature; /**< above 0, a normal number, and so is its inverse: 1.2e-38 to 8.5e37 */
} bp_logprob_batch;

/** int64 targets, no mask, no chunks, temperature 1. */
BP_API bp_status bp_logprob_batch_init(bp_logprob_batch *batch, size_t size);

/** Bytes that forward leaves for backward: 8 a token, 12 with entropy. Contiguous, aligned to 4, memory of the device.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_OVERFLOW. */
BP_API bp_status bp_logprob_saved_bytes(uint64_t tokens, int with_entropy, uint64_t *bytes);

typedef struct bp_logprob_outputs {
    size_t size;
    bp_token_values logprob; /**< fp32; NULL: not wanted */
    bp_token_values entropy; /**< fp32; NULL: not wanted */
    void *saved;             /**< NULL: inference only */
    uint64_t saved_bytes;    /**< at least bp_logprob_saved_bytes, with entropy when that is wanted */
} bp_logprob_outputs;

/** The defaults. size: sizeof of the struct. */
BP_API bp_status bp_logprob_outputs_init(bp_logprob_outputs *outputs, size_t size);

/** Enqueues the pass over the logits and, with several ranks, one exchange of 16 bytes a token (collective: all ranks, equal batch
 * shapes). Batches of no tokens are answered. Errors: BP_ERR_INVALID_ARGUMENT (a dtype, negative chunk, columns other than the
 * config's, a missing or misaligned pointer, rows that overlap: by name with the numbers; more than max_tokens),
 * BP_ERR_OVERFLOW, BP_ERR_CAPTURE and what device and communicator report. Nothing was enqueued then, unless a device failed or a target
 * is bad; without a stream a call that failed has ended, too. */
BP_API bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch,
                                    const bp_logprob_outputs *outputs, bp_stream *stream);

typedef struct bp_logprob_gradients {
    size_t size;
    bp_token_values logprob_grad; /**< fp32, upstream; NULL: zeros */
    bp_token_values entropy_grad; /**< fp32, upstream; NULL: zeros. Else `saved` has entropies */
    const void *saved;            /**< of the forward of the same batch */
    uint64_t saved_bytes;
    bp_token_rows logits_grad; /**< shape of the logits, strides of its own; fp32, or the logits' dtype */
    int32_t
        in_place; /**< 1: logits_grad is the logits' memory, with its dtype and strides, and overwrites it. Nobody else may still need the
                         logits, another backward of them included. Without it, memory that has a byte, be it in a gap, between the
                         logits' first and last is refused */
} bp_logprob_gradients;

/** fp32 gradient, not in place. */
BP_API bp_status bp_logprob_gradients_init(bp_logprob_gradients *gradients, size_t size);

/** Enqueues the gradient of this rank's shard; no exchange. Every element of logits_grad is written (masked rows: zeros), nothing between
 * rows. Errors as bp_logprob_forward. */
BP_API bp_status bp_logprob_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                     const bp_logprob_gradients *gradients, bp_stream *stream);

/** Enqueues the least and the largest logit of each row of this rank's shard, without the temperature: a read of the logits of its own, for
 * statistics. No exchange. `least`, `largest`: fp32; NULL: not wanted. NaN where one of the row is; masked rows are not read and get 0. Targets are
 * not read and may be missing.
 * Errors as bp_logprob_forward. */
BP_API bp_status bp_logprob_range(bp_logprob *client, const bp_logprob_batch *batch, const bp_token_values *least,
                                  const bp_token_values *largest, bp_stream *stream);

/** Waits for the client's work (on cuda, and where no targets are checked: for all streams of the device) and tells of bad targets since
 * the last call (the first by token): BP_ERR_INVALID_ARGUMENT. Not while capturing. Other errors: what the device reports. */
BP_API bp_status bp_logprob_check(bp_logprob *client);

#ifdef __cplusplus
}
#endif
#endif
