/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the clients: argument checks, workspaces, status agreement of ranks, and the base with its device engine. `call` is the
 * public function's name, for messages. */
#ifndef BP_LOGPROB_BASE_H
#define BP_LOGPROB_BASE_H

#include <bucketpool/logprob.h>
#include <bucketpool/pool.h>

#include <stdbool.h>

#include "engine.h"

typedef struct bp_base bp_base;

/* ---- arguments: checked and converted into kernel arguments ----------------------------------------------------------- */

/* Sets the number of tokens. Error: more than `max`. */
bp_status bp_check_count(const char *call, uint64_t batch, uint64_t sequence, uint64_t max, uint64_t *tokens);

/* Checks rows of `columns` and fills in the strides where both are 0. `written`: rows must not overlap. Without tokens, nothing is checked. */
bp_status bp_check_rows(const char *call, const char *name, const bp_token_rows *rows, uint64_t columns, bool written,
                        bp_token_rows *checked);
/* One 4-byte value per token; absent where data is NULL. */
bp_status bp_check_values(const char *call, const char *name, const bp_token_values *values, uint64_t batch,
                          uint64_t sequence, bool written);
/* One byte per token; absent where data is NULL. */
bp_status bp_check_mask(const char *call, const bp_token_values *mask, uint64_t batch, uint64_t sequence);
/* The tokens of bp_logprob_batch_init and bp_lm_head_batch_init. */
#define BP_TOKENS_DEFAULTS                                                                                             \
    {                                                                                                                  \
        .target_dtype = BP_DTYPE_INT64, .targets = 1, .temperature = 1, .rounding = BP_DTYPE_FP32,                     \
        .ignore_index = BP_LOGPROB_IGNORED                                                                             \
    }
/* Everything in `given`; shapes only if there are tokens. */
bp_status bp_check_tokens(const char *call, const bp_base *base, const bp_logprob_tokens *given, bool reads_targets,
                          uint64_t batch, uint64_t sequence, bp_tokens_work *checked);

static inline uint64_t bp_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* 1 if the byte ranges of the two tensors overlap. */
bool bp_rows_overlap(const bp_token_rows *a, const bp_token_rows *b);

/* Float types of logits, hidden states and gradients. */
bool bp_is_row_dtype(bp_dtype dtype);

/* Outputs and statistics of a forward pass, checked and put into `work`. */
bp_status bp_check_outputs(const char *call, const bp_logprob_outputs *outputs, const bp_tokens_work *tokens,
                           bp_results_work *work);
/* The level of sums that the outputs need: a BP_SUMS_... */
int32_t bp_sums_level(const bp_results_work *results);
/* Upstream gradients and statistics of a backward pass, checked and put into `work`. */
bp_status bp_check_gradients(const char *call, const bp_logprob_gradients *gradients, const bp_tokens_work *tokens,
                             bp_gradient_work *work);
/* Both passes in one call: they share `saved`, and the gradient of entropies needs what their output saves. */
bp_status bp_check_one_call(const char *call, const bp_logprob_outputs *outputs, const void *saved,
                            const bp_token_values *entropy_grad);
/* One output or upstream gradient, of `count` values for each token. */
bp_status bp_check_output(const char *call, const char *name, const bp_token_values *values,
                          const bp_tokens_work *tokens, uint32_t count, bp_output_work *work);
bp_status bp_check_upstream(const char *call, const char *name, const bp_token_values *values,
                            const bp_tokens_work *tokens, uint32_t count, bp_upstream_work *work);
/* A buffer of statistics, as planes. `words`: about the tokens, for the message. */
bp_status bp_check_saved(const char *call, const void *saved, uint64_t saved_bytes, uint64_t needed, uint64_t tokens,
                         const char *words, float **planes);

/* ---- workspaces: requests of a plan, served by a pool ------------------------------------------------------------ */

#define BP_WORKSPACES 8

/* Live range of a workspace, as a bit set of the stages that use it. Workspaces of one stage never share memory. */
typedef struct bp_workspace_need {
    const char *name; /* "partials"; static */
    uint64_t bytes;   /* 0: absent, its address is NULL */
    uint32_t stages;
} bp_workspace_need;

typedef struct bp_workspace {
    bp_pool *pool;
    uint32_t ids[BP_WORKSPACES]; /* in the order of the needs */
    uint32_t held;               /* bit set of the acquired workspaces */
    uint64_t bytes, planned_bytes;
} bp_workspace;

