/** @file
 * Packed sequences on context-parallel (CP) ranks: the split, its inverse, and everything that belongs to a token. In the library
 * bucketpool-logprob.
 *
 * A packed batch is sequences one after the other; cu_seqlens says where each begins. Attention over a long sequence costs its last tokens
 * the most, so with R ranks every sequence is cut into 2 R chunks of equal length, and rank r has chunks r and 2 R - 1 - r (zigzag). For
 * that a sequence is padded to a multiple of 2 R first. With c = padded length / 2 R a token at offset o of sequence i is in chunk
 * k = o / c, and
 *
 *   rank  = k < R ? k : 2 R - 1 - k
 *   local = padded begin of i / R + (k < R ? 0 : c) + o - k c
 *
 * Four orders of tokens follow from this, and a tensor of any kind can be brought from one to another:
 *
 *   packed    as the caller has them: sequence after sequence
 *   padded    the same with padding at the end of each
 *   local     those of one rank, sequence after sequence, of each its two chunks
 *   gathered  all ranks' local ones, rank after rank: what an all-gather makes
 *
 * Which token a value belongs to decides what happens to it first: labels and loss masks speak of the next token and are shifted inside
 * each sequence (BP_CP_NEXT) before the split; ids, positions, advantages, returns and old log-probabilities are not.
 *
 * Sources: TransformerEngine's and Megatron-LM's split of packed (THD) batches; AReaL's context-parallel loss and what was wrong with it
 * (its pull request 1223). */
#ifndef BUCKETPOOL_CP_H
#define BUCKETPOOL_CP_H

#include <bucketpool/comm.h>
#include <bucketpool/device.h>
#include <bucketpool/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the split of a batch ------------------------------------------------------------------------------------------ */

/** A multiple that lengths must be padded to, for `ranks` CP ranks, with `tp` ranks of sequence parallelism (1: none), with fp8 or without:
 * 2 ranks tp, with fp8 the least common multiple with 16 ranks; for one CP rank tp, and with 16. Errors: BP_ERR_INVALID_ARGUMENT (0 ranks),
 * BP_ERR_OVERFLOW. */
BP_API bp_status bp_cp_multiple(uint32_t ranks, uint32_t tp, int fp8, uint64_t *multiple);

typedef enum bp_cp_order { BP_CP_PACKED = 0, BP_CP_PADDED = 1, BP_CP_LOCAL = 2, BP_CP_GATHERED = 3 } bp_cp_order;

/** "packed", "padded", "local", "gathered"; "invalid" otherwise. Static. */
BP_API const char *bp_cp_order_name(bp_cp_order order);

/** A batch and how it is split. It never changes; any thread may read it. */
typedef struct bp_cp_split bp_cp_split;

typedef struct bp_cp_split_config {
    size_t size;
    const void *
        cu_seqlens; /**< host memory; `sequences` + 1 values that never fall: 0, and the end of each sequence. Copied */
    const void
        *cu_padded; /**< the same of the padded batch, if the caller has padded it; NULL: it is padded to `multiple` */
    bp_dtype cu_dtype;    /**< of both: int32 or int64 */
    uint64_t sequences;   /**< may be 0, and sequences may be empty */
    uint32_t ranks, rank; /**< of context parallelism */
    uint64_t
        multiple; /**< of padded lengths; itself one of 2 ranks, unless there is one rank. 0: the least. Not with cu_padded */
    uint64_t
        total_multiple; /**< of the padded batch: a dummy sequence is added where it is short of it; a multiple of `multiple`. 0: none */
    int32_t
        last_is_dummy; /**< 1: the caller's last sequence is there to fill the batch: it is split, but never counted */
    bp_comm
        *comm; /**< of the CP ranks: they compare their batches (collective). NULL: they do not; bp_loss_reduce will */
} bp_cp_split_config;

/** int64, one rank. */
BP_API bp_status bp_cp_split_config_init(bp_cp_split_config *config, size_t size);

