/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of the head's results with fp64: logits are fp32 sums, so tolerances grow with the magnitude of their terms. */
#include "heads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool complain(const head_batch *h, const char *what, uint64_t row, uint64_t column, double value,
                     double expected, double slack)
{
    const head_options *o = &h->o;
    fprintf(stderr,
            "%s at %llu, %llu is %.9g, expected %.9g within %.2g (%llu x %llu tokens, %llu hidden, %llu columns, %s, "
            "chunk %lld)\n",
            what, (unsigned long long)row, (unsigned long long)column, value, expected, slack,
            (unsigned long long)o->batch, (unsigned long long)o->sequence, (unsigned long long)o->hidden,
            (unsigned long long)o->columns, bp_dtype_name(o->dtype), (long long)o->chunk);
    return false;
}

/* Tolerance of a logit, divided by the temperature. */
static double logit_slack(const head_batch *h, const true_row *row, uint64_t t)
{
    return 1e-6 * h->product[t] / row->temperature + cap_slack(row);
}

static bool head_output_is_true(const head_batch *h, const char *name, const view *v, uint32_t k, uint64_t t,
                                double expected, double slack)
{
    const double value = value_of(v, t / h->o.sequence, t % h->o.sequence, k);
    return is_within(value, expected, slack) || complain(h, name, t, k, value, expected, slack);
}

static bool head_token_is_true(const head_batch *h, uint64_t t)
{
    const batch *b = &h->tokens;
    const uint64_t i = t / h->o.sequence, s = t % h->o.sequence;
    const bool masked = is_masked(b, i, s);
    true_row row = {0};
    if (!masked)
        row = truth_of(b, i, s);
    const double slack = masked ? 0 : 4e-6 + 2 * logit_slack(h, &row, t) * (1 + fabs(row.energy));
    for (uint32_t k = 0; k < b->o.targets && !h->o.without_logprob; k++) {
        const int64_t column = target_column(b, i, s, k);
        const bool is_in = column >= 0 && column < (int64_t)h->o.columns && !masked;
        if (!head_output_is_true(h, "the log-probability", &b->logprob, k, t,
                                 is_in ? logprob_at(&row, logit_at(b, i, s, (uint64_t)column)) : 0, slack))
            return false;
    }
    return (!h->o.with_entropy || head_output_is_true(h, "the entropy", &b->entropy, 0, t, row.entropy, slack)) &&
           (!h->o.with_logsumexp || head_output_is_true(h, "logsumexp", &b->logsumexp, 0, t, row.logsumexp,
                                                        slack + 2e-7 * fabs(row.logsumexp))) &&
           (!h->o.with_mean || head_output_is_true(h, "mean_logprob", &b->mean_logprob, 0, t, row.mean_logprob,
                                                   masked ? 0 : slack + 1e-6 * row.size / row.temperature));
}

bool head_outputs_are_true(const head_batch *h)
{
    const batch *b = &h->tokens;
    for (uint64_t t = 0; t < token_count(b); t++)
        if (!head_token_is_true(h, t))
            return false;
    return (h->o.without_logprob || gaps_are_whole(&b->logprob, "log-probabilities")) &&
           (!h->o.with_entropy || gaps_are_whole(&b->entropy, "entropies"));
}

/* The gradient of a logit, and its tolerance. */
typedef struct true_gradient {
    double value, slack;
} true_gradient;

static true_gradient gradient_of(const head_batch *h, const true_row *row, uint64_t t, uint64_t v)
{
    const batch *b = &h->tokens;
    uint64_t i = t / h->o.sequence, s = t % h->o.sequence;
    true_upstream up = upstream_of(b, i, s, (int64_t)v);
    if (h->o.without_logprob) /* also where a test leaves upstream gradients out */
        up.all = up.here = 0;
    if (!h->o.with_entropy)
        up.entropy = 0;
    double x = logit_at(b, i, s, v), a = (x - row->max) / row->temperature, p = exp(a - row->log_sum);
    double summed =
        fabs(up.all) + fabs(up.logsumexp) + fabs(up.mean) + fabs(up.entropy) * (1 + fabs(row->energy) + fabs(a));
    double slack = p == 0 ? 0 : p * summed * (4e-6 + 4e-7 * fabs(a) + 4 * logit_slack(h, row, t));
    slack += 1e-6 * (fabs(up.here) + fabs(up.mean) / (double)row->columns);
    if (row->cap != 0) /* 1 - (x / cap)^2 */
        slack += (p * summed + fabs(up.here)) * 4 * (logit_slack(h, row, t) * row->temperature / row->cap + 1e-6);
    const double value = gradient_of_all(row, x, &up);
    const double rounding = h->o.dtype == BP_DTYPE_BF16 ? ldexp(fabs(value), -8) : 0; /* of bf16 products */
    return (true_gradient){value, slack / row->temperature + rounding};
}

static double rounding_slack(bp_dtype dtype, double size)
{
    return dtype == BP_DTYPE_BF16 ? size * ldexp(1, -8) : dtype == BP_DTYPE_FP16 ? size * ldexp(1, -11) + 6e-8 : 0;
}