/* Plans the workspaces and creates their pool, if one is not empty. Slabs are page-aligned, so the plan's sizes are those allocated. `name`: of the pool, in
 * messages. */
bp_status bp_workspace_init(bp_device *device, const char *name, const bp_workspace_need *needs, size_t count,
                            bp_workspace *workspace);
/* Waits for the device's streams. */
void bp_workspace_finish(bp_workspace *workspace);

/* Acquires and releases one workspace, by its index among the needs. */
bp_status bp_workspace_take(bp_workspace *workspace, uint32_t which, bp_stream *stream, void **address);
bp_status bp_workspace_give(bp_workspace *workspace, uint32_t which, bp_stream *stream);
/* Releases the workspaces of `which` (bits) that are acquired, also after a failure. Returns the first error, `status` before all. */
bp_status bp_workspace_drop(bp_workspace *workspace, uint32_t which, bp_stream *stream, bp_status status);

/* ---- ranks that share a vocabulary: collective status agreement, and their shards ------------------------------------- */

#define BP_MAX_RANKS 512 /* that share a vocabulary or a sequence */
#define BP_FEW_RANKS 64  /* their words fit the stack of a thread, which is 128 KiB in musl */
#define BP_TOLD_VALUES 8
#define BP_RANK_WORDS_CHARS 160

typedef struct bp_rank_words {
    int64_t status; /* of the rank so far */
    uint64_t values[BP_TOLD_VALUES];
    char words[BP_RANK_WORDS_CHARS]; /* error message; filled in by bp_ranks_exchange */
} bp_rank_words;

/* True for NULL and for communicators of one rank. */
bool bp_is_alone(const bp_comm *comm);

/* Collective status agreement, local if alone. Sends `mine` to all ranks; `told` holds one entry per rank. The first values, one for each
 * of `names` (NULL-terminated), must be equal on all ranks. Errors: this rank's own status; one that names a failed rank; BP_ERR_MISMATCH;
 * BP_ERR_COMM. */
bp_status bp_ranks_exchange(const char *call, bp_comm *comm, const bp_rank_words *mine, const char *const *names,
                            bp_rank_words *told);

/* Collective. Room for the words of all ranks: `few`, which has BP_FEW_RANKS, or allocated. A rank whose allocation failed reports it in a byte,
 * because the others would wait for it: BP_ERR_NO_HOST_MEMORY on all ranks. BP_ERR_UNSUPPORTED: more than `max` ranks, 65536 at most. */
bp_status bp_rank_words_take(const char *call, bp_comm *comm, uint32_t max, bp_rank_words *few, bp_rank_words **told);
void bp_rank_words_give(const bp_rank_words *few, bp_rank_words *told);

/* bp_ranks_exchange without the ranks' words. BP_ERR_UNSUPPORTED: more than BP_MAX_RANKS ranks. */
bp_status bp_ranks_compare(const char *call, bp_comm *comm, const bp_rank_words *mine, const char *const *names);

/* Collective status agreement without values, local if alone. At most BP_MAX_RANKS ranks. */
bp_status bp_ranks_agree(const char *call, bp_comm *comm, bp_status status);

/* The vocabulary and its shards over the ranks of a communicator. */
typedef struct bp_vocab_shards {
    bp_comm *comm; /* NULL: one rank */
    uint32_t ranks;
    int64_t first;  /* the id of the vocabulary's first column */
    uint64_t vocab; /* over all ranks */
} bp_vocab_shards;

#define BP_SHARD_SAME 5

/* Creation arguments of a rank. */
typedef struct bp_shard {
    uint64_t start, columns;      /* of this rank */
    uint64_t same[BP_SHARD_SAME]; /* must be equal on all ranks; unused ones are 0 */
} bp_shard;

/* Collective. Errors as of bp_logprob_create, the same on all ranks. `names`: of the values in `same`, NULL-terminated. `status`: of this
 * rank so far; if one rank failed, all fail. */
bp_status bp_vocab_shards_init(const char *call, bp_comm *comm, const bp_shard *mine, const char *const *names,
                               bp_status status, bp_vocab_shards *shards);

/* ---- clients ----------------------------------------------------------------------------------------------------- */

/* Workspaces of every client; those of the client follow. */
enum { BP_WORK_BAD_TARGET = 0, BP_WORK_PARTIALS = 1, BP_WORK_GATHERED = 2, BP_WORK_OWN = 3 };
/* Stages for bp_workspace_need: partial sums are computed; they are exchanged and finished; from OWN on the client's. */
enum { BP_STAGE_PARTIALS = 1u, BP_STAGE_FINISH = 2u, BP_STAGE_OWN = 4u };

