/* Answers of `bench offload` on standard output. Each returns EXIT_GO_ON or an exit code. */
#ifndef TOOLS_BENCH_OFFLOAD_REPORT_H
#define TOOLS_BENCH_OFFLOAD_REPORT_H

#include "bench/offload_run.h"

int bench_offload_table(const bench_offload *b);
/* bucketpool.bench/1 */
int bench_offload_json(const bench_offload *b);

#endif