/** Computes on the host; touches no device. With a communicator collective: one exchange, and a rank that fails makes all fail.
 * Errors: BP_ERR_INVALID_ARGUMENT (cu_seqlens that does not begin with 0 or falls, padded lengths that are shorter than the sequence or not a
 * multiple of 2 ranks, a rank not below ranks, a `multiple` that will not do: with the sequence and the numbers), BP_ERR_MISMATCH (the
 * communicator has another number of ranks or this rank another number in it; another rank has another batch: names the rank),
 * BP_ERR_OVERFLOW, BP_ERR_UNSUPPORTED (more than 512 ranks that compare), BP_ERR_NO_HOST_MEMORY, BP_ERR_COMM. The caller owns the split:
 * bp_cp_split_destroy. It may go as soon as calls that it was handed to have returned. */
BP_API bp_status bp_cp_split_create(const bp_cp_split_config *config, bp_cp_split **split);
/** Accepts NULL and pointers to NULL; sets *split to NULL. */
BP_API void bp_cp_split_destroy(bp_cp_split **split);

typedef struct bp_cp_split_info {
    uint32_t ranks, rank;
    uint64_t sequences;                                  /**< with a dummy that was added */
    uint64_t data_sequences;                             /**< without any dummy */
    uint64_t data_tokens;                                /**< of those, without padding */
    uint64_t packed_tokens, padded_tokens, local_tokens; /**< gathered ones: as many as padded ones */
    uint64_t longest;     /**< padded length of the longest sequence; on a rank it has 1 / ranks of that */
    uint64_t fingerprint; /**< of lengths, padding and ranks; equal on all CP ranks */
} bp_cp_split_info;

/** Lives as long as the split and never changes. NULL for NULL. Any thread. */
BP_API const bp_cp_split_info *bp_cp_split_get_info(const bp_cp_split *split);

/** Where sequences begin in packed, padded or local order, and the end: `count` values, sequences + 1, of int32 or int64, to host memory, aligned
 * or not. Errors: BP_ERR_INVALID_ARGUMENT (gathered order, another count), BP_ERR_OVERFLOW (int32 does not hold them). */
BP_API bp_status bp_cp_split_cu_seqlens(const bp_cp_split *split, bp_cp_order order, bp_dtype dtype, uint64_t count,
                                        void *cu);

/** Which token of a sequence a place is given. NEXT: the one behind it; the last has none and is filled. NEXT_WRAPPED: the last gets the
 * first, as a roll does. Padding has no next one and is filled. */
typedef enum bp_cp_shift { BP_CP_KEEP = 0, BP_CP_NEXT = 1, BP_CP_NEXT_WRAPPED = 2 } bp_cp_shift;

/** The index map: for each of the `count` places in order `to` where in order `from` its token is; -1: nowhere (padding of packed
 * batches, tokens of other ranks, nothing next). To host memory; tensors indexed with it are what bp_cp_rearrange makes of them. Errors:
 * BP_ERR_INVALID_ARGUMENT (another count; a shift from local order with several ranks: what is next may be on another rank). */
BP_API bp_status bp_cp_split_map(const bp_cp_split *split, bp_cp_order from, bp_cp_order to, bp_cp_shift shift,
                                 uint64_t count, int64_t *map);

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

/** Something of each token, on a device. */
typedef struct bp_cp_tensor {
    void *data;
    uint64_t tokens;      /**< must be the split's number of them */
    uint64_t token_bytes; /**< of one token, all dimensions behind the first together; any number */
    int64_t stride;       /**< bytes between tokens, may be negative; 0: token_bytes */
} bp_cp_tensor;

/** What moves tensors on one device, and between the CP ranks. Thread safety: one call at a time per client. Calls may be on different streams:
 * what the client has of its own is ordered by it, the caller's tensors by the caller. */
typedef struct bp_cp bp_cp;

