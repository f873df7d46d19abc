/* From the sums of all ranks to statistics: numerators and denominators are added up first, and divided last. */
#include <math.h>

#include "core/arith.h"
#include "core/structs.h"
#include "logprob/loss/loss.h"

#define SAME 1e-4 /* relative; different tokens are far beyond it */

static double least(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}

static double greatest(double a, double b)
{
    return -least(-a, -b);
}

static void divide(bp_loss_statistics *s)
{
    const double valid = (double)s->valid;
    s->loss = s->valid != 0 ? (0 - s->logprob_sum) / (s->epsilon + valid) : 0; /* never -0 */
    s->entropy = s->valid != 0 ? s->entropy_sum / valid : 0;
    s->perplexity = s->perplexity_sequences != 0 ? s->perplexity_sum / (double)s->perplexity_sequences : 0;
}

/* ---- whether ranks belong together ---------------------------------------------------------------------------------- */

static bp_status check_batches(const bp_loss *loss, uint32_t one, uint32_t other)
{
    const bp_loss_word *a = bp_loss_word_of(loss, one), *b = bp_loss_word_of(loss, other);
    if (a->fingerprint != b->fingerprint || a->sequences != b->sequences)
        return bp_fail(
            BP_ERR_MISMATCH,
            "bp_loss_reduce: ranks %u and %u belong to one DP rank, but added other batches (by number, lengths "
            "or padding): %llu sequences of %llu tokens in all, and %llu of %llu",
            one, other, (unsigned long long)a->sequences, (unsigned long long)a->tokens,
            (unsigned long long)b->sequences, (unsigned long long)b->tokens);
    return BP_OK;
}

/* Of any two ranks that have tokens. */
static bp_status check_kinds(const bp_loss *loss, uint32_t *one, uint32_t other)
{
    const bp_loss_word *b = bp_loss_word_of(loss, other);
    if (b->values == 0)
        return BP_OK;
    if (*one == UINT32_MAX)
        *one = other;
    if (bp_loss_word_of(loss, *one)->values == b->values)
        return BP_OK;
    return bp_fail(BP_ERR_MISMATCH,
                   "bp_loss_reduce: ranks %u and %u added other values: log-probabilities, entropies and logits must "
                   "be there on all ranks or on none",
                   *one, other);
}

/* Equal, but for the last digits of log-probabilities that a runtime may have summed in another order on each rank. */
static bool is_close(double a, double b)
{
    const double larger = fmax(fabs(a), fabs(b));
    return a == b || (isnan(a) && isnan(b)) || (isfinite(larger) && fabs(a - b) <= SAME * fmax(larger, 1));
}

/* Tensor-parallel ranks have the same tokens. */
static bp_status check_copies(const bp_loss *loss, uint32_t one, uint32_t other)
{
    const bp_loss_word *a = bp_loss_word_of(loss, one), *b = bp_loss_word_of(loss, other);
    for (uint64_t s = 0; s < a->sequences; s++) {
        const bp_loss_record *x = a->records + s, *y = b->records + s;
        if (x->valid != y->valid)
            return bp_fail(BP_ERR_MISMATCH,
                           "bp_loss_reduce: ranks %u and %u are TP ranks with the same tokens, but of sequence %llu "
                           "%llu count on one and %llu on the other",
                           one, other, (unsigned long long)s, (unsigned long long)x->valid,
                           (unsigned long long)y->valid);
        if (!is_close(x->logprob, y->logprob) || !is_close(x->entropy, y->entropy))
            return bp_fail(BP_ERR_MISMATCH,
                           "bp_loss_reduce: ranks %u and %u are TP ranks with the same tokens, but those of sequence "
                           "%llu sum up to log-probability %g and entropy %g on one, %g and %g on the other",
                           one, other, (unsigned long long)s, x->logprob, x->entropy, y->logprob, y->entropy);
    }
    return BP_OK;
}

static bp_status loss_statistics_check_ranks(const bp_loss *loss)
{
    const bp_loss_grid *grid = &loss->grid;
    uint32_t with_tokens = UINT32_MAX;
    for (uint32_t d = 0; d < grid->dp; d++)
        for (uint32_t c = 0; c < grid->cp; c++)
            for (uint32_t t = 0; t < grid->tp; t++) {
                const uint32_t rank = bp_loss_rank_at(grid, d, c, t);
                BP_TRY(check_batches(loss, bp_loss_rank_at(grid, d, 0, 0), rank));
                BP_TRY(check_kinds(loss, &with_tokens, rank));
                BP_TRY(check_copies(loss, bp_loss_rank_at(grid, d, c, 0), rank));
            }
    return BP_OK;
}

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

