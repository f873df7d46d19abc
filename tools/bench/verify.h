/* Results beside a plain computation in double precision. */
#ifndef TOOLS_BENCH_VERIFY_H
#define TOOLS_BENCH_VERIFY_H

#include "bench/setup.h"

/* What a row's logits come to. */
typedef struct bench_reference {
    double max, log_sum, energy; /* the names of logprob.h: M, log S, E */
} bench_reference;

bench_reference bench_reference_of(const double *x, uint64_t columns);
double bench_reference_logprob(const bench_reference *r, const double *x, int64_t target);
double bench_reference_entropy(const bench_reference *r);

/* The upstream gradients of a row. */
typedef struct bench_upstream {
    int64_t target;
    double logprob_grad, entropy_grad;
} bench_upstream;

/* A logit's gradient, and how large the terms are that it is the sum of. */
double bench_reference_gradient(const bench_reference *r, const bench_upstream *u, const double *x, uint64_t column,
                                double *size);

/* Notes in the row the first value that is further from its reference than `tolerance`: "log-probability 7 is -3.1 instead of -3.2".
 * `number`: of the token, or of the row of the weight. */
void bench_judge(bench_row *row, const char *what, uint64_t number, double value, double reference, double tolerance);

/* What rounding a value to a dtype may change it by. */
double bench_rounding(bp_dtype dtype, double value);

#endif
