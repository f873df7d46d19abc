/* SPDX-License-Identifier: Apache-2.0 */
/* The loss client: the rank grid, steps (sums of micro-batches, their exchange, seeds of gradients), and statistics from the sums of all
 * ranks. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/kernels.h>
#include <bucketpool/loss.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "cp/cp.h"

/* Bits of the values that were added; ADDED: any tokens. */
enum { HAS_LOGPROB = 1u, HAS_ENTROPY = 2u, HAS_LOGIT_MIN = 4u, HAS_LOGIT_MAX = 8u, ADDED = 16u };

/* Words that a rank sends at the end of a step. */
typedef struct loss_word {
    int64_t status;       /* of the rank so far */
    uint64_t fingerprint; /* of all added batches */
    uint64_t sequences, tokens;
    uint64_t values; /* HAS_LOGPROB, ... */
    char detail[BP_DETAIL_BYTES];
    bp_loss_record records[]; /* [max_sequences], without dummies */
} loss_word;

typedef enum count_state { COUNT_UNKNOWN, COUNT_KNOWN, COUNT_FAILED } count_state;

struct bp_loss {
    bp_device *device; /* kept alive by `own` */
    bp_engine *engine;
    bp_stream *own; /* for calls without a stream */
    bp_event *done; /* after the last sums */
    bp_comm *comm;  /* NULL: one rank */
    bp_workspace workspace;
    bp_loss_record *records; /* in device memory, then the pieces of sums of a group */
    uint32_t tp, cp, dp;     /* rank grid: tensor-parallel ranks vary fastest, then context-parallel ones */
    uint32_t cp_rank, dp_rank;
    uint32_t *ranks; /* grid place to communicator rank */
    uint64_t max_sequences, word_bytes;
    double epsilon;
    bp_loss_gradients gradients;
    loss_word *mine, *all; /* words of all ranks, in communicator order */
    count_state count;
    uint64_t valid;
    bool has_statistics;
    bp_loss_statistics statistics;
    bp_loss_sequence *sequences; /* of this DP rank */
    bp_loss_info info;
};

/* ---- the grid of ranks ------------------------------------------------------------------------------------------- */

#define NOBODY UINT32_MAX
#define MAX_RANKS 65536

static const char *const call_create = "bp_loss_create";

static bp_status check_grid(const bp_loss_config *config, uint32_t ranks)
{
    uint64_t places;
    if (config->tp == 0 || config->cp == 0 || config->dp == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: tp %u, cp %u and dp %u must not be 0", call_create, config->tp,
                       config->cp, config->dp);
    if (!bp_mul_u64((uint64_t)config->tp * config->cp, config->dp, &places) || places != ranks)
        return bp_fail(BP_ERR_MISMATCH, "%s: tp %u x cp %u x dp %u does not match the communicator's %llu ranks",
                       call_create, config->tp, config->cp, config->dp, (unsigned long long)ranks);
    if (config->tp_rank >= config->tp || config->cp_rank >= config->cp || config->dp_rank >= config->dp)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: rank %u of tp %u, %u of cp %u, %u of dp %u is outside the grid",
                       call_create, config->tp_rank, config->tp, config->cp_rank, config->cp, config->dp_rank,
                       config->dp);
    return BP_OK;
}

