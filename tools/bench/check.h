/* Results that a measured row left, for some tokens. What is wrong is noted in the row; a status other than BP_OK is about looking. */
#ifndef TOOLS_BENCH_CHECK_H
#define TOOLS_BENCH_CHECK_H

#include "bench/setup.h"

bp_status bench_check_logits(bench *b, bench_row *row);
bp_status bench_check_head(bench *b, bench_row *row);

#endif
