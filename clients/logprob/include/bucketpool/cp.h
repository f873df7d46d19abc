/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Packed sequences on context-parallel (CP) ranks: the split of a batch, its inverse, and the rearrangement of
 * per-token tensors. In the library bucketpool-logprob.
 *
 * A packed batch is several sequences, one after the other; cu_seqlens has their beginnings. Attention costs most for
 * the last tokens of a sequence. So with R ranks every sequence is padded to a multiple of 2 R and cut into 2 R equal
 * chunks, and rank r has chunks r and 2 R - 1 - r (zigzag). With c = padded length / 2 R, the token at offset o of
 * sequence i is in chunk k = o / c, and
 * @verbatim
 * rank  = k < R ? k : 2 R - 1 - k
 * local = padded begin of i / R + (k < R ? 0 : c) + o - k c
 * @endverbatim
 *
 * Tensors can be converted between four orders of tokens:
 * - packed: the batch of the caller, sequence after sequence
 * - padded: the same, with padding at the end of each sequence
 * - local: the tokens of one rank, sequence after sequence, two chunks each
 * - gathered: the local tokens of all ranks, rank after rank, as an all-gather returns them
 *
 * Labels and loss masks belong to the next token: shift them inside each sequence (BP_CP_NEXT) before the split. Ids,
 * positions, advantages, returns and old log-probabilities are not shifted.
 *
 * Sources: the split of packed (THD) batches in TransformerEngine and Megatron-LM; the context-parallel loss of AReaL
 * and its pull request 1223. */
#ifndef BUCKETPOOL_CP_H
#define BUCKETPOOL_CP_H

#include <bucketpool/comm.h>
#include <bucketpool/device.h>
#include <bucketpool/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the split of a batch ------------------------------------------------------------------------------------------ */

/** The multiple that padded lengths must have for `ranks` CP ranks and `tp` ranks of sequence parallelism (1: none): 2
 * ranks tp, with fp8 the least common multiple with 16 ranks. For one CP rank: tp, with fp8 the least common multiple
 * with 16.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (0 ranks), BP_ERR_OVERFLOW. */
BP_API bp_status bp_cp_multiple(uint32_t ranks, uint32_t tp, int fp8, uint64_t *multiple);

typedef enum bp_cp_order { BP_CP_PACKED = 0, BP_CP_PADDED = 1, BP_CP_LOCAL = 2, BP_CP_GATHERED = 3 } bp_cp_order;

/** The name of an order: "packed", "padded", "local", "gathered"; "invalid" for other values. Static. */
BP_API const char *bp_cp_order_name(bp_cp_order order);

/** The split of a batch. It never changes; any thread may read it. */
typedef struct bp_cp_split bp_cp_split;

typedef struct bp_cp_split_config {
    size_t size;
    /** host memory; `sequences` + 1 non-decreasing values: 0 and the end of each sequence. Copied */
    const void *cu_seqlens;
    /** the same for the padded batch, if the caller has padded it. NULL: padded to `multiple` */
    const void *cu_padded;
    bp_dtype cu_dtype;    /**< dtype of both: int32 or int64 */
    uint64_t sequences;   /**< may be 0; sequences may be empty */
    uint32_t ranks, rank; /**< number of CP ranks, and this rank */
    /** multiple of padded lengths, itself a multiple of 2 ranks, unless there is one rank. 0: the smallest. Not with
     * cu_padded */
    uint64_t multiple;
    /** multiple of the padded batch, itself a multiple of `multiple`: a dummy sequence fills the batch up. 0: none */
    uint64_t total_multiple;
    int32_t last_is_dummy; /**< 1: the last sequence is a dummy: it is split, but never counted */
    /** communicator of the CP ranks, which compare their batches (collective). NULL: they do not; bp_loss_reduce will */
    bp_comm *comm;
} bp_cp_split_config;