/* Collective: exchanges the grid places. `status`: of this rank so far. `places`: [ranks]; NULL only after a failure. */
static bp_status place_ranks(const bp_loss_config *config, bp_status status, uint32_t *places)
{
    /* values that must be equal, then the rank's place */
    enum { EPSILON = 5, PLACE = 6 };
    static const char *const same[] = {"tp", "cp", "dp", "max_sequences", "gradients", "an epsilon with the bits",
                                       NULL};
    const uint32_t ranks = config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1;
    bp_rank_words few[BP_FEW_RANKS], *told;
    BP_TRY(bp_rank_words_take(call_create, config->comm, MAX_RANKS, few, &told));
    if (status == BP_OK)
        status = check_grid(config, ranks);
    bp_rank_words mine = {
        .status = status,
        .values = {config->tp, config->cp, config->dp, config->max_sequences, (uint64_t)config->gradients}};
    memcpy(&mine.values[EPSILON], &config->epsilon, sizeof config->epsilon);
    mine.values[PLACE] = ((uint64_t)config->dp_rank * config->cp + config->cp_rank) * config->tp + config->tp_rank;
    status = bp_ranks_exchange(call_create, config->comm, &mine, same, told);

    if (status == BP_OK && places == NULL) /* without memory this rank has reported it, and every rank failed above */
        status =
            bp_fail(BP_ERR_INTERNAL, "%s: the rank grid could not be allocated, but no rank reported it", call_create);
    for (uint32_t r = 0; status == BP_OK && r < ranks; r++)
        places[r] = NOBODY;
    for (uint32_t r = 0; status == BP_OK && r < ranks; r++) {
        const uint64_t place = told[r].values[PLACE];
        if (places[place] != NOBODY)
            status = bp_fail(BP_ERR_MISMATCH, "%s: ranks %u and %u both are rank %llu of tp, %llu of cp, %llu of dp",
                             call_create, places[place], r, (unsigned long long)(place % config->tp),
                             (unsigned long long)(place / config->tp % config->cp),
                             (unsigned long long)(place / config->tp / config->cp));
        places[place] = r;
    }
    bp_rank_words_give(few, told);
    return status;
}

static uint32_t loss_rank_at(const bp_loss *loss, uint32_t dp, uint32_t cp, uint32_t tp)
{
    return loss->ranks[((uint64_t)dp * loss->cp + cp) * loss->tp + tp];
}

/* ---- the client -------------------------------------------------------------------------------------------------- */

static const bp_loss_config loss_config_defaults = {
    .size = sizeof loss_config_defaults, .tp = 1, .cp = 1, .dp = 1, .epsilon = 1e-5, .gradients = BP_LOSS_AVERAGED};

bp_status bp_loss_config_init(bp_loss_config *config, size_t size)
{
    return bp_struct_init("bp_loss_config_init", config, size, &loss_config_defaults, sizeof loss_config_defaults);
}

