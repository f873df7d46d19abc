/* SPDX-License-Identifier: Apache-2.0 */
/* Private declarations of the fused head. */
#ifndef BP_LOGPROB_LM_HEAD_H
#define BP_LOGPROB_LM_HEAD_H

#include <bucketpool/lm_head.h>

#include "base.h"

/* Workspaces after those of every client. */
enum {
    BP_WORK_CHUNK = BP_WORK_OWN,
    BP_WORK_SCRATCH = BP_WORK_OWN + 2,
    BP_WORK_SUMS = BP_WORK_OWN + 3,
    BP_WORK_WEIGHT = BP_WORK_OWN + 4
};
#define BP_HEAD_WORKSPACES 5
#define BP_EXCHANGED_NUMEL 4096u /* elements of each rank per exchange */

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

#define BP_HEAD_MAX ((uint64_t)INT32_MAX / 2) /* products count in 31 bits, and narrowing in place doubles the stride */

/* Steps of a pass: at most so many tokens and columns, in turns in the chunk workspaces. */
typedef struct bp_head_shape {
    uint64_t tokens, columns;
    uint32_t chunks;
} bp_head_shape;

typedef struct bp_head_plan {
    bp_head_shape forward, backward, one_call; /* no tokens: not among the passes */
    uint64_t tile;                             /* columns of a product, at most: all of a step but on the host */
    bp_lm_head_sizes sizes;
} bp_head_plan;

/* `config`: vocab is the largest shard; comm is not read. */
bp_status bp_head_plan_make(const char *call, const bp_lm_head_config *config, uint32_t ranks, bool is_host,
                            bp_head_plan *plan);

/* The size of equal parts of at most `max` (not 0): a multiple of 64, unless one is enough. */
uint64_t bp_head_equal(uint64_t whole, uint64_t max);

/* Elements between rows of logits in a workspace, which begin at cache lines. */
uint64_t bp_head_stride(uint64_t columns);

/* ---- heads ------------------------------------------------------------------------------------------------------- */

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
    uint32_t passes;
    bp_head_plan plan;
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
    bp_matrix kept; /* logits of all tokens; data NULL: none */
    bp_tokens_work tokens;
    bp_logits_work logits; /* how they are made: rounding and cap; the rest is unset */
} bp_head_batch;

/* Checked outputs of a backward pass. */
typedef struct bp_head_gradients {
    bp_token_rows hidden; /* data NULL: not wanted */
    bp_matrix weight;     /* data NULL: not wanted */
    float *bias;          /* NULL: not wanted */
    bool adds;
    bp_gradient_work upstream; /* of all tokens, without logits and `out` */
} bp_head_gradients;

/* `call`: the public function's name, for messages. `pass`: its bit, of batches without kept logits. */
bp_status bp_head_check_batch(const char *call, const bp_lm_head *head, uint32_t pass, const bp_lm_head_batch *batch,
                              bp_head_batch *checked);
bp_status bp_head_check_gradients(const char *call, const bp_lm_head *head, uint64_t piece_tokens,
                                  const bp_head_batch *batch, const bp_lm_head_gradients *gradients,
                                  bp_head_gradients *checked);

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Tokens [batch, batch + batches) x [first, first + count): part of one sequence, or several whole ones. */
typedef struct bp_piece {
    uint64_t batch, batches, first, count;
    uint64_t token; /* index of the first one; the others follow */
    uint64_t rows;
} bp_piece;

/* A part of 0 is the whole. */
uint64_t bp_pieces_of(uint64_t whole, uint64_t part);
/* The size of equal pieces of at most `max` tokens (not 0), then their number, and each. */
uint64_t bp_piece_size(const bp_tokens_work *all, uint64_t max);
uint64_t bp_piece_count(const bp_tokens_work *all, uint64_t size);
bp_piece bp_piece_at(const bp_tokens_work *all, uint64_t size, uint64_t index);

/* The first or second half of a piece; whole sequences of several. */
bp_piece bp_piece_half(const bp_piece *p, unsigned half);

bp_tokens_work bp_piece_tokens(const bp_tokens_work *all, const bp_piece *p);
bp_results_work bp_piece_results(const bp_results_work *all, const bp_piece *p);
/* Statistics and upstream gradients of a piece; the rest as in `all`. */
bp_gradient_work bp_piece_gradient(const bp_gradient_work *all, const bp_piece *p);
/* Rows of a piece from `row` on that form one matrix: a constant stride that BLAS accepts; at least one. */
uint64_t bp_piece_matrix(const bp_token_rows *rows, const bp_piece *p, uint64_t row, bp_matrix *matrix);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A pass, and the streams of its kernels and products: the same one on the host. */
typedef struct bp_head_pass {
    bp_lm_head *head;
    const bp_head_batch *batch;
    const bp_head_shape *shape;
    void *scratch;
    bp_stream *stream, *multiplies;
    uint64_t size;         /* tokens of a piece */
    uint64_t parts, steps; /* of a piece; of all pieces */
} bp_head_pass;

/* A part of the vocabulary for the tokens of a piece. */
typedef struct bp_head_step {
    bp_piece piece;
    uint64_t index, part;
    uint64_t first, columns; /* in the weight of this rank */
    bool is_last;            /* of the piece */
} bp_head_step;

/* Orders `to` after the work enqueued on `from` so far. */
bp_status bp_head_order(bp_event *event, bp_stream *from, bp_stream *to);

/* Kernels of a piece in one workspace run beside products of its other half. Returns the number of parts of the step's rows, with one event of
 * the head each, and fills them. */
#define BP_HEAD_HALVES 2
unsigned bp_head_halves(const bp_head_pass *pass, const bp_head_step *step, bp_piece halves[BP_HEAD_HALVES]);

/* The products of a step with `d`, the gradient of its logits, and what follows the last one of a piece. `has_weight`: the logits' products
 * left a copy of the weight. */
bp_status bp_head_multiply_gradient(const bp_head_pass *pass, const bp_head_step *step, const bp_matrix *d,
                                    bool has_weight, const bp_head_gradients *out);
/* Gradients of no tokens are zero. */
bp_status bp_head_clear_gradients(const bp_lm_head *head, const bp_head_gradients *out, bp_stream *stream);

#endif
