/* SPDX-License-Identifier: Apache-2.0 */
/* Random batches of the fused head, and their fp64 reference, which stores all logits. */
#ifndef BP_TESTS_KERNELS_HEAD_HEADS_H
#define BP_TESTS_KERNELS_HEAD_HEADS_H

#include <bucketpool/lm_head.h>

#include "../support/batches.h"

/* From hidden states to gradients. */
typedef enum head_way { TWO_CALLS, ONE_CALL, KEPT_LOGITS, HEAD_WAYS } head_way;

typedef struct head_options {
    uint64_t batch, sequence, hidden, columns; /* columns: of the whole vocabulary */
    bp_dtype dtype;                            /* 0: fp32 */
    bp_dtype grad_dtype;                       /* of hidden_grad; 0: fp32 */
    layout hidden_at, weight_at, target, mask, upstream, outputs, hidden_grad_at, weight_grad_at;
    bool masked, with_entropy, without_logprob;
    bool accumulate;
    bool masked_is_nan; /* hidden states of masked tokens; otherwise large numbers */
    double temperature; /* 0: 1 */
    int64_t vocab_start;
    uint32_t outside_in_16, ignored_in_16;
    bool ignores_first;
    int64_t chunk;
    uint32_t threads;
    bool partial; /* hidden_grad is not summed over ranks */
    bool biased;
    bool excludes;    /* biases of -inf, and with them logits, for some columns */
    uint32_t targets; /* these as in batch_options */
    bool with_logsumexp, with_mean, heated;
    double soft_cap;
    bp_dtype rounding;
    head_way way;
    bool narrow_weight_grad; /* in `dtype` */
    uint64_t memory_bytes;   /* 0: the default */
} head_options;

typedef struct head_batch {
    head_options o;
    batch tokens; /* targets, masks, upstream gradients, outputs; tokens.x has the reference logits in fp64 */
    view hidden, weight, bias, hidden_grad, weight_grad, bias_grad;
    double *before;  /* initial contents of weight_grad, [columns, hidden]; those of bias_grad are the bias */
    double *product; /* per token, the largest sum of |h w| */
    float *kept;     /* logits, with KEPT_GAP elements between rows */
} head_batch;

head_batch new_head_batch(const head_options *options);
void free_head_batch(head_batch *h);
void poison_head(head_batch *h);

bp_lm_head_config head_config_of(const head_batch *h, shard part);
bp_lm_head_batch head_call_of(const head_batch *h, shard part);
bp_lm_head_gradients head_gradients_of(const head_batch *h, shard part);

/* False if this build or machine has no matrix products; prints that once. */
bool has_products(bp_device *device);
bp_lm_head *new_head(bp_device *device, const head_batch *h);
bp_status call_head(bp_lm_head *head, head_way way, const bp_lm_head_batch *call, const bp_logprob_outputs *outputs,
                    const bp_lm_head_gradients *gradients, bp_stream *stream);
/* Both passes, as the batch's way has them; asserts. */
void run_head(bp_lm_head *head, const head_batch *h);
/* Poisons, runs and compares; asserts. */
void check_head(bp_lm_head *head, head_batch *h);

/* Comparison; prints errors. `summed`: this rank's part of hidden_grad; weight_grad is compared in `part`. */
bool head_outputs_are_true(const head_batch *h);
bool hidden_grad_is_true(const head_batch *h, shard summed);
bool weight_grad_is_true(const head_batch *h, shard part); /* and bias_grad */

#endif
