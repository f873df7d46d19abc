/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas of logprob.h in plain double, and the tolerances of kernels. */
#ifndef BP_TESTS_KERNELS_SUPPORT_REFERENCE_H
#define BP_TESTS_KERNELS_SUPPORT_REFERENCE_H

#include <bucketpool/dtype.h>

#include <stdbool.h>

/* Element `index` of fp32, bf16 or fp16 numbers. Writing rounds to nearest, ties to even. */
double element_at(const void *data, bp_dtype dtype, int64_t index);
void put_element(void *data, bp_dtype dtype, int64_t index, double value);
/* The value rounded to the dtype. */
double rounded_to(bp_dtype dtype, double value);

typedef struct true_row {
    double temperature;
    int64_t target; /* column; other values: not in the vocabulary */
    uint64_t columns;
    double max, log_sum, energy;
    double logprob, entropy, logsumexp, mean_logprob;
    double size; /* the largest finite |x| */
    double cap;  /* of x, for the gradient; 0: none */
} true_row;

/* Upstream gradients of a row: of all its targets, of those at the column, and of the other outputs. */
typedef struct true_upstream {
    double all, here, entropy, logsumexp, mean;
} true_upstream;

true_row row_of(const double *x, uint64_t columns, int64_t target, double temperature);
/* Log-probability of the logit x, and its gradient. */
double logprob_at(const true_row *row, double x);
double gradient_of_all(const true_row *row, double x, const true_upstream *up);
/* Its tolerance: in fp32 relative to the magnitudes of its terms; in bf16 and fp16 plus half a unit in the last place. */
double slack_of_all(const true_row *row, double x, const true_upstream *up, bp_dtype dtype);
/* Error of x, in temperatures, that a soft cap in fp32 adds. */
double cap_slack(const true_row *row);
/* Gradient of one logit, with the upstream gradients g of the log-probability and h of the entropy. */
double gradient_at(const true_row *row, double x, int64_t column, double g, double h);

/* Forward tolerance: 2e-6, or two units in the last place of fp32 if larger. NaN matches NaN, and infinities match exactly. */
bool is_near(double value, double expected);
/* Of gradient_at. */
double gradient_slack(const true_row *row, double x, int64_t column, double g, double h, bp_dtype dtype);
bool is_within(double value, double expected, double slack);

#endif
