/* Comparison of results with fp64, with messages for differences. */
#include "batches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SAVED_MARGIN 64

static bool complain(const batch *b, const char *what, uint64_t i, uint64_t s, double value, double expected)
{
    const batch_options *o = &b->o;
    fprintf(stderr, "%s of token %llu, %llu is %.9g, expected %.9g (%llu x %llu x %llu, %s, temperature %g%s%s)\n",
            what, (unsigned long long)i, (unsigned long long)s, value, expected, (unsigned long long)o->batch,
            (unsigned long long)o->sequence, (unsigned long long)o->columns, bp_dtype_name(o->dtype), o->temperature,
            o->with_entropy ? ", entropy" : "", o->in_place ? ", in place" : "");
    return false;
}

static bool token_is_true(const batch *b, uint64_t i, uint64_t s)
{
    true_row row = {0};
    if (!is_masked(b, i, s))
        row = truth_of(b, i, s);
    double logprob = upstream_at(&b->logprob, i, s), entropy = upstream_at(&b->entropy, i, s);
    if (!b->o.without_logprob && !(is_masked(b, i, s) ? logprob == 0 : is_near(logprob, row.logprob)))
        return complain(b, "the log-probability", i, s, logprob, row.logprob);
    if (b->o.with_entropy && !(is_masked(b, i, s) ? entropy == 0 : is_near(entropy, row.entropy)))
        return complain(b, "the entropy", i, s, entropy, row.entropy);
    return true;
}

static bool is_poison(const uint8_t *bytes, size_t count, uint8_t poison)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != poison)
            return false;
    return true;
}

static bool saved_margins_are_whole(const batch *b)
{
    uint8_t poison = b->logprob.poison;
    bool whole = is_poison(b->saved, SAVED_MARGIN, poison) &&
                 is_poison(b->saved + SAVED_MARGIN + b->saved_bytes, SAVED_MARGIN, poison);
    if (!whole)
        fprintf(stderr, "memory outside the saved statistics was written\n");
    return whole;
}

/* Outputs that were not requested are not written. */
static bool is_untouched(const view *v, const char *name)
{
    bool untouched = is_poison(v->memory, v->bytes, v->poison);
    if (!untouched)
        fprintf(stderr, "%s was not requested, but written\n", name);
    return untouched;
}

bool outputs_are_true(const batch *b)
{
    for (uint64_t i = 0; i < b->o.batch; i++)
        for (uint64_t s = 0; s < b->o.sequence; s++)
            if (!token_is_true(b, i, s))
                return false;
    bool good = b->o.without_logprob ? is_untouched(&b->logprob, "the log-probability")
                                     : gaps_are_whole(&b->logprob, "log-probabilities");
    good = good &&
           (b->o.with_entropy ? gaps_are_whole(&b->entropy, "entropies") : is_untouched(&b->entropy, "the entropy"));
    return good && saved_margins_are_whole(b);
}

/* Beyond the range of its dtype, and therefore infinite. */
static bool has_overflowed(bp_dtype dtype, double value, double expected, double slack)
{
    return isinf(value) && rounded_to(dtype, expected + copysign(slack, expected)) == value;
}

static bool gradient_row_is_true(const batch *b, uint64_t i, uint64_t s, shard part)
{
    bool masked = is_masked(b, i, s);
    double g = b->o.without_logprob ? 0 : upstream_at(&b->logprob_grad, i, s);
    double h = b->o.with_entropy ? upstream_at(&b->entropy_grad, i, s) : 0;
    true_row row = {.max = NAN};
    if (!masked)
        row = truth_of(b, i, s);
    const double *x = b->x + (i * b->o.sequence + s) * b->o.columns;
    for (uint64_t v = part.first; v < part.end; v++) {
        double value = element_at(row_at(&b->grad, i, s), b->o.grad_dtype, (int64_t)v);
        double expected = masked ? 0 : gradient_at(&row, x[v], (int64_t)v, g, h);
        double slack = masked ? 0 : gradient_slack(&row, x[v], (int64_t)v, g, h, b->o.grad_dtype);
        if (!is_within(value, expected, slack) && !has_overflowed(b->o.grad_dtype, value, expected, slack)) {
            fprintf(stderr, "column %llu, slack %.3g, logit %.9g, target %lld, g %.9g, h %.9g: ", (unsigned long long)v,
                    slack, x[v], (long long)row.target, g, h);
            return complain(b, "the gradient", i, s, value, expected);
        }
    }
    return true;
}

bool gradient_is_true(const batch *b, shard part)
{
    for (uint64_t i = 0; i < b->o.batch; i++)
        for (uint64_t s = 0; s < b->o.sequence; s++)
            if (!gradient_row_is_true(b, i, s, part))
                return false;
    return gaps_are_whole(&b->grad, "the gradient");
}

bool inputs_are_whole(const batch *b)
{
    bool whole = memcmp(b->logits.memory, b->original, b->logits.bytes) == 0;
    if (!whole)
        fprintf(stderr, "the logits were written\n");
    return whole;
}
