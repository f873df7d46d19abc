/* The parts that all clients share: checks of what callers hand over, workspaces, ranks, and a device's engine with the way from partial sums
 * to outputs. `call` is the function's name in messages. */
#ifndef BP_LOGPROB_BASE_H
#define BP_LOGPROB_BASE_H

#include <bucketpool/logprob.h>
#include <bucketpool/pool.h>

#include <stdbool.h>

#include "logprob/engine.h"

/* ---- arguments: checked, and turned into the work of kernels ----------------------------------------------------- */

/* How many tokens; at most `most`. */
bp_status bp_check_tokens(const char *call, uint64_t batch, uint64_t sequence, uint64_t most, uint64_t *tokens);

/* Rows of `columns`, with their strides filled in where both are 0. `written`: rows must not overlap each other. No tokens: nothing is
 * looked at. */
bp_status bp_check_rows(const char *call, const char *name, const bp_token_rows *rows, uint64_t columns, bool written,
                        bp_token_rows *checked);
/* A 4-byte value for each token, or nothing where data is NULL. */
bp_status bp_check_values(const char *call, const char *name, const bp_token_values *values, uint64_t batch,
                          uint64_t sequence, bool written);
/* Bytes, or nothing where data is NULL. */
bp_status bp_check_mask(const char *call, const bp_token_values *mask, uint64_t batch, uint64_t sequence);
/* Targets and mask. */
bp_status bp_check_targets(const char *call, const bp_token_values *target, bp_dtype dtype, const bp_token_values *mask,
                           uint64_t batch, uint64_t sequence, bp_tokens_work *tokens);
bp_status bp_check_temperature(const char *call, float temperature);

static inline uint64_t bp_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* 1: the bytes between the first and the last of one lie among those of the other. */
bool bp_rows_meet(const bp_token_rows *a, const bp_token_rows *b);

/* Float types that logits, hidden states and gradients may have. */
bool bp_is_row_dtype(bp_dtype dtype);

/* Where a forward pass writes to, checked. */
typedef struct bp_outputs_work {
    const bp_logprob_outputs *outputs;
    bp_saved_work saved;
} bp_outputs_work;

bp_status bp_check_outputs(const char *call, const bp_logprob_outputs *outputs, uint64_t batch, uint64_t sequence,
                           bp_outputs_work *work);

/* Upstream gradients and statistics of a backward pass, checked and put into `work`. */
bp_status bp_check_upstream(const char *call, const bp_token_values *logprob_grad, const bp_token_values *entropy_grad,
                            const void *saved, uint64_t saved_bytes, uint64_t batch, uint64_t sequence,
                            bp_gradient_work *work);

/* ---- workspaces: requests of a plan, served by a pool ------------------------------------------------------------ */

#define BP_WORKSPACES 8

/* When a workspace is in use: stages of the client's work, as bits. Two workspaces of one stage never share memory. */
typedef struct bp_workspace_need {
    const char *name; /* "partials"; static */
    uint64_t bytes;   /* 0: none; its address is NULL */
    uint32_t stages;
} bp_workspace_need;

typedef struct bp_workspace {
    bp_pool *pool;
    uint32_t ids[BP_WORKSPACES]; /* in the order of the needs */
    uint32_t held;               /* bits: taken and not given back */
    uint64_t bytes, planned_bytes;
} bp_workspace;

/* Plans and makes them, each from a page of its own, as devices make slabs of whole pages: so the plan says what is made. `name`: of the
 * pool, in messages. */
bp_status bp_workspace_init(bp_device *device, const char *name, const bp_workspace_need *needs, size_t count,
                            bp_workspace *workspace);
/* Waits for the device's streams. */
void bp_workspace_finish(bp_workspace *workspace);

/* Acquire and release of one workspace, by its place among the needs. */
bp_status bp_workspace_take(bp_workspace *workspace, uint32_t which, bp_stream *stream, void **address);
bp_status bp_workspace_give(bp_workspace *workspace, uint32_t which, bp_stream *stream);
/* Gives back what a call that failed left behind: those of `which` (bits) that are held. */
bp_status bp_workspace_drop(bp_workspace *workspace, uint32_t which, bp_stream *stream);

/* ---- the ranks that share a vocabulary: what they agree on, and the shards that they have ------------------------ */

#define BP_MOST_RANKS 512 /* whose words a function keeps on its stack: one without memory could not tell the others */
#define BP_TOLD_VALUES 8
#define BP_TOLD_WORDS 160

typedef struct bp_told {
    int64_t status; /* how the rank fared until here */
    uint64_t values[BP_TOLD_VALUES];
    char words[BP_TOLD_WORDS]; /* what went wrong: filled in where ranks tell it */
} bp_told;

/* NULL and communicators of one rank: there is nobody to ask. */
bool bp_is_alone(const bp_comm *comm);

/* Collective, unless alone. `mine` to all ranks; `told` has room for all. The first values, one for each of `names` (NULL ends them), must be
 * equal on all ranks. Errors: this rank's own status, one that names a rank that failed, BP_ERR_MISMATCH, BP_ERR_COMM. */
