/* The formulas of logprob.h in double, written out plainly, and how near a kernel must come to them. */
#ifndef BP_TESTS_KERNELS_SUPPORT_REFERENCE_H
#define BP_TESTS_KERNELS_SUPPORT_REFERENCE_H

#include <bucketpool/dtype.h>

#include <stdbool.h>

/* Element `index` of fp32, bf16 or fp16 numbers. Writing rounds to nearest, ties to even. */
double element_at(const void *data, bp_dtype dtype, int64_t index);
void put_element(void *data, bp_dtype dtype, int64_t index, double value);
/* What the value is once it is such a number. */
double rounded_to(bp_dtype dtype, double value);

typedef struct true_row {
    double temperature;
    int64_t target; /* a column; others: not in the vocabulary */
    double max, log_sum, energy;
    double logprob, entropy;
} true_row;

true_row row_of(const double *x, uint64_t columns, int64_t target, double temperature);
/* Of one logit, with the upstream gradients g of the log-probability and h of the entropy. */
double gradient_at(const true_row *row, double x, int64_t column, double g, double h);

/* Forward: 2e-6, and two units in the last place of fp32 where that is more. NaN is near NaN, and an infinity near itself. */
bool is_near(double value, double expected);
/* Gradients in fp32, relative to the sizes of what is summed up; in bf16 and fp16 half a unit more. */
double gradient_slack(const true_row *row, double x, int64_t column, double g, double h, bp_dtype dtype);
bool is_within(double value, double expected, double slack);

#endif
