/* Runs of places whose tokens lie next to each other in both orders: what a host copies at once. */
#ifndef BP_LOGPROB_HOST_RUNS_H
#define BP_LOGPROB_HOST_RUNS_H

#include "core/arith.h"
#include "logprob/cp/sequences.h"

static inline int bp_is_in_chunks(const bp_sequence_group *group, bp_cp_order order)
{
    return group->ranks > 1 && (order == BP_CP_LOCAL || order == BP_CP_GATHERED);
}

/* How many places from `place` on, in order `to`, take their tokens one after the other from order `from`, or have none all. */
static inline uint64_t bp_run_at(const bp_sequence_group *group, bp_cp_order from, bp_cp_order to, bp_cp_shift shift,
                                 const bp_token_place *place)
{
    const uint64_t length = bp_sequence_length(group, place->sequence), offset = place->offset;
    const uint64_t padded = group->padded[place->sequence + 1] - group->padded[place->sequence];
    const uint64_t chunk = padded / (2 * (uint64_t)group->ranks), ahead = shift != BP_CP_KEEP;
    uint64_t end = to == BP_CP_PACKED ? length : padded;
    if (bp_is_in_chunks(group, to))
        end = bp_least_u64(end, (offset / chunk + 1) * chunk);
    if (bp_is_in_chunks(group, from))
        end = bp_least_u64(end, ((offset + ahead) / chunk + 1) * chunk - ahead);
    if (offset < length) /* the last token has nothing next, or the first */
        end = bp_least_u64(end, offset + ahead == length ? length : length - ahead);
    return end - offset;
}

/* Of those, the first that hold tokens of the data. */
static inline uint64_t bp_data_of_run(const bp_sequence_group *group, const bp_token_place *place, uint64_t run)
{
    const uint64_t length = bp_sequence_length(group, place->sequence);
    return bp_is_data(group, place) ? bp_least_u64(run, length - place->offset) : 0;
}

#endif
