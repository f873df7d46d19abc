/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of results with fp64, with messages for differences. */
#include "batches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SAVED_MARGIN 64

static bool complain(const batch *b, const char *what, uint64_t i, uint64_t s, double value, double expected)
{
    const batch_options *o = &b->o;
    fprintf(stderr,
            "%s of token %llu, %llu is %.9g, expected %.9g (%llu x %llu x %llu, %s, temperature %g, cap %g%s%s)\n",
            what, (unsigned long long)i, (unsigned long long)s, value, expected, (unsigned long long)o->batch,
            (unsigned long long)o->sequence, (unsigned long long)o->columns, bp_dtype_name(o->dtype), o->temperature,
            o->soft_cap, o->with_entropy ? ", entropy" : "", o->in_place ? ", in place" : "");
    return false;
}

static bool output_is_true(const batch *b, const char *name, const view *v, uint32_t k, uint64_t i, uint64_t s,
                           double expected, double slack)
{
    const double value = value_of(v, i, s, k);
    if (is_bad(b, i, s) && !(v == &b->logprob && is_ignored(b, i, s, k)))
        return isnan(value) || complain(b, name, i, s, value, NAN);
    if (is_masked(b, i, s) ? value == 0 : is_near(value, expected) || is_within(value, expected, slack))
        return true;
    return complain(b, name, i, s, value, expected);
}

static bool token_is_true(const batch *b, uint64_t i, uint64_t s)
{
    true_row row = {0};
    if (!is_masked(b, i, s))
        row = truth_of(b, i, s);
    const double slack = cap_slack(&row) * 2, of_entropy = slack * (1 + fabs(row.energy));
    for (uint32_t k = 0; k < b->o.targets && !b->o.without_logprob; k++) {
        const int64_t column = target_column(b, i, s, k);
        const bool is_in = column >= 0 && column < (int64_t)b->o.columns && !is_masked(b, i, s);
        const double expected = is_in ? logprob_at(&row, logit_at(b, i, s, (uint64_t)column)) : 0;
        if (!output_is_true(b, "the log-probability", &b->logprob, k, i, s, expected, slack))
            return false;
    }
    return (!b->o.with_entropy || output_is_true(b, "the entropy", &b->entropy, 0, i, s, row.entropy, of_entropy)) &&
           (!b->o.with_logsumexp || output_is_true(b, "logsumexp", &b->logsumexp, 0, i, s, row.logsumexp, slack)) &&
           (!b->o.with_mean || output_is_true(b, "mean_logprob", &b->mean_logprob, 0, i, s, row.mean_logprob,
                                              slack + 1e-6 * row.size / row.temperature));
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
    const struct {
        const char *name;
        const view *v;
        bool wanted;
    } all[] = {{"log-probabilities", &b->logprob, !b->o.without_logprob},
               {"entropies", &b->entropy, b->o.with_entropy},
               {"logsumexp", &b->logsumexp, b->o.with_logsumexp},
               {"mean_logprob", &b->mean_logprob, b->o.with_mean}};
    bool good = true;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        good = good && (all[i].wanted ? gaps_are_whole(all[i].v, all[i].name) : is_untouched(all[i].v, all[i].name));
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
    true_row row = {.max = NAN};
    if (!masked)
        row = truth_of(b, i, s);
    for (uint64_t v = part.first; v < part.end; v++) {
        const double value = element_at(row_at(&b->grad, i, s), b->o.grad_dtype, (int64_t)v);
        double expected = 0, slack = 0;
        true_upstream up = {0};
        if (!masked) {
            up = upstream_of(b, i, s, (int64_t)v);
            expected = gradient_of_all(&row, logit_at(b, i, s, v), &up);
            slack = slack_of_all(&row, logit_at(b, i, s, v), &up, b->o.grad_dtype);
        }
        if (is_bad(b, i, s))
            expected = NAN;
        if (!is_within(value, expected, slack) && !has_overflowed(b->o.grad_dtype, value, expected, slack)) {
            fprintf(stderr,
                    "column %llu, slack %.3g, logit %.9g, upstream %.9g (here %.9g), entropy %.9g, logsumexp %.9g, "
                    "mean %.9g: ",
                    (unsigned long long)v, slack, logit_at(b, i, s, v), up.all, up.here, up.entropy, up.logsumexp,
                    up.mean);
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
