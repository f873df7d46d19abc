/* A step: sums of micro-batches, the exchange, seeds of gradients. */
#include <string.h>

#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/base.h"
#include "logprob/cp/cp.h"
#include "logprob/loss/loss.h"

bp_status bp_loss_begin(bp_loss *loss)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_begin: needs a client");
    memset(loss->mine, 0, sizeof *loss->mine);
    return BP_OK;
}

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

static const bp_loss_values loss_values_defaults = {.size = sizeof loss_values_defaults};

bp_status bp_loss_values_init(bp_loss_values *values, size_t size)
{
    return bp_struct_init("bp_loss_values_init", values, size, &loss_values_defaults, sizeof loss_values_defaults);
}

/* A split of this rank, and as many local tokens as it has, each with a mask. */
static bp_status check_tokens(const char *call, const bp_loss *loss, const bp_cp_split *split, uint64_t tokens,
                              const bp_token_values *mask)
{
    const bp_cp_split_info *info = &split->info;
    if (info->ranks != loss->grid.cp || info->rank != loss->grid.cp_rank)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a split for rank %u of %u CP ranks, this is rank %u of %u", call,
                       info->rank, info->ranks, loss->grid.cp_rank, loss->grid.cp);
    if (tokens != info->local_tokens)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: mask and values of %llu tokens, the split has %llu local ones",
                       call, (unsigned long long)tokens, (unsigned long long)info->local_tokens);
    if (tokens == 0)
        return BP_OK;
    if (mask->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the mask is missing (data is NULL)", call);
    return bp_check_mask(call, mask, 1, tokens);
}

static uint64_t loss_step_values_of(const bp_loss_values *values)
{
    return (values->logprob.data != NULL ? BP_LOSS_LOGPROB : 0) | (values->entropy.data != NULL ? BP_LOSS_ENTROPY : 0) |
           (values->logit_min.data != NULL ? BP_LOSS_LOGIT_MIN : 0) |
           (values->logit_max.data != NULL ? BP_LOSS_LOGIT_MAX : 0);
}

static bp_status check_values(const char *call, const bp_loss *loss, const bp_cp_split *split,
                              const bp_loss_values *values)
{
    const uint64_t tokens = values->tokens, added = loss->mine->sequences;
    BP_TRY(check_tokens(call, loss, split, tokens, &values->mask));
    if (split->info.sequences > loss->max_sequences - added)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu sequences after %llu, made for at most %llu (max_sequences)",
                       call, (unsigned long long)split->info.sequences, (unsigned long long)added,
                       (unsigned long long)loss->max_sequences);
    if (tokens == 0)
        return BP_OK;
    if (loss->mine->values != 0 && loss->mine->values != (loss_step_values_of(values) | BP_LOSS_ADDED))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: other values are there than in the micro-batch before", call);
    BP_TRY(bp_check_values(call, "log-probabilities", &values->logprob, 1, tokens, false));
    BP_TRY(bp_check_values(call, "entropies", &values->entropy, 1, tokens, false));
    BP_TRY(bp_check_values(call, "logit_min", &values->logit_min, 1, tokens, false));
    return bp_check_values(call, "logit_max", &values->logit_max, 1, tokens, false);
}

static bp_status enqueue_groups(bp_loss *loss, const bp_cp_split *split, bp_sums_work *work, bp_stream *stream)
{
    for (uint64_t g = 0; g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &work->group);
        BP_TRY(loss->engine->ops->sums(loss->engine, work, stream));
        work->records += work->group.count;
    }
    return BP_OK;
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
                         .records = loss->records + loss->mine->sequences};
    BP_TRY(bp_stream_wait(stream, loss->done)); /* records of dummies are written over by the next micro-batch */
    bp_status status = enqueue_groups(loss, split, &work, stream);
    bp_status recorded = bp_event_record(loss->done, stream); /* what failed half-way is on its way, too */
    return status == BP_OK ? recorded : status;
}

static void count_batch(const bp_cp_split *split, const bp_loss_values *values, bp_loss_word *word)
{
    word->fingerprint = word->fingerprint * UINT64_C(0x9e3779b97f4a7c15) + split->info.fingerprint;
    word->sequences += split->info.data_sequences;
    word->tokens += split->info.data_tokens;
    if (values->tokens != 0)
        word->values = loss_step_values_of(values) | BP_LOSS_ADDED;
}

static bp_status loss_step_add(const char *call, bp_loss *loss, const bp_cp_split *split, const bp_loss_values *values,
                               bp_stream *stream)
{
    bp_loss_values own = loss_values_defaults;
    if (split == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split", call);
    BP_TRY(bp_struct_read(call, values, false, &own, sizeof own));
    values = &own;
    BP_TRY(bp_stream_check(bp_loss_stream(loss, stream), loss->device, call));
    BP_TRY(bp_check_not_captured(call, bp_loss_stream(loss, stream)));
    BP_TRY(check_values(call, loss, split, values));
    BP_TRY(bp_call_end(loss->own, stream, enqueue_sums(loss, split, values, bp_loss_stream(loss, stream))));
    count_batch(split, values, loss->mine);
    return BP_OK;
}

/* Kept until the ranks meet. The first is told. */
static void keep_failure(bp_loss_word *word, bp_status status)
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
    bp_status status = loss_step_add(call, loss, split, values, stream);
    keep_failure(loss->mine, status);
    return status;
}