/* A sequence, all its CP ranks together; of TP ranks one. */
static bp_loss_sequence loss_statistics_sum_sequence(const bp_loss *loss, uint32_t dp, uint64_t index, bool has_logprob)
{
    bp_loss_sequence sequence = {0};
    for (uint32_t c = 0; c < loss->grid.cp; c++) {
        const bp_loss_record *record = bp_loss_word_of(loss, bp_loss_rank_at(&loss->grid, dp, c, 0))->records + index;
        sequence.valid += record->valid;
        sequence.logprob_sum += record->logprob;
        sequence.entropy_sum += record->entropy;
    }
    if (sequence.valid != 0 && has_logprob)
        sequence.perplexity = exp(-sequence.logprob_sum / (double)sequence.valid);
    return sequence;
}

/* Logits are another on every rank. */
static void loss_statistics_add_range(const bp_loss *loss, uint32_t dp, uint64_t index, bp_loss_statistics *s)
{
    for (uint32_t c = 0; c < loss->grid.cp; c++)
        for (uint32_t t = 0; t < loss->grid.tp; t++) {
            const bp_loss_record *record =
                bp_loss_word_of(loss, bp_loss_rank_at(&loss->grid, dp, c, t))->records + index;
            s->logit_min = least(s->logit_min, record->logit_min);
            s->logit_max = greatest(s->logit_max, record->logit_max);
        }
}

static void add_sequence(const bp_loss_sequence *sequence, bool has_logprob, bp_loss_statistics *s)
{
    s->valid += sequence->valid;
    s->logprob_sum += sequence->logprob_sum;
    s->entropy_sum += sequence->entropy_sum;
    if (sequence->valid == 0 || !has_logprob)
        return;
    s->perplexity_sum += sequence->perplexity;
    s->perplexity_sequences++;
}

bp_status bp_loss_combine(bp_loss *loss)
{
    bp_loss_statistics made;
    BP_TRY(loss_statistics_check_ranks(loss));
    BP_TRY(bp_loss_statistics_init(&made, sizeof made));
    made.epsilon = loss->epsilon;
    for (uint32_t d = 0; d < loss->grid.dp; d++) {
        const bp_loss_word *word = bp_loss_word_of(loss, bp_loss_rank_at(&loss->grid, d, 0, 0));
        made.sequences += word->sequences;
        made.tokens += word->tokens;
        const bool has_logprob = (word->values & BP_LOSS_LOGPROB) != 0;
        for (uint64_t i = 0; i < word->sequences; i++) {
            const bp_loss_sequence sequence = loss_statistics_sum_sequence(loss, d, i, has_logprob);
            add_sequence(&sequence, has_logprob, &made);
            loss_statistics_add_range(loss, d, i, &made);
            if (d == loss->grid.dp_rank)
                loss->sequences[i] = sequence;
        }
    }
    divide(&made);
    loss->statistics = made;
    return BP_OK;
}

/* ---- for callers ---------------------------------------------------------------------------------------------------- */

static const bp_loss_statistics loss_statistics_defaults = {
    .size = sizeof loss_statistics_defaults, .logit_min = INFINITY, .logit_max = -INFINITY};

bp_status bp_loss_statistics_init(bp_loss_statistics *statistics, size_t size)
{
    return bp_struct_init("bp_loss_statistics_init", statistics, size, &loss_statistics_defaults,
                          sizeof loss_statistics_defaults);
}

bp_status bp_loss_statistics_get(const bp_loss *loss, bp_loss_statistics *statistics)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_get: needs a client");
    if (!loss->has_statistics)
        return bp_fail(BP_ERR_SCHEDULE, "bp_loss_statistics_get: there was no bp_loss_reduce yet, or the last failed");
    return bp_struct_write("bp_loss_statistics_get", &loss->statistics, sizeof loss->statistics, statistics);
}

bp_status bp_loss_statistics_merge(const bp_loss_statistics *step, bp_loss_statistics *total)
{
    const char *call = "bp_loss_statistics_merge";
    bp_loss_statistics sum = loss_statistics_defaults, added = loss_statistics_defaults;
    BP_TRY(bp_struct_read(call, step, false, &added, sizeof added));
    BP_TRY(bp_struct_read(call, total, false, &sum, sizeof sum));
    if (!bp_add_u64(sum.sequences, added.sequences, &sum.sequences) ||
        !bp_add_u64(sum.tokens, added.tokens, &sum.tokens) || !bp_add_u64(sum.valid, added.valid, &sum.valid) ||
        !bp_add_u64(sum.perplexity_sequences, added.perplexity_sequences, &sum.perplexity_sequences))
        return bp_fail(BP_ERR_OVERFLOW, "bp_loss_statistics_merge: counts do not fit 64 bits");
    sum.logprob_sum += added.logprob_sum;
    sum.entropy_sum += added.entropy_sum;
    sum.perplexity_sum += added.perplexity_sum;
    sum.logit_min = least(sum.logit_min, added.logit_min);
    sum.logit_max = greatest(sum.logit_max, added.logit_max);
    sum.epsilon = added.epsilon;
    divide(&sum);
    return bp_struct_write(call, &sum, sizeof sum, total);
}