/** Sets the defaults: int64, one rank. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_cp_split_config_init(bp_cp_split_config *config, size_t size);

/** Computes a split on the host, without a device. With a communicator it is collective, with one exchange, and an
 * error of one rank is an error of all. The caller owns the split: bp_cp_split_destroy, as soon as calls with it have
 * returned.
 *
 * Errors:
 * - BP_ERR_INVALID_ARGUMENT, with the sequence and the numbers: cu_seqlens that do not begin with 0 or decrease,
 *   padded lengths that are too short or not a multiple of 2 ranks, rank >= ranks, an unsuitable `multiple`.
 * - BP_ERR_MISMATCH: the communicator has another number of ranks or another rank here, or another rank (which the
 *   message names) has another batch.
 * - BP_ERR_UNSUPPORTED: a communicator of more than 512 ranks.
 * - BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_COMM. */
BP_API bp_status bp_cp_split_create(const bp_cp_split_config *config, bp_cp_split **split);
/** Destroys a split. Accepts NULL and a pointer to NULL; sets *split to NULL. */
BP_API void bp_cp_split_destroy(bp_cp_split **split);

typedef struct bp_cp_split_info {
    uint32_t ranks, rank;
    uint64_t sequences;                                  /**< including an added dummy */
    uint64_t data_sequences;                             /**< without dummies */
    uint64_t data_tokens;                                /**< tokens of these sequences, without padding */
    uint64_t packed_tokens, padded_tokens, local_tokens; /**< gathered tokens: as padded_tokens */
    uint64_t longest;     /**< padded length of the longest sequence; each rank has 1 / ranks of it */
    uint64_t fingerprint; /**< hash of lengths, padding and ranks; equal on all CP ranks */
} bp_cp_split_info;

/** Properties of a split. Lives as long as the split and never changes. NULL for NULL. Any thread. */
BP_API const bp_cp_split_info *bp_cp_split_get_info(const bp_cp_split *split);

/** Writes the beginnings of the sequences in packed, padded or local order, and the end: `count` = sequences + 1
 * values of int32 or int64, to host memory of any alignment.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (gathered order, another count), BP_ERR_OVERFLOW (a value does not fit int32). */
BP_API bp_status bp_cp_split_cu_seqlens(const bp_cp_split *split, bp_cp_order order, bp_dtype dtype, uint64_t count,
                                        void *cu);

/** The shift inside each sequence. Padding has no next token and is filled.
 * - BP_CP_KEEP: no shift.
 * - BP_CP_NEXT: each position gets the next token; the last position is filled.
 * - BP_CP_NEXT_WRAPPED: as BP_CP_NEXT, but the last position gets the first token, as torch.roll does. */
typedef enum bp_cp_shift { BP_CP_KEEP = 0, BP_CP_NEXT = 1, BP_CP_NEXT_WRAPPED = 2 } bp_cp_shift;

/** Writes an index map to host memory: for each of the `count` positions in order `to`, the position of its token in
 * order `from`; -1 if it has none (padding of packed batches, tokens of other ranks, no next token). Indexing a
 * tensor with it equals bp_cp_rearrange.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (another count; a shift from local order with several ranks, because the next token
 * may be on another rank). */
BP_API bp_status bp_cp_split_map(const bp_cp_split *split, bp_cp_order from, bp_cp_order to, bp_cp_shift shift,
                                 uint64_t count, int64_t *map);

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

/** A per-token tensor on a device. */
typedef struct bp_cp_tensor {
    void *data;
    uint64_t tokens;      /**< number of tokens of the split in this order */
    uint64_t token_bytes; /**< bytes of a token, the product of all dimensions after the first */
    int64_t stride;       /**< bytes between tokens, may be negative; 0: token_bytes */
} bp_cp_tensor;

/** A client that rearranges tensors on one device and gathers them from CP ranks. Thread safety: one call at a time
 * for a client. Calls may be on different streams: the client orders its workspaces, the caller orders the tensors. */
typedef struct bp_cp bp_cp;