typedef struct bp_cp_config {
    size_t size;
    bp_comm *comm;               /**< of the CP ranks; must outlive the client. NULL: nothing is gathered from others */
    uint64_t max_gathered_bytes; /**< of a gather: padded tokens x bytes of a token. 0: nothing is gathered */
    uint32_t threads;            /**< host: as in bp_logprob_config */
    int32_t
        trusting; /**< 1: gathers do not compare first; a rank that refuses its arguments then leaves the others waiting */
} bp_cp_config;

/** No ranks, no gathers. */
BP_API bp_status bp_cp_config_init(bp_cp_config *config, size_t size);

/** Plans and makes the workspaces, `max_gathered_bytes` and a rank's share of it, and nothing is allocated later. With a communicator
 * collective: a rank that fails makes all fail. Devices: host and cuda. Errors: BP_ERR_INVALID_ARGUMENT,
 * BP_ERR_UNSUPPORTED (a device without kernels, more than 512 ranks), BP_ERR_MISMATCH (other ranks have another configuration),
 * BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_COMM. The caller owns the client: bp_cp_destroy. */
BP_API bp_status bp_cp_create(bp_device *device, const bp_cp_config *config, bp_cp **cp);
/** Waits for its work. Accepts NULL and pointers to NULL; sets *cp to NULL. */
BP_API void bp_cp_destroy(bp_cp **cp);

/** What serves the workspaces; NULL where nothing is gathered. Not a reference of its own. */
BP_API bp_pool *bp_cp_pool(const bp_cp *cp);

typedef struct bp_cp_rearrangement {
    size_t size;
    bp_cp_order from_order, to_order;
    bp_cp_tensor from, to; /**< equal bytes of a token; must not share memory, gaps between tokens included */
    bp_cp_shift shift;
    uint8_t fill[16];    /**< places without a token get this, */
    uint32_t fill_bytes; /**< 1, 2, 4, 8 or 16 bytes of it again and again; divides the bytes of a token. 0: zeros */
} bp_cp_rearrangement;

/** Packed to local, no shift, zeros. */
BP_API bp_status bp_cp_rearrangement_init(bp_cp_rearrangement *rearrangement, size_t size);

/** Enqueues: every token of `to` is written, nothing between them. Exact: bytes are moved as they are. On all sequences at once, whatever
 * their lengths. `stream` NULL: a stream of the client's own, and the call returns when all is done. Capture: may be captured, with the
 * split as it is (cuda). Not collective. Errors: BP_ERR_INVALID_ARGUMENT (a tensor of another number of tokens than the split's in
 * that order, bytes of a token, fill bytes, tensors that overlap, a shift of local tokens), BP_ERR_OVERFLOW, what the device reports. */
BP_API bp_status bp_cp_rearrange(bp_cp *cp, const bp_cp_split *split, const bp_cp_rearrangement *rearrangement,
                                 bp_stream *stream);

/** Collective: everybody's local tokens (log-probabilities, say) to packed or padded order, the same on all ranks. Ranks compare first what
 * they are about to do, on the host, unless they are trusting; a rank that fails then makes all fail. Errors: as
 * bp_cp_rearrange, BP_ERR_CAPTURE (the stream is being captured), BP_ERR_MISMATCH (names the rank), BP_ERR_COMM, more than
 * max_gathered_bytes. */
BP_API bp_status bp_cp_gather(bp_cp *cp, const bp_cp_split *split, const bp_cp_tensor *local, bp_cp_order order,
                              const bp_cp_tensor *whole, bp_stream *stream);

/** Collective, its backward: the gradients of `whole` on all ranks are summed, and each rank gets those of its local tokens, in `dtype` (fp32,
 * fp16 or bf16); padding of packed batches gets 0. A reduce-scatter. Where all ranks compute one loss from `whole`, each has all of its
 * gradient, and the sum is `ranks` times that: divide. Errors: as bp_cp_gather; BP_ERR_UNSUPPORTED (a communicator
 * without reduce_scatter). */
BP_API bp_status bp_cp_gather_backward(bp_cp *cp, const bp_cp_split *split, const bp_cp_tensor *whole,
                                       bp_cp_order order, bp_dtype dtype, const bp_cp_tensor *local, bp_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