/* ---- the exchange --------------------------------------------------------------------------------------------------- */

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

/* Of words that are `each` bytes long. */
static bp_status loss_step_check_fared(const bp_loss *loss, uint64_t each)
{
    const bp_loss_grid *grid = &loss->grid;
    const uint32_t ranks = grid->tp * grid->cp * grid->dp;
    for (uint32_t place = 0; place < ranks; place++) {
        const uint32_t rank = grid->ranks[place];
        const bp_loss_word *word = (const void *)((const char *)loss->all + rank * each);
        if (word->status != BP_OK)
            return bp_fail((bp_status)word->status, "rank %u of %u (tp %u, cp %u, dp %u) failed: %.300s", rank, ranks,
                           place % grid->tp, place / grid->tp % grid->cp, place / grid->tp / grid->cp, word->detail);
    }
    return BP_OK;
}

/* The first `bytes` of everybody's word. */
static bp_status loss_step_exchange(bp_loss *loss, uint64_t bytes)
{
    if (loss->comm != NULL)
        BP_TRY(bp_comm_exchange(loss->comm, loss->mine, bytes, loss->all));
    else
        memcpy(loss->all, loss->mine, bytes);
    return loss_step_check_fared(loss, bytes);
}

bp_status bp_loss_agree(bp_loss *loss, bp_status status)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_agree: needs a client");
    keep_failure(loss->mine, status);
    return loss_step_exchange(loss, sizeof *loss->mine);
}

bp_status bp_loss_reduce(bp_loss *loss, bp_status status, bp_stream *stream)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_reduce: needs a client");
    keep_failure(loss->mine, status);
    if (loss->mine->status == BP_OK)
        keep_failure(loss->mine, fetch_records(loss, bp_loss_stream(loss, stream)));
    loss->has_statistics = false;
    loss->info.sequence_count = 0;
    loss->count = BP_COUNT_FAILED;
    BP_TRY(loss_step_exchange(loss, loss->word_bytes));
    BP_TRY(bp_loss_combine(loss));
    loss->has_statistics = true;
    loss->info.sequence_count = loss->mine->sequences;
    loss->count = BP_COUNT_KNOWN;
    loss->valid = loss->statistics.valid;
    return BP_OK;
}

bp_status bp_loss_count_set(bp_loss *loss, uint64_t valid)
{
    if (loss == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_loss_count_set: needs a client");
    loss->count = BP_COUNT_KNOWN;
    loss->valid = valid;
    return BP_OK;
}

/* ---- seeds ---------------------------------------------------------------------------------------------------------- */

static float seed_value(const bp_loss *loss, float factor)
{
    const double ranks = loss->gradients == BP_LOSS_AVERAGED ? (double)loss->grid.dp * loss->grid.cp : 1;
    if (loss->count != BP_COUNT_KNOWN || loss->valid == 0)
        return 0;
    return (float)(factor * ranks / (loss->epsilon + (double)loss->valid));
}

static bp_status enqueue_seeds(const bp_loss *loss, const bp_cp_split *split, const bp_token_values *mask, float value,
                               const bp_token_values *seed, bp_stream *stream)
{
    bp_seed_work work = {.mask = mask->data,
                         .mask_stride = mask->stride,
                         .seed = seed->data,
                         .seed_stride = seed->stride,
                         .value = value};
    for (uint64_t g = 0; g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &work.group);
        BP_TRY(loss->engine->ops->seed(loss->engine, &work, stream));
    }
    return BP_OK;
}

bp_status bp_loss_seed(bp_loss *loss, const bp_cp_split *split, uint64_t tokens, const bp_token_values *mask,
                       float factor, const bp_token_values *seed, bp_stream *stream)
{
    const char *call = "bp_loss_seed";
    if (loss == NULL || split == NULL || mask == NULL || seed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client, a split, a mask and an output", call);
    if (loss->count == BP_COUNT_UNKNOWN)
        return bp_fail(BP_ERR_SCHEDULE,
                       "%s: nobody knows yet how many tokens count: bp_loss_reduce or bp_loss_count_set comes before",
                       call);
    bp_stream *used = bp_loss_stream(loss, stream);
    BP_TRY(check_tokens(call, loss, split, tokens, mask));
    BP_TRY(bp_stream_check(used, loss->device, call));
    if (tokens == 0)
        return BP_OK;
    if (seed->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the seed is missing (data is NULL)", call);
    BP_TRY(bp_check_values(call, "seed", seed, 1, tokens, true));
    return bp_call_end(loss->own, stream, enqueue_seeds(loss, split, mask, seed_value(loss, factor), seed, used));
}