static bp_status loss_check_config(const bp_loss_config *config)
{
    if (config->max_sequences == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_sequences is 0", call_create);
    if (!(config->epsilon >= 0) || isinf(config->epsilon))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: epsilon is %g; use 0 or more", call_create, config->epsilon);
    if (config->gradients != BP_LOSS_AVERAGED && config->gradients != BP_LOSS_SUMMED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: gradients is %d, neither averaged nor summed", call_create,
                       (int)config->gradients);
    return BP_OK;
}

static bp_status loss_make(bp_device *device, const bp_loss_config *config, bp_loss *loss)
{
    const uint32_t ranks = config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1;
    uint64_t records, word, words;
    BP_TRY(loss_check_config(config));
    const uint64_t pieces = bp_min_u64(config->max_sequences, BP_GROUP_SEQUENCES) * BP_SUMS_PIECES;
    uint64_t device_bytes;
    if (!bp_mul_u64(config->max_sequences, sizeof(bp_loss_record), &records) ||
        !bp_add_u64(records, pieces * sizeof(bp_loss_record), &device_bytes) ||
        !bp_add_u64(records, sizeof(loss_word), &word) || !bp_mul_u64(word, ranks, &words) || words > PTRDIFF_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: sums of %llu sequences on %u ranks do not fit 63 bits", call_create,
                       (unsigned long long)config->max_sequences, ranks);
    loss->device = device;
    loss->comm = bp_is_alone(config->comm) ? NULL : config->comm;
    loss->epsilon = config->epsilon;
    loss->gradients = config->gradients;
    loss->tp = config->tp;
    loss->cp = config->cp;
    loss->dp = config->dp;
    loss->cp_rank = config->cp_rank;
    loss->dp_rank = config->dp_rank;
    loss->max_sequences = config->max_sequences;
    loss->word_bytes = word;
    loss->mine = calloc(1, word);
    loss->all = calloc(1, words);
    loss->sequences = calloc(config->max_sequences, sizeof *loss->sequences);
    loss->ranks = calloc(ranks, sizeof *loss->ranks);
    if (loss->mine == NULL || loss->all == NULL || loss->sequences == NULL || loss->ranks == NULL)
        return bp_fail_memory(word + words);
    BP_TRY(bp_engine_create(device, config->threads, BP_KERNELS_PLAIN, 1, &loss->engine));
    BP_TRY(bp_stream_create(device, "loss", &loss->own));
    BP_TRY(bp_event_create(device, &loss->done));

    /* acquired until destruction */
    const bp_workspace_need need = {"records", device_bytes, BP_STAGE_OWN};
    void *address;
    BP_TRY(bp_workspace_init(device, "loss", &need, 1, &loss->workspace));
    BP_TRY(bp_workspace_take(&loss->workspace, 0, loss->own, &address));
    loss->records = address;
    return bp_stream_synchronize(loss->own);
}

static void loss_finish(bp_loss *loss)
{
    bp_workspace_finish(&loss->workspace);
    bp_event_destroy(&loss->done);
    bp_stream_destroy(&loss->own);
    if (loss->engine != NULL)
        loss->engine->ops->destroy(loss->engine);
    free(loss->mine);
    free(loss->all);
    free(loss->sequences);
    free(loss->ranks);
    free(loss);
}

bp_status bp_loss_create(bp_device *device, const bp_loss_config *config, bp_loss **loss)
{
    bp_loss_config own = loss_config_defaults;
    BP_TRY(bp_struct_read(call_create, config, false, &own, sizeof own));
    config = &own;
    bp_status status = BP_OK;
    bp_loss *made = calloc(1, sizeof *made); /* without memory, the other ranks must still learn of the failure */
    if (device == NULL || loss == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a device and an output", call_create);
    else
        status = made != NULL ? loss_make(device, config, made) : bp_fail_memory(sizeof *made);
    status = place_ranks(config, status, made != NULL ? made->ranks : NULL);
    if (status != BP_OK || made == NULL || loss == NULL) { /* without `made` and `loss` the status cannot be BP_OK */
        if (made != NULL)
            loss_finish(made);
        return status;
    }
    made->info = (bp_loss_info){.pool = made->workspace.pool, .sequences = made->sequences};
    *loss = made;
    return BP_OK;
}

void bp_loss_destroy(bp_loss **loss)
{
    if (loss == NULL || *loss == NULL)
        return;
    bp_loss *gone = *loss;
    *loss = NULL;
    if (!bp_device_is_inherited(gone->device)) /* waiting would be for the parent's work */
        loss_finish(gone);
}

const bp_loss_info *bp_loss_get_info(const bp_loss *loss)
{
    return loss != NULL ? &loss->info : NULL;
}

static bp_stream *loss_stream(const bp_loss *loss, bp_stream *stream)
{
    return stream != NULL ? stream : loss->own;
}

/* ---- a step: sums of micro-batches ------------------------------------------------------------------------------- */

bp_status bp_loss_begin(bp_loss *loss)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_begin: needs a client");
    memset(loss->mine, 0, sizeof *loss->mine);
    return BP_OK;
}

static const bp_loss_values loss_values_defaults = {.size = sizeof loss_values_defaults};

bp_status bp_loss_values_init(bp_loss_values *values, size_t size)
{
    return bp_struct_init("bp_loss_values_init", values, size, &loss_values_defaults, sizeof loss_values_defaults);
}

/* Checks a split of this rank and its local tokens with their mask. */
static bp_status check_tokens(const char *call, const bp_loss *loss, const bp_cp_split *split, uint64_t tokens,
                              const bp_token_values *mask)
{
    const bp_cp_split_info *info = &split->info;
    if (info->ranks != loss->cp || info->rank != loss->cp_rank)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the split is for rank %u of %u CP ranks, but this is rank %u of %u", call, info->rank,
                       info->ranks, loss->cp_rank, loss->cp);
    if (tokens != info->local_tokens)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: mask and values have %llu tokens, but the split has %llu local ones", call,
                       (unsigned long long)tokens, (unsigned long long)info->local_tokens);
    if (tokens == 0)
        return BP_OK;
    if (mask->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the mask is missing (data is NULL)", call);
    return bp_check_mask(call, mask, 1, tokens);
}

