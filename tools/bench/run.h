/* Measuring: each fills the rows of `b`. Returns EXIT_GO_ON, or the exit code after a message. */
#ifndef TOOLS_BENCH_RUN_H
#define TOOLS_BENCH_RUN_H

#include "bench/setup.h"

/* Logits that are there. */
int bench_run_logits(bench *b);
/* The fused head. */
int bench_run_head(bench *b);

/* What both have: forward and backward of something, at the shape's tensors. */
typedef struct bench_work {
    bp_status (*forward)(void *user);
    bp_status (*backward)(void *user);
    void *user;
    bp_stream *stream;
} bench_work;

typedef struct bench_sample {
    double forward, backward; /* seconds */
} bench_sample;

/* Each `repeats` times in a row, the mean of it; fewer times when an interrupt comes. */
bp_status bench_time(const bench_work *work, uint64_t repeats, bench_sample *sample);
/* How often something that takes so long is repeated, so that starting it takes no part in it. */
uint64_t bench_repeats(const bench_sample *sample);
/* Medians of samples, into a row; "interrupted" where there is none. */
bp_status bench_settle(const bench_sample *samples, size_t count, bench_row *row);

/* Outputs and gradients begin as NaN. */
bp_status bench_poison(bench *b, const bench_shape *shape);

/* The kernels that a client took: they must be those that were asked for. EXIT_GO_ON or an exit code. */
int bench_note_kernels(bench *b, const char *kernels, uint32_t threads);

#endif
