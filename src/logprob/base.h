/* What both clients are made of: a device's engine, workspaces, ranks, and the way from partial sums to outputs. */
#ifndef BP_LOGPROB_BASE_H
#define BP_LOGPROB_BASE_H

#include <bucketpool/logprob.h>

#include <stdbool.h>

#include "logprob/engine.h"
#include "logprob/ranks.h"
#include "logprob/workspace.h"

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

/* Where a forward pass writes to, checked. */
typedef struct bp_outputs_work {
    const bp_logprob_outputs *outputs;
    bp_saved_work saved;
} bp_outputs_work;

bp_status bp_check_outputs(const char *call, const bp_logprob_outputs *outputs, uint64_t batch, uint64_t sequence,
                           bp_outputs_work *work);

/* From partial sums, in the workspace that holds them, to outputs: exchanges them where there are several ranks. Gives the workspace back.
 * Stream order; collective with several ranks. */
bp_status bp_base_finish_partials(bp_base *base, const bp_tokens_work *tokens, const bp_partial *partials, float scale,
                                  const bp_outputs_work *outputs, bp_stream *stream);

/* Upstream gradients and statistics of a backward pass, checked and put into `work`. */
bp_status bp_check_upstream(const char *call, const bp_token_values *logprob_grad, const bp_token_values *entropy_grad,
                            const void *saved, uint64_t saved_bytes, uint64_t batch, uint64_t sequence,
                            bp_gradient_work *work);

#endif