bp_status bp_ranks_tell(const char *call, bp_comm *comm, const bp_told *mine, const char *const *names, bp_told *told);

/* The same where nobody needs what the others told: at most BP_MOST_RANKS of them, else BP_ERR_UNSUPPORTED. */
bp_status bp_ranks_compare(const char *call, bp_comm *comm, const bp_told *mine, const char *const *names);

/* Collective, unless alone: whether all ranks succeeded. As many at most. */
bp_status bp_ranks_agree(const char *call, bp_comm *comm, bp_status status);

/* The vocabulary and its shards on the ranks of a communicator. */
typedef struct bp_vocab_shards {
    bp_comm *comm; /* NULL: one rank */
    uint32_t ranks;
    int64_t first;  /* the id of the vocabulary's first column */
    uint64_t vocab; /* of all ranks together */
} bp_vocab_shards;

#define BP_SHARD_SAME 4

/* What every rank is made with. */
typedef struct bp_shard {
    uint64_t start, columns;      /* its own */
    uint64_t same[BP_SHARD_SAME]; /* what must be equal on all ranks; what is not needed is 0 */
} bp_shard;

/* Collective. Errors as bp_logprob_create has them, the same on all ranks. `names`: of what is the same; NULL ends them. `status`: how this rank fared
 * until here: where it failed all fail. */
bp_status bp_vocab_shards_init(const char *call, bp_comm *comm, const bp_shard *mine, const char *const *names,
                               bp_status status, bp_vocab_shards *shards);

/* ---- clients ----------------------------------------------------------------------------------------------------- */

/* The first workspaces of every client; others follow. */
enum { BP_WORK_BAD_TARGET = 0, BP_WORK_PARTIALS = 1, BP_WORK_GATHERED = 2, BP_WORK_OWN = 3 };
/* Stages of a client's work, for bp_workspace_need: partial sums are made, they are exchanged and finished, a client's own from here on. */
enum { BP_STAGE_PARTIALS = 1u, BP_STAGE_FINISH = 2u, BP_STAGE_OWN = 4u };

typedef struct bp_base_config {
    const char *call; /* who makes it, in messages */
    const char *name; /* of the pool */
    uint64_t max_tokens;
    bp_shard shard;
    const char *same[BP_SHARD_SAME + 1]; /* names of what is the same in all shards, then NULL */
    bp_comm *comm;
    bp_targets targets;
    uint32_t threads, kernels;
    const bp_workspace_need *needs; /* the client's own */
    size_t need_count;
} bp_base_config;

typedef struct bp_base {
    bp_device *device; /* kept by the stream */
    bp_engine *engine;
    bp_stream *own;     /* for calls without a stream */
    bp_event *done;     /* the last call that may have found a bad target */
    bp_bad_target *bad; /* NULL: any target will do */
    bool keeps_bad;     /* the workspace is held as long as the base lives */
    bp_workspace workspace;
    bp_vocab_shards shards;
    uint64_t max_tokens, columns;
    int64_t start; /* the id of column 0 */
} bp_base;

/* The engine that fits the device. Errors: BP_ERR_UNSUPPORTED. */
bp_status bp_engine_create(bp_device *device, uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine);

/* The end of a call that came to `status`. Without a stream of the caller's (`given` NULL) it waits on the client's own, also for what a call
 * that failed had enqueued there. */
bp_status bp_call_end(bp_stream *own, bp_stream *given, bp_status status);

/* All ranks' `bytes`, in rank order, in the order of `stream`. Communicators of callbacks may have no collectives, but every one exchanges host
 * memory. */
bp_status bp_gather_bytes(const bp_device *device, bp_comm *comm, const void *mine, uint64_t bytes, void *all,
                          bp_stream *stream);

/* Errors: BP_ERR_CAPTURE. */
bp_status bp_check_not_captured(const char *call, bp_stream *stream);

/* Collective with several ranks: all succeed or all fail. `status`: how the caller fared until here. */
bp_status bp_base_init(bp_device *device, const bp_base_config *config, bp_status status, bp_base *base);
/* Waits for the device's streams. Also of one that is all zeros. */
void bp_base_finish(bp_base *base);

/* The stream that a call is on: the caller's, or the base's own where that is NULL. */
bp_stream *bp_base_stream(const bp_base *base, bp_stream *stream);
/* The end of a call: `status` is how it went; `given` the caller's stream. Without one it waits, and tells of bad targets. */
bp_status bp_base_end(bp_base *base, bp_stream *given, bp_status status);
bp_status bp_base_check(bp_base *base);

/* From partial sums, in the workspace that holds them, to outputs: exchanges them where there are several ranks. Gives the workspace back.
 * Stream order; collective with several ranks. */
bp_status bp_base_finish_partials(bp_base *base, const bp_tokens_work *tokens, const bp_partial *partials, float scale,
                                  const bp_outputs_work *outputs, bp_stream *stream);

#endif
