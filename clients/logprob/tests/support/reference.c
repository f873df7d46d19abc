/* SPDX-License-Identifier: Apache-2.0 */
/* Independent of the library. */
#include "reference.h"

#include <math.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static double from_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    double magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static double from_brain(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

double element_at(const void *data, bp_dtype dtype, int64_t index)
{
    switch (dtype) {
    case BP_DTYPE_FP32: return ((const float *)data)[index];
    case BP_DTYPE_BF16: return from_brain(((const uint16_t *)data)[index]);
    default: return from_half(((const uint16_t *)data)[index]);
    }
}

/* Rounds to a number of so many fraction bits and the given minimum exponent. */
static double round_bits(double value, int bits, int min)
{
    if (value == 0 || !isfinite(value))
        return value;
    int exponent;
    frexp(value, &exponent);
    int unit = (exponent > min ? exponent : min) - bits;
    return ldexp(nearbyint(ldexp(value, -unit)), unit);
}

double rounded_to(bp_dtype dtype, double value)
{
    switch (dtype) {
    case BP_DTYPE_FP32: return (float)value;
    case BP_DTYPE_BF16: return (float)round_bits(value, 8, -125);
    default: value = round_bits(value, 11, -13); return fabs(value) > 65504 ? copysign(INFINITY, value) : value;
    }
}

static uint16_t to_half(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    value = fabs(rounded_to(BP_DTYPE_FP16, value));
    if (isnan(value))
        return 0x7e00;
    if (isinf(value))
        return sign | 0x7c00;
    if (value < ldexp(1, -14))
        return (uint16_t)(sign | (uint16_t)ldexp(value, 24));
    int exponent;
    double fraction = frexp(value, &exponent);
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(fraction, 11) & 0x3ff));
}

static uint16_t to_brain(double value)
{
    float narrow = (float)rounded_to(BP_DTYPE_BF16, value);
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void put_element(void *data, bp_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case BP_DTYPE_FP32: ((float *)data)[index] = (float)value; break;
    case BP_DTYPE_BF16: ((uint16_t *)data)[index] = to_brain(value); break;
    default: ((uint16_t *)data)[index] = to_half(value); break;
    }
}

/* ---- the formulas -------------------------------------------------------------------------------------------------- */

static bool is_in(int64_t target, uint64_t columns)
{
    return target >= 0 && (uint64_t)target < columns;
}

double logprob_at(const true_row *row, double x)
{
    return (x - row->max) / row->temperature - row->log_sum;
}

true_row row_of(const double *x, uint64_t columns, int64_t target, double temperature)
{
    true_row row = {.temperature = temperature, .target = target, .columns = columns, .max = -INFINITY};
    double sum = 0;
    for (uint64_t v = 0; v < columns; v++)
        row.max = x[v] > row.max || isnan(x[v]) ? x[v] : row.max;
    for (uint64_t v = 0; v < columns; v++)
        sum += exp((x[v] - row.max) / temperature);
    row.log_sum = log(sum);
    for (uint64_t v = 0; v < columns; v++) {
        double a = (x[v] - row.max) / temperature, p = exp(a - row.log_sum);
        row.energy += p == 0 ? 0 : p * a;
    }
    row.entropy = row.log_sum - row.energy;
    row.logprob = is_in(target, columns) ? logprob_at(&row, x[target]) : 0;
    row.logsumexp = row.max / temperature + row.log_sum;
    for (uint64_t v = 0; v < columns; v++) {
        row.mean_logprob += logprob_at(&row, x[v]) / (double)columns;
        row.size = isfinite(x[v]) ? fmax(row.size, fabs(x[v])) : row.size;
    }
    return row;
}

double gradient_of_all(const true_row *row, double x, const true_upstream *up)
{
    double a = (x - row->max) / row->temperature, p = exp(a - row->log_sum), u = row->cap == 0 ? 0 : x / row->cap;
    double of_entropy = p == 0 ? 0 : p * (row->energy - a);
    double of_p = up->logsumexp - up->mean - up->all;
    return (up->here + up->mean / (double)row->columns + p * of_p + up->entropy * of_entropy) / row->temperature *
           (1 - u * u);
}

double gradient_at(const true_row *row, double x, int64_t column, double g, double h)
{
    return gradient_of_all(row, x, &(true_upstream){.all = g, .here = column == row->target ? g : 0, .entropy = h});
}

/* ---- tolerances ---------------------------------------------------------------------------------------------------- */

bool is_within(double value, double expected, double slack)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(value) : value == expected;
    return fabs(value - expected) <= slack;
}

bool is_near(double value, double expected)
{
    return is_within(value, rounded_to(BP_DTYPE_FP32, expected), fmax(2e-6, fabs(expected) * ldexp(1, -22)));
}

double cap_slack(const true_row *row)
{
    return row->cap == 0 ? 0 : 6e-7 * fmin(row->cap, row->size) / row->temperature;
}

double slack_of_all(const true_row *row, double x, const true_upstream *up, bp_dtype dtype)
{
    double a = (x - row->max) / row->temperature, p = exp(a - row->log_sum);
    double summed = fabs(up->all) + fabs(up->logsumexp) + fabs(up->mean) +
                    fabs(up->entropy) * (1 + fabs(row->energy) + (p == 0 ? 0 : fabs(a)));
    double slack = p == 0 ? 0 : p * summed * (3e-6 + 4e-7 * fabs(a) + 2 * cap_slack(row));
    slack += 1e-36 * summed + 3e-7 * fabs(up->here) + 3e-7 * fabs(up->mean) / (double)row->columns;
    /* 1 - (x / cap)^2 cancels where the cap saturates */
    slack += row->cap == 0 ? 0 : 1e-6 * (p * summed + fabs(up->here) + fabs(up->mean) / (double)row->columns);
    slack = slack / row->temperature + ldexp(1, -148); /* two units of the smallest subnormal */
    if (dtype == BP_DTYPE_BF16)
        slack += (fabs(gradient_of_all(row, x, up)) + slack) * ldexp(1, -8) + 1e-38;
    else if (dtype == BP_DTYPE_FP16)
        slack += (fabs(gradient_of_all(row, x, up)) + slack) * ldexp(1, -11) + ldexp(1, -25);
    return slack * 1.01;
}

double gradient_slack(const true_row *row, double x, int64_t column, double g, double h, bp_dtype dtype)
{
    const true_upstream up = {.all = g, .here = column == row->target ? g : 0, .entropy = h};
    return slack_of_all(row, x, &up, dtype);
}
