/* The ranks that share a vocabulary: what they agree on, and the shards that they have. */
#include "logprob/ranks.h"

#include "core/arith.h"
#include "core/fail.h"

/* ---- agreement --------------------------------------------------------------------------------------------------- */

bool bp_is_alone(const bp_comm *comm)
{
    return comm == NULL || bp_comm_get_info(comm)->ranks == 1;
}

static bp_status agreement_check_fared(const char *call, const bp_told *told, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (!bp_is_status(told[r].status))
            return bp_fail(BP_ERR_COMM, "%s: rank %u of %u sent status %lld, which is unknown: %.*s", call, r, ranks,
                           (long long)told[r].status, BP_TOLD_WORDS - 1, told[r].words);
        if (told[r].status != BP_OK)
            return bp_fail((bp_status)told[r].status, "%s: rank %u of %u failed: %s: %.*s", call, r, ranks,
                           bp_status_name((bp_status)told[r].status), BP_TOLD_WORDS - 1, told[r].words);
    }
    return BP_OK;
}

static bp_status check_same(const char *call, const char *const *names, const bp_told *told, uint32_t ranks)
{
    for (uint32_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < BP_TOLD_VALUES && names[i] != NULL; i++)
            if (told[r].values[i] != told[0].values[i])
                return bp_fail(BP_ERR_MISMATCH, "%s: rank %u has %s %llu, rank 0 has %llu", call, r, names[i],
                               (unsigned long long)told[r].values[i], (unsigned long long)told[0].values[i]);
    return BP_OK;
}

bp_status bp_ranks_tell(const char *call, bp_comm *comm, const bp_told *mine, const char *const *names, bp_told *told)
{
    bp_status status = (bp_status)mine->status;
    if (bp_is_alone(comm)) {
        told[0] = *mine;
        return status;
    }
    const uint32_t ranks = bp_comm_get_info(comm)->ranks;
    bp_told own = *mine;
    if (status != BP_OK)
        snprintf(own.words, sizeof own.words, "%s", bp_error_detail());
    bp_status exchanged = bp_comm_exchange(comm, &own, sizeof own, told);
    if (exchanged != BP_OK)
        return status != BP_OK ? bp_error_record(status, own.words)
                               : bp_fail(exchanged, "%s: %s", call, bp_error_detail());
    if (status == BP_OK)
        status = agreement_check_fared(call, told, ranks);
    return status == BP_OK ? check_same(call, names, told, ranks) : status;
}

bp_status bp_ranks_compare(const char *call, bp_comm *comm, const bp_told *mine, const char *const *names)
{
    bp_told told[BP_MOST_RANKS];
    if (!bp_is_alone(comm) && bp_comm_get_info(comm)->ranks > BP_MOST_RANKS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: %u ranks, at most %d can compare", call, bp_comm_get_info(comm)->ranks,
                       BP_MOST_RANKS);
    return bp_ranks_tell(call, comm, mine, names, told);
}

bp_status bp_ranks_agree(const char *call, bp_comm *comm, bp_status status)
{
    static const char *const nothing[] = {NULL};
    const bp_told mine = {.status = status};
    return bp_ranks_compare(call, comm, &mine, nothing);
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* What ranks tell each other: what must be the same, then where a shard starts and what it has. */
enum { TOLD_START = BP_SHARD_SAME, TOLD_COLUMNS = BP_SHARD_SAME + 1 };

static bp_status check_mine(const char *call, const bp_shard *mine)
{
    uint64_t end;
    if (mine->columns == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a vocabulary of 0 columns", call);
    if (!bp_add_u64(mine->start, mine->columns, &end) || end > INT64_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: ids from %llu on for %llu columns do not fit 63 bits", call,
                       (unsigned long long)mine->start, (unsigned long long)mine->columns);
    if (mine->columns > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu columns in one shard, at most %d are possible", call,
                       (unsigned long long)mine->columns, INT32_MAX);
    return BP_OK;
}

/* Ranks may hold any part, but rank r's ids come before those of rank r + 1. */
static bp_status check_tiling(const char *call, const bp_told *told, uint32_t ranks)
{
    for (uint32_t r = 1; r < ranks; r++) {
        const uint64_t end = told[r - 1].values[TOLD_START] + told[r - 1].values[TOLD_COLUMNS];
        const uint64_t start = told[r].values[TOLD_START];
        if (start != end)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "%s: the shards have %s: rank %u ends before id %llu, rank %u starts at %llu", call,
                           start > end ? "a gap" : "an overlap", r - 1, (unsigned long long)end, r,
                           (unsigned long long)start);
    }
    return BP_OK;
}

static bp_told shards_told_of(const bp_shard *mine, bp_status status)
{
    bp_told told = {.status = status, .values = {[TOLD_START] = mine->start, [TOLD_COLUMNS] = mine->columns}};
    for (size_t i = 0; i < BP_SHARD_SAME; i++)
        told.values[i] = mine->same[i];
    return told;
}

bp_status bp_vocab_shards_init(const char *call, bp_comm *comm, const bp_shard *mine, const char *const *names,
                               bp_status status, bp_vocab_shards *shards)
{
    if (status == BP_OK)
        status = check_mine(call, mine);
    if (bp_is_alone(comm)) {
        BP_TRY(status);
        *shards = (bp_vocab_shards){.ranks = 1, .first = (int64_t)mine->start, .vocab = mine->columns};
        return BP_OK;
    }
    const uint32_t ranks = bp_comm_get_info(comm)->ranks;
    if (ranks > BP_MOST_RANKS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: %u ranks share a vocabulary, at most %d can", call, ranks,
                       BP_MOST_RANKS);
    const bp_told own = shards_told_of(mine, status);
    bp_told told[BP_MOST_RANKS];
    BP_TRY(bp_ranks_tell(call, comm, &own, names, told));
    BP_TRY(check_tiling(call, told, ranks));
    const uint64_t *last = told[ranks - 1].values;
    *shards = (bp_vocab_shards){.comm = comm,
                                .ranks = ranks,
                                .first = (int64_t)told[0].values[TOLD_START],
                                .vocab = last[TOLD_START] + last[TOLD_COLUMNS] - told[0].values[TOLD_START]};
    return BP_OK;
}
