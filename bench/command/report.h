/* Answers of `bench logprob` on standard output. Each returns EXIT_GO_ON or an exit code. */
#ifndef BP_BENCH_COMMAND_REPORT_H
#define BP_BENCH_COMMAND_REPORT_H

#include "bench/command/setup.h"

int bench_report_table(const bench *b);
/* bucketpool.bench/1 */
int bench_report_json(const bench *b);

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Results that a measured row left, for some tokens. What is wrong is noted in the row; a status other than BP_OK is about looking. */

bp_status bench_check_logits(bench *b, bench_row *row);
bp_status bench_check_head(bench *b, bench_row *row);

/* ---- plain computations ------------------------------------------------------------------------------------------ */

/* Results beside a plain computation in double precision. */

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