static uint64_t loss_values_of(const bp_loss_values *values)
{
    return (values->logprob.data != NULL ? HAS_LOGPROB : 0) | (values->entropy.data != NULL ? HAS_ENTROPY : 0) |
           (values->logit_min.data != NULL ? HAS_LOGIT_MIN : 0) | (values->logit_max.data != NULL ? HAS_LOGIT_MAX : 0);
}

static bp_status check_loss_values(const char *call, const bp_loss *loss, const bp_cp_split *split,
                                   const bp_loss_values *values)
{
    const uint64_t tokens = values->tokens, added = loss->mine->sequences;
    BP_TRY(check_tokens(call, loss, split, tokens, &values->mask));
    if (split->info.sequences > loss->max_sequences - added)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu sequences after %llu exceed max_sequences %llu", call,
                       (unsigned long long)split->info.sequences, (unsigned long long)added,
                       (unsigned long long)loss->max_sequences);
    if (tokens == 0)
        return BP_OK;
    if (loss->mine->values != 0 && loss->mine->values != (loss_values_of(values) | ADDED))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: logprob, entropy and logit ranges must be the same set in every micro-batch of a step",
                       call);
    BP_TRY(bp_check_values(call, "log-probabilities", &values->logprob, 1, tokens, false));
    BP_TRY(bp_check_values(call, "entropies", &values->entropy, 1, tokens, false));
    BP_TRY(bp_check_values(call, "logit_min", &values->logit_min, 1, tokens, false));
    return bp_check_values(call, "logit_max", &values->logit_max, 1, tokens, false);
}

static bp_status enqueue_sums(bp_loss *loss, const bp_cp_split *split, const bp_loss_values *values, bp_stream *stream)
{
    bp_sums_work work = {.mask = values->mask.data,
                         .mask_stride = values->mask.stride,
                         .logprob = values->logprob.data,
                         .logprob_stride = values->logprob.stride,
                         .entropy = values->entropy.data,
                         .entropy_stride = values->entropy.stride,
                         .logit_min = values->logit_min.data,
                         .logit_min_stride = values->logit_min.stride,
                         .logit_max = values->logit_max.data,
                         .logit_max_stride = values->logit_max.stride,
                         .records = loss->records + loss->mine->sequences,
                         .pieces = loss->records + loss->max_sequences};
    BP_TRY(bp_stream_wait(stream, loss->done)); /* the next micro-batch overwrites the records of dummies */
    bp_status status = BP_OK;
    for (uint64_t g = 0; status == BP_OK && g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &work.group);
        for (uint32_t s = 0; s < work.group.count; s++)
            work.first_piece[s + 1] = work.first_piece[s] + bp_sums_pieces(bp_local_tokens(&work.group, s));
        status = loss->engine->ops->sums(loss->engine, &work, stream);
        work.records += work.group.count;
    }
    if (status == BP_OK)
        return bp_event_record(loss->done, stream);
    BP_KEEP_ERROR;
    (void)bp_event_record(loss->done, stream); /* a failed call may have enqueued work */
    return status;
}

