/* The beginning of a bucketpool.bench/1 document: which program on which machine the figures are of. */
#ifndef BENCH_JSON_HEAD_H
#define BENCH_JSON_HEAD_H

#include <stdio.h>

/* In quotes; control characters are left out. */
void bench_print_string(FILE *file, const char *text);

/* Members from "format" to "machine", without the comma after them. `date` may be NULL. */
void bench_print_head(FILE *file, const char *date);

#endif
