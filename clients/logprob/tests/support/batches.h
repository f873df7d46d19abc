/* SPDX-License-Identifier: Apache-2.0 */
/* Random batches: logits, targets, masks and upstream gradients in separate allocations, their fp64 results, and calls on them. */
#ifndef BP_TESTS_KERNELS_SUPPORT_BATCHES_H
#define BP_TESTS_KERNELS_SUPPORT_BATCHES_H

#include "reference.h"
#include "views.h"

#define POISON 0xff /* NaN in all dtypes; a target of -1 */

typedef struct batch_options {
    uint64_t batch, sequence, columns; /* of the whole vocabulary */
    bp_dtype dtype;                    /* 0: fp32 */
    bp_dtype grad_dtype;               /* 0: fp32 */
    bp_dtype target_dtype;             /* 0: int64 */
    layout logits, target, mask, upstream, outputs, grad;
    bool masked, in_place;
    bool without_logprob, with_entropy; /* of forward and of the gradients */
    double temperature;                 /* 0: 1 */
    double spread, offset;              /* of logits; 0: a spread of 4 */
    int64_t vocab_start;
    uint32_t outside_in_16; /* of 16 targets, how many are outside the vocabulary */
    uint32_t ignored_in_16; /* of 16 targets, how many are ignored; 0: ignore_index is none */
    bool ignores_first;     /* the ignored id is the vocabulary's first, not -100 */
    bool strict;            /* BP_TARGETS_ERROR; otherwise BP_TARGETS_MASK */
    uint32_t targets;       /* of a token; 0: 1 */
    bool with_logsumexp, with_mean;
    bool heated; /* a temperature for each token */
    double soft_cap;
    bp_dtype rounding; /* 0: fp32 */
    bool fused;        /* check_both runs both passes in one call */
} batch_options;

typedef struct batch {
    batch_options o;
    view logits, target, mask, temperatures, grad;
    view logprob, entropy, logsumexp, mean_logprob; /* outputs */
    view logprob_grad, entropy_grad, logsumexp_grad, mean_logprob_grad;
    double *x;      /* logits as doubles, [batch, sequence, columns] */
    uint8_t *saved; /* with margins of 64 bytes */
    uint64_t saved_bytes;
    uint8_t *original; /* copy of the logits' memory */
} batch;

/* Created and filled from random_below; gaps, and logits of masked rows, are poison. */
batch new_batch(const batch_options *options);
void free_batch(batch *b);
/* Replaces a logit, including that of the reference. */
void put_logit(batch *b, uint64_t i, uint64_t s, uint64_t column, double value);
/* Restores overwritten logits. */
void restore_logits(batch *b);
uint64_t token_count(const batch *b);
bool is_masked(const batch *b, uint64_t i, uint64_t s); /* or all targets are ignored */
bool is_ignored(const batch *b, uint64_t i, uint64_t s, uint32_t k);
/* A target outside the vocabulary makes the token NaN. */
bool is_bad(const batch *b, uint64_t i, uint64_t s);
bool has_bad(const batch *b);
/* Of the first target. */
true_row truth_of(const batch *b, uint64_t i, uint64_t s);
/* A logit of the reference, rounded and capped. */
double logit_at(const batch *b, uint64_t i, uint64_t s, uint64_t column);
/* The column of target k; outside of the vocabulary for others, and for ignored ones. */
int64_t target_column(const batch *b, uint64_t i, uint64_t s, uint32_t k);
/* Upstream gradients of a token for a column. */
true_upstream upstream_of(const batch *b, uint64_t i, uint64_t s, int64_t column);
/* The first value of a token. */
double upstream_at(const view *v, uint64_t i, uint64_t s);
double value_of(const view *v, uint64_t i, uint64_t s, uint32_t k);
/* In (-1, 1). */
double random_fraction(void);

/* ---- calls --------------------------------------------------------------------------------------------------------- */

/* Columns [first, end) of the vocabulary, by index. */
typedef struct shard {
    uint64_t first, end;
} shard;

/* For a shard of the batch; whole_shard for all of it. */
shard whole_shard(const batch *b);
bp_logprob_batch call_of(const batch *b, shard part);
bp_logprob_outputs outputs_of(const batch *b);
bp_logprob_gradients gradients_of(const batch *b, shard part);

/* A client of one rank with the whole vocabulary. `kernels` and `threads` as in the config. */
bp_logprob *new_client(bp_device *device, const batch *b, uint32_t kernels, uint32_t threads);
void run_forward(bp_logprob *client, const batch *b);
void run_backward(bp_logprob *client, const batch *b);
/* Both in one call. */
void run_fused(bp_logprob *client, const batch *b);
/* Poisons the outputs, runs both passes, and compares everything with fp64; asserts. */
void check_both(bp_logprob *client, batch *b);
/* With a new batch, which `change` (or NULL) edits first, and a new client. */
void check_options(bp_device *device, const batch_options *options, uint32_t kernels, uint32_t threads,
                   void (*change)(batch *b));

/* Kernels of this machine: bit of the config, and name. */
typedef struct kernels_row {
    const char *name;
    uint32_t bit;
} kernels_row;
extern const kernels_row KERNELS[];
#define KERNELS_COUNT 4
/* False if the machine lacks them; prints that once. */
bool has_kernels(bp_device *device, const kernels_row *row);

/* ---- comparison ---------------------------------------------------------------------------------------------------- */

/* Outputs match fp64, those of masked rows are 0, nothing else was written, and logits are unchanged. Each prints errors. */
bool outputs_are_true(const batch *b);
bool gradient_is_true(const batch *b, shard part);
bool inputs_are_whole(const batch *b);
void poison_outputs(batch *b, uint8_t poison);
void poison_gradient(batch *b, uint8_t poison);

#endif
