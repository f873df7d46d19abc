/* Results beside a plain computation in double precision. */
#ifndef TOOLS_BENCH_VERIFY_H
#define TOOLS_BENCH_VERIFY_H

#include "bench/setup.h"

/* What a row's logits come to. */
typedef struct bench_reference {
    double max, log_sum, energy; /* the names of logprob.h: M, log S, E */
} bench_reference;

/* The upstream gradients of a row. */
typedef struct bench_upstream {
    int64_t target;
    double logprob_grad, entropy_grad;
} bench_upstream;

#endif
