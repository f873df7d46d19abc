/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the CUDA kernels on the emulation, and tensors for them. */
#ifndef BP_TESTS_KERNELS_CUDA_LAUNCHES_H
#define BP_TESTS_KERNELS_CUDA_LAUNCHES_H

#include <stdbool.h>

#include "work.h"

/* Rows in an allocation of exactly their size, so that ASan sees overruns. Gaps between rows are 0xff bytes. */
typedef struct rows {
    bp_dtype dtype;
    uint32_t count, columns, shift; /* shift: elements after a 16-byte boundary */
    int64_t stride;
    char *memory, *data;
    uint32_t targets_each;
    int64_t *targets; /* of the logits */
} rows;

/* Filled from random_below. The target of the last row is in no column. */
rows new_rows(bp_dtype dtype, uint32_t count, uint32_t columns, uint32_t shift, uint32_t gap);
/* As many random targets for each row, some equal and some in no column. */
void set_targets(rows *r, uint32_t each);
/* The same values in a new allocation. */
rows moved_rows(const rows *r, uint32_t shift, uint32_t gap);
/* For outputs: filled with NaN. */
rows empty_rows(bp_dtype dtype, uint32_t count, uint32_t columns, uint32_t shift, uint32_t gap);
void free_rows(rows *r);
bool rows_are_equal(const rows *a, const rows *b);
bool row_gaps_are_whole(const rows *r);

typedef struct grid {
    uint32_t blocks, parts, threads;
} grid;

/* Each launch uses another order of threads and blocks. */
void run(const char *kernel, grid g, const void *work);
void run_with(const char *kernel, grid g, unsigned shared_bytes, const void *work);

/* Names of the forms of kernels, by the sums that they make: BP_SUMS_PLAIN, WEIGHTED and TOTAL. */
extern const char *const FORMS[];

bp_tokens_work tokens_work(const rows *logits);
bp_logits_work logits_work(const rows *logits);
bp_forward_work partials_work(const rows *logits, int32_t level, bp_partial *partials, float *target_logits);
void run_forward(const bp_forward_work *work, grid g);
void make_partials(const rows *logits, int32_t level, grid g, bp_partial *partials, float *target_logits);

/* Outputs and saved statistics; NaN before a kernel writes them. */
typedef struct finished {
    uint32_t tokens, targets;
    float *logprob, *entropy, *logsumexp, *mean_logprob, *max, *log_sum, *energy;
} finished;

finished new_finished(uint32_t tokens, uint32_t targets);
void free_finished(finished *f);
bool finished_are_equal(const finished *a, const finished *b);
/* Of the results that need these sums. */
bp_results_work results_work(const finished *f, int32_t level);

/* Statistics of the kernels' forward pass, and upstream gradients. */
typedef struct statistics {
    finished f;
    float *g, *h, *z, *m; /* of the log-probabilities, entropy, logsumexp and mean_logprob */
} statistics;

statistics new_statistics(const rows *logits);
void free_statistics(statistics *s);
/* With the upstream gradients of this form. */
bp_gradient_work gradient_work(const rows *logits, const statistics *s, int32_t form, const rows *out);
void run_gradient(const bp_gradient_work *work, int32_t form, grid g);
void make_gradient(const rows *logits, const statistics *s, int32_t form, const rows *out, grid g);

#endif
