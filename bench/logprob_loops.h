/* What log-probability kernels are measured against: scalar loops with libm, and loops that do nothing but move as much memory. */
#ifndef BENCH_LOGPROB_LOOPS_H
#define BENCH_LOGPROB_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Elements of a row: fp32, or bf16. */
typedef struct loop_row {
    const void *x;
    size_t columns;
    int is_bf16;
} loop_row;

typedef struct loop_statistics {
    float max, log_sum;
} loop_statistics;

/* The largest, the sum of expf, the output. */
float scalar_forward(const loop_row *row, size_t target, loop_statistics *statistics);
void scalar_backward(const loop_row *row, size_t target, const loop_statistics *statistics, float upstream, float *out);
/* The same in fp64. */
double exact_forward(const loop_row *row, size_t target);

/* Reads every byte, a multiple of 64. */
void read_bytes(const void *from, size_t bytes);
/* Reads `from`, and writes two or four bytes past the caches for every two read; `to` is aligned to 16. */
void spread_bytes(const void *from, size_t bytes, int doubles, void *to);

#endif
