/* Launches of the CUDA kernels on the emulation, and tensors for them. */
#ifndef BP_TESTS_KERNELS_CUDA_LAUNCHES_H
#define BP_TESTS_KERNELS_CUDA_LAUNCHES_H

#include <stdbool.h>

#include "logprob/work.h"

/* Rows in an allocation of exactly their size, so that ASan sees overruns. Gaps between rows are 0xff bytes. */
typedef struct rows {
    bp_dtype dtype;
    uint32_t count, columns, shift; /* shift: elements after a 16-byte boundary */
    int64_t stride;
    char *memory, *data;
    int64_t *targets; /* of the logits */
} rows;

/* Filled from random_below. The target of the last row is in no column. */
rows new_rows(bp_dtype dtype, uint32_t count, uint32_t columns, uint32_t shift, uint32_t gap);
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

bp_partials_work partials_work(const rows *logits, int entropy, bp_partial *partials);
void make_partials(const rows *logits, int entropy, grid g, bp_partial *partials);

/* Outputs and statistics. */
typedef struct finished {
    float *logprob, *entropy, *max, *log_sum, *energy;
} finished;

finished new_finished(uint32_t tokens);
void free_finished(finished *f);
bp_finish_work finish_work(const finished *f, const bp_tokens_work *tokens, const bp_partial *partials, uint32_t ranks,
                           uint64_t vocab);

/* Statistics of the kernels' forward pass, and upstream gradients. */
typedef struct statistics {
    finished f;
    float *g, *h;
} statistics;

statistics new_statistics(const rows *logits);
void free_statistics(statistics *s);
bp_gradient_work gradient_work(const rows *logits, const statistics *s, const rows *out);
void run_gradient(const bp_gradient_work *work, grid g);
/* With entropy. */
void make_gradient(const rows *logits, const statistics *s, const rows *out, grid g);

#endif
