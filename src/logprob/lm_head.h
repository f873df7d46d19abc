/* The fused head from within. */
#ifndef BP_LOGPROB_LM_HEAD_H
#define BP_LOGPROB_LM_HEAD_H

#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>

#include "logprob/base.h"
#include "logprob/work.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Tokens [batch, batch + batches) x [first, first + count): a part of one sequence, or several whole ones. */
typedef struct bp_piece {
    uint64_t batch, batches, first, count;
    uint64_t token; /* number of its first one; the others follow */
    uint64_t rows;
} bp_piece;

/* How many pieces of at most `chunk` tokens (not 0). */
uint64_t bp_piece_count(uint64_t batch, uint64_t sequence, uint64_t chunk);
bp_piece bp_piece_at(uint64_t batch, uint64_t sequence, uint64_t chunk, uint64_t index);

/* Tokens and upstream gradients of a piece. */
bp_tokens_work bp_piece_tokens(const bp_tokens_work *all, const bp_piece *piece);
bp_saved_work bp_piece_saved(const bp_saved_work *all, const bp_piece *piece);
const float *bp_piece_values(const float *all, int64_t batch_stride, int64_t stride, const bp_piece *piece);

/* Rows of `piece` from number `row` on, as many as one matrix can hold (at least one): that have one distance, which BLAS can take. */
uint64_t bp_piece_matrix(const bp_token_rows *rows, const bp_piece *piece, uint64_t row, bp_matrix *matrix);

/* ---- the head ---------------------------------------------------------------------------------------------------- */

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

#endif
