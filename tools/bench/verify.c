#include "bench/verify.h"

#include <math.h>
#include <stdio.h>

bench_reference bench_reference_of(const double *x, uint64_t columns)
{
    bench_reference r = {.max = x[0]};
    double sum = 0, weighted = 0;
    for (uint64_t v = 1; v < columns; v++)
        r.max = fmax(r.max, x[v]);
    for (uint64_t v = 0; v < columns; v++) {
        double e = exp(x[v] - r.max);
        sum += e;
        weighted += e * (x[v] - r.max);
    }
    r.log_sum = log(sum);
    r.energy = weighted / sum;
    return r;
}

double bench_reference_logprob(const bench_reference *r, const double *x, int64_t target)
{
    return x[target] - r->max - r->log_sum;
}

double bench_reference_entropy(const bench_reference *r)
{
    return r->log_sum - r->energy;
}

double bench_reference_gradient(const bench_reference *r, const bench_upstream *u, const double *x, uint64_t column,
                                double *size)
{
    double above = x[column] - r->max, p = exp(above - r->log_sum);
    double one = (int64_t)column == u->target ? 1 : 0;
    *size = fabs(u->logprob_grad) * (one + p) + fabs(u->entropy_grad) * p * (fabs(r->energy) + fabs(above));
    return u->logprob_grad * (one - p) + u->entropy_grad * p * (r->energy - above);
}

void bench_judge(bench_row *row, const char *what, uint64_t number, double value, double reference, double tolerance)
{
    if (row->wrong || fabs(value - reference) <= tolerance) /* false for NaN */
        return;
    char text[BENCH_ERROR_CHARS];
    snprintf(text, sizeof text, "%s %llu is %.9g instead of %.9g", what, (unsigned long long)number, value, reference);
    bench_refuse_row(row, text);
    row->wrong = true;
}

double bench_rounding(bp_dtype dtype, double value)
{
    switch (dtype) {
    case BP_DTYPE_BF16: return fabs(value) * 0x1p-8;
    case BP_DTYPE_FP16: return fabs(value) * 0x1p-11 + 0x1p-24; /* subnormal numbers, too */
    default: return 0;
    }
}