static bool hidden_row_is_true(const head_batch *h, uint64_t t, shard summed)
{
    uint64_t i = t / h->o.sequence, s = t % h->o.sequence, hidden = h->o.hidden;
    bool masked = is_masked(&h->tokens, i, s), good = true;
    double *sum = calloc(2 * hidden, sizeof *sum), *slack = sum + hidden;
    if (sum == NULL)
        abort();
    true_row row = {0};
    if (!masked)
        row = truth_of(&h->tokens, i, s);
    for (uint64_t v = summed.first; v < summed.end && !masked; v++) {
        true_gradient d = gradient_of(h, &row, t, v);
        for (uint64_t k = 0; k < hidden; k++) {
            double w = element_at(row_at(&h->weight, 0, v), h->o.dtype, (int64_t)k);
            sum[k] += d.value * w;
            slack[k] += fabs(w) * (d.slack + 1e-6 * fabs(d.value));
        }
    }
    for (uint64_t k = 0; k < hidden && good; k++) {
        double value = element_at(row_at(&h->hidden_grad, i, s), h->o.grad_dtype, (int64_t)k);
        double allowed = masked ? 0 : slack[k] + rounding_slack(h->o.grad_dtype, fabs(sum[k]) + slack[k]) + 1e-30;
        good = is_within(value, sum[k], allowed) || complain(h, "hidden_grad", t, k, value, sum[k], allowed);
    }
    free(sum);
    return good;
}

bool hidden_grad_is_true(const head_batch *h, shard summed)
{
    for (uint64_t t = 0; t < h->o.batch * h->o.sequence; t++)
        if (!hidden_row_is_true(h, t, summed))
            return false;
    return gaps_are_whole(&h->hidden_grad, "hidden_grad");
}

static void add_token(const head_batch *h, uint64_t t, shard part, double *sum, double *slack)
{
    uint64_t i = t / h->o.sequence, s = t % h->o.sequence, hidden = h->o.hidden;
    true_row row = truth_of(&h->tokens, i, s);
    for (uint64_t v = part.first; v < part.end; v++) {
        true_gradient d = gradient_of(h, &row, t, v);
        for (uint64_t k = 0; k < hidden; k++) {
            double state = element_at(row_at(&h->hidden, i, s), h->o.dtype, (int64_t)k);
            sum[v * hidden + k] += d.value * state;
            slack[v * hidden + k] += fabs(state) * (d.slack + 1e-6 * fabs(d.value));
        }
    }
}

static bool weight_row_is_true(const head_batch *h, uint64_t v, const double *sum, const double *slack)
{
    const void *row = row_at(&h->weight_grad, 0, v);
    const bp_dtype dtype = h->o.narrow_weight_grad ? h->o.dtype : BP_DTYPE_FP32;
    for (uint64_t k = 0; k < h->o.hidden; k++) {
        double before = h->o.accumulate ? h->before[v * h->o.hidden + k] : 0, expected = sum[k] + before;
        double allowed = slack[k] + (h->o.accumulate ? 2e-7 * (1 + fabs(expected)) : 0) + 1e-30;
        allowed += rounding_slack(dtype, fabs(expected) + slack[k]);
        const double value = element_at(row, dtype, (int64_t)k);
        if (!is_within(value, expected, allowed))
            return complain(h, "weight_grad", v, k, value, expected, allowed);
    }
    return true;
}

static bool bias_grad_is_true(const head_batch *h, shard part)
{
    for (uint64_t v = 0; v < h->o.columns && h->o.biased; v++) {
        const bool mine = v >= part.first && v < part.end;
        double expected = h->o.accumulate ? value_of(&h->bias, 0, 0, (uint32_t)v) : mine ? 0 : NAN, slack = 1e-30;
        for (uint64_t t = 0; t < h->o.batch * h->o.sequence && mine; t++) {
            if (is_masked(&h->tokens, t / h->o.sequence, t % h->o.sequence))
                continue;
            const true_row row = truth_of(&h->tokens, t / h->o.sequence, t % h->o.sequence);
            const true_gradient d = gradient_of(h, &row, t, v);
            expected += d.value;
            slack += d.slack + 1e-6 * fabs(d.value);
        }
        const double value = value_of(&h->bias_grad, 0, 0, (uint32_t)v);
        slack += mine && h->o.accumulate ? 2e-7 * (1 + fabs(expected)) : 0;
        if (!is_within(value, expected, slack))
            return complain(h, "bias_grad", v, 0, value, expected, slack);
    }
    return gaps_are_whole(&h->bias_grad, "bias_grad");
}

bool weight_grad_is_true(const head_batch *h, shard part)
{
    uint64_t hidden = h->o.hidden, size = h->o.columns * hidden;
    double *sum = calloc(2 * size, sizeof *sum), *slack = sum + size;
    bool good = sum != NULL;
    for (uint64_t t = 0; t < h->o.batch * h->o.sequence && good; t++)
        if (!is_masked(&h->tokens, t / h->o.sequence, t % h->o.sequence))
            add_token(h, t, part, sum, slack);
    for (uint64_t v = part.first; v < part.end && good; v++)
        good = weight_row_is_true(h, v, sum + v * hidden, slack + v * hidden);
    free(sum);
    return good && gaps_are_whole(&h->weight_grad, "weight_grad") && bias_grad_is_true(h, part);
}
