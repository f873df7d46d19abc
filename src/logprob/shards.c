#include "logprob/shards.h"

#include <string.h>

#include "core/arith.h"
#include "core/fail.h"

#define MOST_RANKS 512

/* What a rank tells the others. */
typedef struct word {
    bp_shard shard;
    int64_t status;
} word;

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

static bp_status check_fared(const char *call, const word *words, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (words[r].status != BP_OK)
            return bp_fail((bp_status)words[r].status, "%s: rank %u of %u failed: %s", call, r, ranks,
                           bp_status_name((bp_status)words[r].status));
    return BP_OK;
}

static bp_status check_same(const char *call, const char *const *names, const word *words, uint32_t ranks)
{
    for (uint32_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < BP_SHARD_SAME; i++)
            if (words[r].shard.same[i] != words[0].shard.same[i])
                return bp_fail(BP_ERR_MISMATCH, "%s: rank %u was configured with %s %llu, rank 0 with %llu", call, r,
                               names[i], (unsigned long long)words[r].shard.same[i],
                               (unsigned long long)words[0].shard.same[i]);
    return BP_OK;
}

/* Ranks may hold any part, but rank r's ids come before those of rank r + 1. */
static bp_status check_tiling(const char *call, const word *words, uint32_t ranks)
{
    for (uint32_t r = 1; r < ranks; r++) {
        const uint64_t end = words[r - 1].shard.start + words[r - 1].shard.columns;
        if (words[r].shard.start != end)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "%s: the shards have %s: rank %u ends before id %llu, rank %u starts at %llu", call,
                           words[r].shard.start > end ? "a gap" : "an overlap", r - 1, (unsigned long long)end, r,
                           (unsigned long long)words[r].shard.start);
    }
    return BP_OK;
}

/* All ranks' words. They are on the stack: a rank that had no memory for them could not tell the others, and they would wait. */
static bp_status gather(bp_comm *comm, const bp_shard *mine, bp_status status, word *words)
{
    const word own = {.shard = *mine, .status = status};
    return bp_comm_exchange(comm, &own, sizeof own, words);
}

bp_status bp_shards_init(const char *call, bp_comm *comm, const bp_shard *mine, const char *const *names,
                         bp_status status, bp_shards *shards)
{
    if (status == BP_OK)
        status = check_mine(call, mine);
    const bool alone = comm == NULL || bp_comm_ranks(comm) == 1;
    if (alone) {
        BP_TRY(status);
        *shards = (bp_shards){.ranks = 1, .first = (int64_t)mine->start, .vocab = mine->columns};
        return BP_OK;
    }
    const uint32_t ranks = bp_comm_ranks(comm);
    if (ranks > MOST_RANKS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: %u ranks share a vocabulary, at most %d can", call, ranks, MOST_RANKS);
    word words[MOST_RANKS];
    bp_status gathered = gather(comm, mine, status, words);
    if (status == BP_OK)
        status = gathered;
    if (status == BP_OK)
        status = check_fared(call, words, ranks);
    if (status == BP_OK)
        status = check_same(call, names, words, ranks);
    if (status == BP_OK)
        status = check_tiling(call, words, ranks);
    if (status == BP_OK) {
        const bp_shard *last = &words[ranks - 1].shard;
        *shards = (bp_shards){.comm = comm,
                              .ranks = ranks,
                              .first = (int64_t)words[0].shard.start,
                              .vocab = last->start + last->columns - words[0].shard.start};
    }
    return status;
}

bp_status bp_shards_agree(const char *call, const bp_shards *shards, bp_status status)
{
    if (shards->comm == NULL)
        return status;
    word words[MOST_RANKS];
    const bp_shard nothing = {0};
    bp_status gathered = gather(shards->comm, &nothing, status, words);
    if (status == BP_OK)
        status = gathered;
    if (status == BP_OK)
        status = check_fared(call, words, shards->ranks);
    return status;
}
