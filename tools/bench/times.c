#include "bench/times.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

bench_spread bench_spread_of(double *values, size_t count)
{
    double median = bench_median(values, count);
    return count > 0 ? (bench_spread){median, values[0], values[count - 1]} : (bench_spread){0};
}