typedef struct bp_base_config {
    const char *call; /* creating function, for messages */
    const char *name; /* of the pool */
    uint64_t max_tokens;
    uint32_t max_targets;
    bp_shard shard;
    const char *same[BP_SHARD_SAME + 1]; /* names of the values that must match between shards, NULL-terminated */
    bp_comm *comm;
    bp_targets targets;
    uint32_t threads, kernels;
    bool continues;                 /* a forward pass sees the columns part by part (bp_forward_work) */
    const bp_workspace_need *needs; /* workspaces of the client */
    size_t need_count;
} bp_base_config;

struct bp_base {
    bp_device *device; /* kept alive by `own` */
    bp_engine *engine;
    bp_stream *own; /* for calls without a stream */
    bp_event *done; /* last call that may have recorded a bad target */
    uint64_t *bad;  /* as in bp_tokens_work */
    uint64_t told;  /* the host's copy of *bad */
    /* The request stays acquired until destruction: on the host, where guard mode would poison it. On cuda it does not, because a capture
     * must begin without acquired requests; its memory is that of no other request. */
    bool keeps_bad;
    bp_workspace workspace;
    bp_vocab_shards shards;
    uint64_t max_tokens, columns;
    uint32_t max_targets;
    int64_t start; /* the id of column 0 */
};

/* Creates the device's engine. BP_ERR_UNSUPPORTED: no kernels for the device. */
bp_status bp_engine_create(bp_device *device, uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine);

/* Ends a call with `status`. Without a caller's stream (`given` NULL) it waits for the client's stream, including the work of a failed
 * call. */
bp_status bp_call_end(bp_stream *own, bp_stream *given, bp_status status);

/* All-gathers `bytes` of each rank in rank order, in the order of `stream`. Callback communicators may lack collectives, but every
 * communicator exchanges host memory. */
bp_status bp_gather_bytes(const bp_device *device, bp_comm *comm, const void *mine, uint64_t bytes, void *all,
                          bp_stream *stream);

/* BP_ERR_CAPTURE: the stream is being captured. */
bp_status bp_check_not_captured(const char *call, bp_stream *stream);

/* Collective with several ranks: all succeed or all fail. `status`: of the caller so far. */
bp_status bp_base_init(bp_device *device, const bp_base_config *config, bp_status status, bp_base *base);
/* Waits for the device's streams. Accepts a base that is all zeros. */
void bp_base_finish(bp_base *base);

/* The caller's stream, or the base's where that is NULL. */
bp_stream *bp_base_stream(const bp_base *base, bp_stream *stream);
/* Ends a call with `status`. Without a caller's stream (`given` NULL) it waits and reports bad targets. */
bp_status bp_base_end(bp_base *base, bp_stream *given, bp_status status);
bp_status bp_base_check(bp_base *base);

/* A forward pass between its begin and its end. Its kernels write partials, or results if they see the whole vocabulary. */
typedef struct bp_forward_pass {
    bp_partial *partials; /* of all tokens; NULL: results are written */
    float *target_logits; /* of all tokens */
    uint64_t rank_bytes;  /* of both */
} bp_forward_pass;

/* Bytes of the partial sums and target logits of a rank, and of all ranks. */
bp_status bp_base_partials(const char *call, uint64_t tokens, uint32_t targets, uint32_t ranks, uint64_t *mine,
                           uint64_t *all);
/* Acquires the memory that the kernels of a forward pass over `tokens` need. `in_parts`: they see the columns part by part (`continues` of
 * the configuration). After success, bp_base_end_forward must follow. */
bp_status bp_base_begin_forward(const char *call, bp_base *base, const bp_tokens_work *tokens, bool in_parts,
                                bp_stream *stream, bp_forward_pass *pass);
/* The work of tokens that begin at `token` of the pass, without logits. */
bp_forward_work bp_forward_work_of(const bp_forward_pass *pass, const bp_tokens_work *tokens, uint64_t token,
                                   const bp_results_work *results);
/* With several ranks: all-gathers the partials and makes results of them. Releases what begin acquired, whatever the
 * `status` of the pass so far, and returns it or an error. Stream order; collective with several ranks. */
bp_status bp_base_end_forward(bp_base *base, const bp_tokens_work *tokens, const bp_forward_pass *pass,
                              const bp_results_work *results, bp_stream *stream, bp_status status);

#endif
