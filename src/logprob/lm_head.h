/* The fused head from within. */
#ifndef BP_LOGPROB_LM_HEAD_H
#define BP_LOGPROB_LM_HEAD_H

#include <bucketpool/lm_head.h>

#include "logprob/base.h"
#include "logprob/lm_head_pieces.h"
#include "logprob/products.h"

/* Workspaces beyond those of every client. */
enum { BP_WORK_CHUNK = BP_WORK_OWN, BP_WORK_SCRATCH = BP_WORK_OWN + 2, BP_WORK_SUMS = BP_WORK_OWN + 3 };
#define BP_HEAD_WORKSPACES 4
#define BP_EXCHANGED_NUMEL 4096u /* of each rank at once */

/* Kernels run on the stream of the call, products on one of the head's own. A call forks it off and joins it at its end, so that the
 * caller's stream is all that a caller needs to know, and a captured one takes it along. */
struct bp_lm_head {
    bp_base base;
    bp_lm_head_info info;
    bp_products *products;
    bp_stream *multiplies;
    bp_event *moved;     /* from one of the two streams to the other: waited for at once */
    bp_event *graded[2]; /* the gradient of logits in a chunk workspace is there */
    bp_dtype dtype;
    uint64_t hidden;
    uint64_t chunk;       /* tokens of a piece at most */
    uint32_t chunk_count; /* workspaces */
    bool forward_only;
    bool sums;        /* hidden_grad over ranks */
    float *exchanged; /* of all ranks, where communicators have no collectives; NULL: not on this device */
};

/* Hidden states and weight of a call, checked. `token_count` 0: nothing else is set. */
typedef struct bp_head_batch {
    uint64_t token_count;
    bp_token_rows hidden; /* with strides */
    bp_matrix weight;
    bp_tokens_work tokens;
    float alpha; /* 1 / temperature */
} bp_head_batch;

/* Where the gradients of a call go, checked. */
typedef struct bp_head_gradients {
    bp_token_rows hidden; /* data NULL: not wanted */
    bp_matrix weight;     /* data NULL: not wanted */
    bool adds;
    bp_gradient_work upstream; /* of all tokens; without logits and `out` */
} bp_head_gradients;

bp_status bp_check_head_batch(const char *call, const bp_lm_head *head, const bp_lm_head_batch *batch,
                              bp_head_batch *checked);
bp_status bp_check_head_gradients(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                  const bp_lm_head_gradients *gradients, bp_head_gradients *checked);

/* `to` goes on when `from` has come to this point. */
bp_status bp_head_order(bp_event *event, bp_stream *from, bp_stream *to);
/* Begins a call on `stream`: the head's own stream goes on from there, with the scratch memory. */
bp_status bp_head_fork(bp_lm_head *head, bp_stream *stream, void **scratch);
/* The caller's stream waits for the head's. After a failure all workspaces are given back, and work that nobody would wait for is waited
 * for here. */
bp_status bp_head_join(bp_lm_head *head, bp_stream *stream, bp_status status);

/* Logits of piece number `index` into a chunk workspace, taken here; `stream` waits for them. */
bp_status bp_head_logits(bp_lm_head *head, const bp_head_batch *batch, const bp_piece *piece, uint64_t index,
                         void *scratch, bp_stream *stream, bp_logits_work *logits, void **chunk);

/* hidden_grad of a piece: multiplied here, on the head's stream, into the caller's memory or, to be summed, into a workspace. */
bp_status bp_head_hidden_grad(bp_lm_head *head, const bp_piece *piece, const bp_product_work *product,
                              const bp_token_rows *out, bp_stream *stream);
/* The rest of it, on the stream of the call: the sum over ranks. To be called when more products are on their way. */
bp_status bp_head_sum(bp_lm_head *head, const bp_piece *piece, const bp_token_rows *out, bp_stream *stream);

#endif
