/* Answers of `bench logprob` on standard output. Each returns EXIT_GO_ON or an exit code. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include "bench/setup.h"

int bench_report_table(const bench *b);
/* bucketpool.bench/1 */
int bench_report_json(const bench *b);

#endif
