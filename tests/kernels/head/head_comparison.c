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
static double logit_slack(const head_batch *h, uint64_t t)
{
    return 1e-6 * h->product[t] / h->o.temperature;
}

bool head_outputs_are_true(const head_batch *h)
{
    const batch *b = &h->tokens;
    for (uint64_t t = 0; t < token_count(b); t++) {
        uint64_t i = t / h->o.sequence, s = t % h->o.sequence;
        true_row row = {0};
        if (!is_masked(b, i, s))
            row = truth_of(b, i, s);
        double slack = is_masked(b, i, s) ? 0 : 4e-6 + 2 * logit_slack(h, t) * (1 + fabs(row.energy));
        double logprob = upstream_at(&b->logprob, i, s), entropy = upstream_at(&b->entropy, i, s);
        if (!h->o.without_logprob && !is_within(logprob, row.logprob, slack))
            return complain(h, "the log-probability", i, s, logprob, row.logprob, slack);
        if (h->o.with_entropy && !is_within(entropy, row.entropy, slack))
            return complain(h, "the entropy", i, s, entropy, row.entropy, slack);
    }
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
    double g = h->o.without_logprob ? 0 : upstream_at(&b->logprob_grad, i, s);
    double e = h->o.with_entropy ? upstream_at(&b->entropy_grad, i, s) : 0;
    double x = b->x[t * h->o.columns + v], a = (x - row->max) / row->temperature, p = exp(a - row->log_sum);
    double summed = fabs(g) + fabs(e) * (1 + fabs(row->energy) + fabs(a));
    double slack = p * summed * (4e-6 + 4e-7 * fabs(a) + 4 * logit_slack(h, t));
    slack += (int64_t)v == row->target ? 1e-6 * fabs(g) : 0;
    return (true_gradient){gradient_at(row, x, (int64_t)v, g, e), slack / row->temperature};
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
    const float *row = row_at(&h->weight_grad, 0, v);
    for (uint64_t k = 0; k < h->o.hidden; k++) {
        double before = h->o.accumulate ? h->before[v * h->o.hidden + k] : 0, expected = sum[k] + before;
        double allowed = slack[k] + (h->o.accumulate ? 2e-7 * (1 + fabs(expected)) : 0) + 1e-30;
        if (!is_within(row[k], expected, allowed))
            return complain(h, "weight_grad", v, k, row[k], expected, allowed);
    }
    return true;
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
    return good && gaps_are_whole(&h->weight_grad, "weight_grad");
}