static bp_status loss_add(const char *call, bp_loss *loss, const bp_cp_split *split, const bp_loss_values *values,
                          bp_stream *stream)
{
    bp_loss_values own = loss_values_defaults;
    bp_stream *used = loss_stream(loss, stream);
    loss_word *word = loss->mine;
    if (split == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split", call);
    BP_TRY(bp_struct_read(call, values, false, &own, sizeof own));
    BP_TRY(bp_stream_check(used, loss->device, call));
    BP_TRY(bp_check_not_captured(call, used));
    BP_TRY(check_loss_values(call, loss, split, &own));
    BP_TRY(bp_call_end(loss->own, stream, enqueue_sums(loss, split, &own, used)));
    word->fingerprint = word->fingerprint * UINT64_C(0x9e3779b97f4a7c15) + split->info.fingerprint;
    word->sequences += split->info.data_sequences;
    word->tokens += split->info.data_tokens;
    if (own.tokens != 0)
        word->values = loss_values_of(&own) | ADDED;
    return BP_OK;
}

/* Keeps the first failure until the exchange reports it. */
static void keep_failure(loss_word *word, bp_status status)
{
    if (status == BP_OK || word->status != BP_OK)
        return;
    word->status = status;
    snprintf(word->detail, sizeof word->detail, "%s", bp_error_detail());
}

bp_status bp_loss_add(bp_loss *loss, const bp_cp_split *split, const bp_loss_values *values, bp_stream *stream)
{
    const char *call = "bp_loss_add";
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    bp_status status = loss_add(call, loss, split, values, stream);
    keep_failure(loss->mine, status);
    return status;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

#define SAME 1e-4 /* relative tolerance; different tokens differ by far more */

static double min(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}

static double greatest(double a, double b)
{
    return -min(-a, -b);
}

static void divide(bp_loss_statistics *s)
{
    const double valid = (double)s->valid;
    s->loss = s->valid != 0 ? (0 - s->logprob_sum) / (s->epsilon + valid) : 0; /* never -0 */
    s->entropy = s->valid != 0 ? s->entropy_sum / valid : 0;
    s->perplexity = s->perplexity_sequences != 0 ? s->perplexity_sum / (double)s->perplexity_sequences : 0;
}

static const loss_word *loss_word_of(const bp_loss *loss, uint32_t rank)
{
    return (const loss_word *)(const void *)((const char *)loss->all + rank * loss->word_bytes);
}

/* Equal up to the summation order of log-probabilities, which may differ between ranks. */
static bool is_close(double a, double b)
{
    const double larger = fmax(fabs(a), fabs(b));
    return a == b || (isnan(a) && isnan(b)) || (isfinite(larger) && fabs(a - b) <= SAME * fmax(larger, 1));
}

/* Checks that two ranks of one DP rank added the same batches. */
static bp_status check_batches(const bp_loss *loss, uint32_t one, uint32_t other)
{
    const loss_word *a = loss_word_of(loss, one), *b = loss_word_of(loss, other);
    if (a->fingerprint != b->fingerprint || a->sequences != b->sequences)
        return bp_fail(
            BP_ERR_MISMATCH,
            "bp_loss_reduce: ranks %u and %u belong to one DP rank, but added different batches (number, lengths "
            "or padding): %llu sequences of %llu tokens, and %llu of %llu",
            one, other, (unsigned long long)a->sequences, (unsigned long long)a->tokens,
            (unsigned long long)b->sequences, (unsigned long long)b->tokens);
    return BP_OK;
}

/* Checks that tensor-parallel ranks have the same tokens. */
static bp_status check_copies(const bp_loss *loss, uint32_t one, uint32_t other)
{
    const loss_word *a = loss_word_of(loss, one), *b = loss_word_of(loss, other);
    for (uint64_t s = 0; s < a->sequences; s++) {
        const bp_loss_record *x = a->records + s, *y = b->records + s;
        if (x->valid != y->valid)
            return bp_fail(BP_ERR_MISMATCH,
                           "bp_loss_reduce: TP ranks %u and %u must have the same tokens, but of sequence %llu "
                           "%llu count on one and %llu on the other",
                           one, other, (unsigned long long)s, (unsigned long long)x->valid,
                           (unsigned long long)y->valid);
        if (!is_close(x->logprob, y->logprob) || !is_close(x->entropy, y->entropy))
            return bp_fail(BP_ERR_MISMATCH,
                           "bp_loss_reduce: TP ranks %u and %u must have the same tokens, but those of sequence "
                           "%llu sum up to log-probability %g and entropy %g on one, %g and %g on the other",
                           one, other, (unsigned long long)s, x->logprob, x->entropy, y->logprob, y->entropy);
    }
    return BP_OK;
}

static bp_status check_ranks_belong_together(const bp_loss *loss)
{
    uint32_t one = UINT32_MAX; /* first rank with tokens */
    for (uint32_t d = 0; d < loss->dp; d++)
        for (uint32_t c = 0; c < loss->cp; c++)
            for (uint32_t t = 0; t < loss->tp; t++) {
                const uint32_t rank = loss_rank_at(loss, d, c, t);
                const uint64_t values = loss_word_of(loss, rank)->values;
                BP_TRY(check_batches(loss, loss_rank_at(loss, d, 0, 0), rank));
                one = one == UINT32_MAX && values != 0 ? rank : one;
                if (values != 0 && loss_word_of(loss, one)->values != values)
                    return bp_fail(
                        BP_ERR_MISMATCH,
                        "bp_loss_reduce: ranks %u and %u added different values; add log-probabilities, entropies "
                        "and logits on all ranks or on none",
                        one, rank);
                BP_TRY(check_copies(loss, loss_rank_at(loss, d, c, 0), rank));
            }
    return BP_OK;
}

/* Sums a sequence over its CP ranks. Of TP ranks it takes one, except for logit ranges, which differ between TP ranks. */
static bp_loss_sequence sum_ranks(const bp_loss *loss, uint32_t dp, uint64_t index, bool has_logprob,
                                  bp_loss_statistics *s)
{
    bp_loss_sequence sequence = {0};
    for (uint32_t c = 0; c < loss->cp; c++) {
        const bp_loss_record *record = loss_word_of(loss, loss_rank_at(loss, dp, c, 0))->records + index;
        sequence.valid += record->valid;
        sequence.logprob_sum += record->logprob;
        sequence.entropy_sum += record->entropy;
        for (uint32_t t = 0; t < loss->tp; t++) {
            record = loss_word_of(loss, loss_rank_at(loss, dp, c, t))->records + index;
            s->logit_min = min(s->logit_min, record->logit_min);
            s->logit_max = greatest(s->logit_max, record->logit_max);
        }
    }
    if (sequence.valid != 0 && has_logprob)
        sequence.perplexity = exp(-sequence.logprob_sum / (double)sequence.valid);
    return sequence;
}

static const bp_loss_statistics loss_statistics_defaults = {
    .size = sizeof loss_statistics_defaults, .logit_min = INFINITY, .logit_max = -INFINITY};

/* Words of all ranks to statistics: sums numerators and denominators first, then divides. BP_ERR_MISMATCH: ranks differ. */
static bp_status combine_ranks(bp_loss *loss)
{
    bp_loss_statistics made = loss_statistics_defaults;
    BP_TRY(check_ranks_belong_together(loss));
    made.epsilon = loss->epsilon;
    for (uint32_t d = 0; d < loss->dp; d++) {
        const loss_word *word = loss_word_of(loss, loss_rank_at(loss, d, 0, 0));
        made.sequences += word->sequences;
        made.tokens += word->tokens;
        const bool has_logprob = (word->values & HAS_LOGPROB) != 0;
        for (uint64_t i = 0; i < word->sequences; i++) {
            const bp_loss_sequence sequence = sum_ranks(loss, d, i, has_logprob, &made);
            made.valid += sequence.valid;
            made.logprob_sum += sequence.logprob_sum;
            made.entropy_sum += sequence.entropy_sum;
            if (sequence.valid != 0 && has_logprob) {
                made.perplexity_sum += sequence.perplexity;
                made.perplexity_sequences++;
            }
            if (d == loss->dp_rank)
                loss->sequences[i] = sequence;
        }
    }
    divide(&made);
    loss->statistics = made;
    return BP_OK;
}

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
        return bp_fail(BP_ERR_SCHEDULE, "bp_loss_statistics_get: no successful bp_loss_reduce yet");
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
    sum.logit_min = min(sum.logit_min, added.logit_min);
    sum.logit_max = greatest(sum.logit_max, added.logit_max);
    sum.epsilon = added.epsilon;
    divide(&sum);
    return bp_struct_write(call, &sum, sizeof sum, total);
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

static bp_status fetch_records(bp_loss *loss, bp_stream *stream)
{
    BP_TRY(bp_stream_check(stream, loss->device, "bp_loss_reduce"));
    BP_TRY(bp_check_not_captured("bp_loss_reduce", stream));
    BP_TRY(bp_stream_wait(stream, loss->done));
    if (loss->mine->sequences != 0)
        BP_TRY(
            bp_stream_copy(stream, loss->mine->records, loss->records, loss->mine->sequences * sizeof *loss->records));
    return bp_stream_synchronize(stream);
}

/* Exchanges the first `bytes` of the words. Errors: that of the failed rank with the lowest place. */
static bp_status exchange_words(bp_loss *loss, uint64_t bytes)
{
    const uint32_t ranks = loss->tp * loss->cp * loss->dp;
    if (loss->comm != NULL)
        BP_TRY(bp_comm_exchange(loss->comm, loss->mine, bytes, loss->all));
    else
        memcpy(loss->all, loss->mine, bytes);
    for (uint32_t place = 0; place < ranks; place++) {
        const uint32_t rank = loss->ranks[place];
        const loss_word *word = (const void *)((const char *)loss->all + rank * bytes);
        if (word->status != BP_OK)
            return bp_fail((bp_status)word->status, "rank %u of %u (tp %u, cp %u, dp %u) failed: %.300s", rank, ranks,
                           place % loss->tp, place / loss->tp % loss->cp, place / loss->tp / loss->cp, word->detail);
    }
    return BP_OK;
}

bp_status bp_loss_agree(bp_loss *loss, bp_status status)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_agree: needs a client");
    keep_failure(loss->mine, status);
    return exchange_words(loss, sizeof *loss->mine);
}

bp_status bp_loss_reduce(bp_loss *loss, bp_status status, bp_stream *stream)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_reduce: needs a client");
    keep_failure(loss->mine, status);
    if (loss->mine->status == BP_OK)
        keep_failure(loss->mine, fetch_records(loss, loss_stream(loss, stream)));
    loss->has_statistics = false;
    loss->info.sequence_count = 0;
    loss->count = COUNT_FAILED;
    BP_TRY(exchange_words(loss, loss->word_bytes));
    BP_TRY(combine_ranks(loss));
    loss->has_statistics = true;
    loss->info.sequence_count = loss->mine->sequences;
    loss->count = COUNT_KNOWN;
    loss->valid = loss->statistics.valid;
    return BP_OK;
}

