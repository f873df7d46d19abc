#include "logprob/agreement.h"

#include "core/fail.h"

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
