/* SPDX-License-Identifier: Apache-2.0 */
/* Private declarations of the fused head. */
#ifndef BP_LOGPROB_LM_HEAD_H
#define BP_LOGPROB_LM_HEAD_H

#include <bucketpool/lm_head.h>

#include "base.h"

/* Workspaces after those of every client. */
enum { BP_WORK_CHUNK = BP_WORK_OWN, BP_WORK_SCRATCH = BP_WORK_OWN + 2, BP_WORK_SUMS = BP_WORK_OWN + 3 };
#define BP_HEAD_WORKSPACES 4
#define BP_EXCHANGED_NUMEL 4096u /* elements of each rank per exchange */

/* Kernels run on the call's stream, products on the head's own, which only the host lacks, where both would use the same threads. A call forks
 * the head's stream and joins it before it returns, so callers see one stream, and a capture of it includes both. */
struct bp_lm_head {
    bp_base base;
    bp_lm_head_info info;
    bp_products *products;
    bp_stream *multiplies; /* NULL on the host */
    bp_event *moved;       /* for orders between the two streams; waited for right after its record */
    bp_event *graded[2];   /* after the logit gradient in a chunk workspace */
    bp_dtype dtype;
    uint64_t hidden;
    uint64_t chunk;       /* maximum tokens of a piece */
    uint64_t tile;        /* maximum columns of a step: all of them but on the host */
    uint32_t chunk_count; /* number of chunk workspaces */
    bool forward_only;
    bool sums;        /* sums hidden_grad over ranks */
    float *exchanged; /* [ranks], where the communicator lacks collectives; NULL on this device */
};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Checked hidden states and weight of a call. `token_count` 0: the rest is unset. */
typedef struct bp_head_batch {
    uint64_t token_count;
    bp_token_rows hidden; /* with strides */
    bp_matrix weight;
    bp_matrix bias; /* one row, at stride 0; data NULL: none */
    bp_tokens_work tokens;
    bp_logits_work logits; /* how they are made: rounding and cap; the rest is unset */
} bp_head_batch;

/* Checked outputs of a backward call. */
typedef struct bp_head_gradients {
    bp_token_rows hidden; /* data NULL: not wanted */
    bp_matrix weight;     /* data NULL: not wanted */
    float *bias;          /* NULL: not wanted */
    bool adds;
    bp_gradient_work upstream; /* of all tokens, without logits and `out` */
} bp_head_gradients;

/* `call`: the public function's name, for messages. */
bp_status bp_head_check_batch(const char *call, const bp_lm_head *head, const bp_lm_head_batch *batch,
                              bp_head_batch *checked);
bp_status bp_head_check_gradients(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                  const bp_lm_head_gradients *gradients, bp_head_gradients *checked);

#endif
