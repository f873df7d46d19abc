/* Random batches: logits, targets, masks and upstream gradients in memory of their own, their true results, and calls on them. */
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
    double spread, offset;              /* of logits; 0: spread 4 */
    int64_t vocab_start;
    uint32_t outside_in_16; /* so many of 16 targets are outside the vocabulary */
} batch_options;

typedef struct batch {
    batch_options o;
    view logits, target, mask, logprob, entropy, logprob_grad, entropy_grad, grad;
    double *x;      /* logits, [batch, sequence, columns], as numbers */
    uint8_t *saved; /* with margins of 64 bytes */
    uint64_t saved_bytes;
    uint8_t *original; /* the memory of the logits */
} batch;

/* Made and filled from random_below; gaps, and logits of masked rows, are poison. */
batch new_batch(const batch_options *options);
void free_batch(batch *b);
/* A new logit, also for the truth. */
void put_logit(batch *b, uint64_t i, uint64_t s, uint64_t column, double value);
/* The logits again as they were before they were overwritten. */
void restore_logits(batch *b);
uint64_t token_count(const batch *b);
bool is_masked(const batch *b, uint64_t i, uint64_t s);
true_row truth_of(const batch *b, uint64_t i, uint64_t s);
/* Upstream gradients of a token; 0 where there are none. */
double upstream_at(const view *v, uint64_t i, uint64_t s);
/* In (-1, 1). */
double random_fraction(void);

/* ---- calls --------------------------------------------------------------------------------------------------------- */

/* Columns [first, end) of the vocabulary, by their place in it. */
typedef struct shard {
    uint64_t first, end;
} shard;

/* For a shard of the batch: all of it for whole_shard. */
shard whole_shard(const batch *b);
bp_logprob_batch call_of(const batch *b, shard part);
bp_logprob_outputs outputs_of(const batch *b);
bp_logprob_gradients gradients_of(const batch *b, shard part);

/* One rank, the whole vocabulary. `kernels` and `threads` as in the config. */
bp_logprob *new_client(bp_device *device, const batch *b, uint32_t kernels, uint32_t threads);
void run_forward(bp_logprob *client, const batch *b);
void run_backward(bp_logprob *client, const batch *b);
/* Poisons the outputs, runs both, and compares everything with the truth: asserted. */
void check_both(bp_logprob *client, batch *b);

/* Kernels that this machine has: bits of the config, and how many. */
typedef struct kernels_row {
    const char *name;
    uint32_t bit;
} kernels_row;
extern const kernels_row KERNELS[];
#define KERNELS_COUNT 3
/* False, and said so once, where the machine lacks them. */
bool has_kernels(bp_device *device, const kernels_row *row);

/* ---- judgement ----------------------------------------------------------------------------------------------------- */

/* Outputs: those of masked rows 0, nothing else was written, logits as they were. Each prints what is wrong. */
bool outputs_are_true(const batch *b);
bool gradient_is_true(const batch *b, shard part);
bool inputs_are_whole(const batch *b);
void poison_outputs(batch *b, uint8_t poison);
void poison_gradient(batch *b, uint8_t poison);

#endif
