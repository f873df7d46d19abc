/* Times of things that are measured in turns. */
#ifndef TOOLS_BENCH_TIMES_H
#define TOOLS_BENCH_TIMES_H

#include <stddef.h>

/* Of `count` values, which are put in order; of an even number the mean of the two in the middle. 0 of none. */
double bench_median(double *values, size_t count);

typedef struct bench_spread {
    double median, least, most;
} bench_spread;

/* Puts the values in order. Zeros of none. */
bench_spread bench_spread_of(double *values, size_t count);

#endif
