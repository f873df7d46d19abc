/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the fused head: random tensors of every layout, their fp64 reference, and the comparison with it. */
#ifndef BP_TESTS_KERNELS_HEAD_HEAD_CASES_H
#define BP_TESTS_KERNELS_HEAD_HEAD_CASES_H

#include <bucketpool/lm_head.h>

#include <stdbool.h>

/* From hidden states to gradients. */
typedef enum head_way { TWO_CALLS, ONE_CALL, KEPT_LOGITS, HEAD_WAYS } head_way;

typedef struct head_case {
    uint64_t batch, sequence, hidden, vocab;
    bp_dtype dtype;      /* of hidden states and weight */
    bp_dtype grad_dtype; /* of hidden_grad */
    int64_t chunk;
    uint64_t spare_tokens; /* max_tokens in addition to the batch */
    float temperature;
    bool has_mask, has_entropy, accumulate;
    bool by_token;     /* [sequence, batch, ...] layout */
    uint64_t gap;      /* elements between rows */
    uint64_t seed;     /* of the values */
    bool broadcasts;   /* upstream gradients have stride 0 */
    bool masks_finite; /* hidden states of masked tokens are finite */
    bool ignores;      /* targets of -100, which are otherwise outside the vocabulary */
    head_way way;
    bool narrow_weight_grad; /* in `dtype` */
    uint64_t memory_bytes;   /* 0: the default */
} head_case;

/* Inputs and fp64 results of a case. Inputs fit bf16, so they are the same in all dtypes. */
typedef struct head_values {
    head_case c;
    uint64_t tokens;
    double *hidden, *weight;  /* [tokens, hidden], [vocab, hidden] */
    double *upstream, *other; /* of log-probabilities and entropies */
    double *before;           /* initial contents of weight_grad */
    int64_t *target;
    uint8_t *mask;
    bool *kept;                                            /* neither masked nor ignored */
    double *logprob, *entropy, *hidden_grad, *weight_grad; /* expected results */
} head_values;

/* A random shape, layout and set of options. */
head_case random_case(uint64_t seed);
head_values values_of(const head_case *c);
void free_values(head_values *v);
/* The loss that the gradients belong to, in fp64. */
double loss_of(const head_values *v);

/* Tensors of a rank with columns [first, first + columns) of the vocabulary; outputs are poisoned. */
typedef struct head_tensors {
    const head_values *v;
    uint64_t first, columns;
    uint8_t *hidden, *weight, *target, *mask, *upstream, *other;
    uint8_t *logprob, *entropy, *saved, *hidden_grad, *weight_grad, *kept;
    uint64_t saved_bytes;
    double allowed; /* tolerance of gradients, relative to the largest */
    bp_lm_head_batch batch;
    bp_logprob_outputs outputs;
    bp_lm_head_gradients gradients;
} head_tensors;

head_tensors tensors_of(const head_values *v, uint64_t first, uint64_t columns);
void free_tensors(head_tensors *t);
/* The allocations and their sizes. */
#define HEAD_MEMORIES 12
typedef struct head_memory {
    uint8_t **at;
    uint64_t bytes;
} head_memory;
void memories_of(head_tensors *t, head_memory memories[HEAD_MEMORIES]);
/* Points the batch, outputs and gradients to the allocations. */
void describe(head_tensors *t);
/* Restores the initial contents. */
void poison(head_tensors *t);
/* FNV-1a over all outputs. */
uint64_t bits_of(const head_tensors *t);

bp_lm_head_config head_config_of(const head_case *c);
/* Both passes, as the case's way has them. */
bp_status call_head(bp_lm_head *head, const head_tensors *t, bp_stream *stream);

/* The largest error, relative to the tolerance of the dtype and magnitudes: up to 1 is correct. Written gaps and unwritten outputs count as
 * infinite. */
double wrong_outputs(const head_tensors *t);
double wrong_gradients(const head_tensors *t);

double random_unit(uint64_t *state);
uint64_t random_up_to(uint64_t *state, uint64_t max);

#endif
