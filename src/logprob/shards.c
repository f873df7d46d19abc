#include "logprob/shards.h"

#include "core/arith.h"
#include "core/fail.h"
#include "logprob/agreement.h"

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