bp_status bp_loss_count_set(bp_loss *loss, uint64_t valid)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_count_set: needs a client");
    loss->count = COUNT_KNOWN;
    loss->valid = valid;
    return BP_OK;
}

/* ---- seeds of gradients ------------------------------------------------------------------------------------------ */

bp_status bp_loss_seed(bp_loss *loss, const bp_cp_split *split, uint64_t tokens, const bp_token_values *mask,
                       float factor, const bp_token_values *seed, bp_stream *stream)
{
    const char *call = "bp_loss_seed";
    if (loss == NULL || split == NULL || mask == NULL || seed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client, a split, a mask and an output", call);
    if (loss->count == COUNT_UNKNOWN)
        return bp_fail(
            BP_ERR_SCHEDULE,
            "%s: the number of tokens that count is not known yet; call bp_loss_reduce or bp_loss_count_set first",
            call);
    bp_stream *used = loss_stream(loss, stream);
    BP_TRY(check_tokens(call, loss, split, tokens, mask));
    BP_TRY(bp_stream_check(used, loss->device, call));
    if (tokens == 0)
        return BP_OK;
    if (seed->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the seed is missing (data is NULL)", call);
    BP_TRY(bp_check_values(call, "seed", seed, 1, tokens, true));

    const double ranks = loss->gradients == BP_LOSS_AVERAGED ? (double)loss->dp * loss->cp : 1;
    bp_seed_work work = {
        .mask = mask->data, .mask_stride = mask->stride, .seed = seed->data, .seed_stride = seed->stride};
    if (loss->count == COUNT_KNOWN && loss->valid != 0)
        work.value = (float)(factor * ranks / (loss->epsilon + (double)loss->valid));
    bp_status status = BP_OK;
    for (uint64_t g = 0; status == BP_OK && g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &work.group);
        status = loss->engine->ops->seed(loss->engine, &work, used);
    }
    return bp_call_end(loss->own, stream, status);
}