typedef struct bp_cp_config {
    size_t size;
    bp_comm *comm; /**< communicator of the CP ranks; must outlive the client. NULL: no gathers */
    /** bytes of a gather at most: padded tokens x bytes of a token. 0: no gathers */
    uint64_t max_gathered_bytes;
    uint32_t threads; /**< host: as in bp_logprob_config */
    /** 1: gathers do not compare arguments first; the other ranks then wait forever for a rank that fails */
    int32_t trusting;
} bp_cp_config;

/** Sets the defaults: no communicator, no gathers. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_cp_config_init(bp_cp_config *config, size_t size);

/** Creates a client with its workspaces: `max_gathered_bytes`, and the share of a rank. Nothing is allocated later.
 * Collective with a communicator; an error of one rank is an error of all. Host and cuda devices. The caller owns the
 * client: bp_cp_destroy.
 *
 * Errors: BP_ERR_UNSUPPORTED (a device without kernels, more than 512 ranks), BP_ERR_MISMATCH (the configurations of
 * ranks differ), BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM. */
BP_API bp_status bp_cp_create(bp_device *device, const bp_cp_config *config, bp_cp **cp);
/** Waits for the work of the client and destroys it. Accepts NULL and a pointer to NULL; sets *cp to NULL. */
BP_API void bp_cp_destroy(bp_cp **cp);

/** The pool of the workspaces, borrowed; NULL without gathers. */
BP_API bp_pool *bp_cp_pool(const bp_cp *cp);

typedef struct bp_cp_rearrangement {
    size_t size;
    bp_cp_order from_order, to_order;
    bp_cp_tensor from, to; /**< equal bytes of a token; must not share memory, gaps included */
    bp_cp_shift shift;
    uint8_t fill[16]; /**< pattern for positions without a token */
    /** bytes of the pattern, which is repeated: 1, 2, 4, 8 or 16, a divisor of the bytes of a token. 0: zeros */
    uint32_t fill_bytes;
} bp_cp_rearrangement;

/** Sets the defaults: packed to local, no shift, zeros. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_cp_rearrangement_init(bp_cp_rearrangement *rearrangement, size_t size);

/** Enqueues a rearrangement of all sequences at once. Writes every token of `to` and nothing between tokens; bytes are
 * copied unchanged. `stream` NULL: a stream of the client, and the call returns after the work has run. Not
 * collective. Capture: on cuda, with the present split.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (tokens that differ from the split in that order, bytes of a token, fill bytes,
 * overlapping tensors, a shift of local tokens), BP_ERR_OVERFLOW, errors of the device. */
BP_API bp_status bp_cp_rearrange(bp_cp *cp, const bp_cp_split *split, const bp_cp_rearrangement *rearrangement,
                                 bp_stream *stream);

/** Collective: gathers the local tokens of all ranks (log-probabilities, for example) in packed or padded order, the
 * same on all ranks. The ranks first compare their arguments on the host, unless the client is `trusting`; an error
 * of one rank is then an error of all.
 *
 * Errors: as bp_cp_rearrange; BP_ERR_INVALID_ARGUMENT (more than max_gathered_bytes), BP_ERR_CAPTURE (the stream is
 * being captured), BP_ERR_MISMATCH (the message names the rank), BP_ERR_COMM. */
BP_API bp_status bp_cp_gather(bp_cp *cp, const bp_cp_split *split, const bp_cp_tensor *local, bp_cp_order order,
                              const bp_cp_tensor *whole, bp_stream *stream);

/** Collective: the backward of bp_cp_gather, a reduce-scatter. Sums the gradients of `whole` over all ranks and gives
 * each rank those of its local tokens, in `dtype` (fp32, fp16 or bf16). Padding of packed batches gets 0. If all
 * ranks compute one loss from `whole`, each has its full gradient and the sum is `ranks` times that: divide.
 *
 * Errors: as bp_cp_gather; BP_ERR_UNSUPPORTED (a communicator without reduce_scatter). */
BP_API bp_status bp_cp_gather_backward(bp_cp *cp, const bp_cp_split *split, const bp_cp_tensor *whole,
                                       bp_cp_order order, bp_dtype dtype, const bp_cp_tensor *local, bp_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
