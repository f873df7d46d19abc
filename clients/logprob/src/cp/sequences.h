/* SPDX-License-Identifier: Apache-2.0 */
/* Position of each token in every order of a split batch. Compiled as C for the host and as C++ for CUDA kernels. */
#ifndef BP_LOGPROB_CP_SEQUENCES_H
#define BP_LOGPROB_CP_SEQUENCES_H

#include <bucketpool/cp.h>

#ifndef BP_DEVICE
#define BP_DEVICE static inline
#endif

/* Sequences per kernel launch: they are passed by value, so nothing has to be copied to the device first. */
#define BP_GROUP_SEQUENCES 120
#define BP_NOWHERE UINT64_MAX

/* Consecutive sequences of a batch. */
typedef struct bp_sequence_group {
    uint64_t packed[BP_GROUP_SEQUENCES + 1]; /* start offsets in the batch, and the end of the last */
    uint64_t padded[BP_GROUP_SEQUENCES + 1];
    uint64_t padded_tokens; /* of the whole batch */
    uint32_t count, data;   /* sequences; those from `data` on are dummies */
    uint32_t ranks, rank;
} bp_sequence_group;

/* A position in some order, and the token at it. */
typedef struct bp_token_place {
    uint64_t position;
    uint64_t offset; /* in the sequence; padding from its length on */
    uint32_t sequence;
} bp_token_place;

/* Number of the group's places in an order. */
BP_DEVICE uint64_t bp_group_places(const bp_sequence_group *group, bp_cp_order order)
{
    const uint64_t padded = group->padded[group->count] - group->padded[0];
    if (order == BP_CP_PACKED)
        return group->packed[group->count] - group->packed[0];
    return order == BP_CP_LOCAL ? padded / group->ranks : padded;
}

BP_DEVICE uint64_t bp_sequence_length(const bp_sequence_group *group, uint32_t sequence)
{
    return group->packed[sequence + 1] - group->packed[sequence];
}

/* Binary search for the sequence at `position`: the last one that starts there or before, as empty sequences share their start. */
BP_DEVICE uint32_t bp_sequence_at(const uint64_t *starts, uint32_t count, uint64_t position)
{
    uint32_t first = 0, end = count;
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (starts[middle] <= position)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* The group's place `index` in a rank's local order. */
BP_DEVICE bp_token_place bp_place_on_rank(const bp_sequence_group *group, uint32_t rank, uint64_t index)
{
    const uint64_t ranks = group->ranks;
    bp_token_place place;
    place.position = group->padded[0] / ranks + index;
    place.sequence = bp_sequence_at(group->padded, group->count, place.position * ranks);
    const uint64_t begin = group->padded[place.sequence] / ranks;
    const uint64_t within = place.position - begin;
    const uint64_t chunk = (group->padded[place.sequence + 1] - group->padded[place.sequence]) / (2 * ranks);
    if (ranks == 1)
        place.offset = within;
    else if (within < chunk)
        place.offset = rank * chunk + within;
    else
        place.offset = (2 * ranks - 1 - rank) * chunk + (within - chunk);
    return place;
}

/* The group's place `index` in an order. */
BP_DEVICE bp_token_place bp_place_at(const bp_sequence_group *group, bp_cp_order order, uint64_t index)
{
    if (order == BP_CP_LOCAL)
        return bp_place_on_rank(group, group->rank, index);
    if (order == BP_CP_GATHERED) {
        const uint64_t each = bp_group_places(group, BP_CP_LOCAL);
        const uint64_t rank = index / each;
        bp_token_place place = bp_place_on_rank(group, (uint32_t)rank, index - rank * each);
        place.position += rank * (group->padded_tokens / group->ranks);
        return place;
    }
    const uint64_t *starts = order == BP_CP_PACKED ? group->packed : group->padded;
    bp_token_place place;
    place.position = starts[0] + index;
    place.sequence = bp_sequence_at(starts, group->count, place.position);
    place.offset = place.position - starts[place.sequence];
    return place;
}

/* Rank that has a token of the padded batch; sets its local position. */
BP_DEVICE uint64_t bp_rank_of(const bp_sequence_group *group, uint32_t sequence, uint64_t offset, uint64_t *local)
{
    const uint64_t ranks = group->ranks;
    const uint64_t begin = group->padded[sequence] / ranks;
    if (ranks == 1) {
        *local = begin + offset;
        return 0;
    }
    const uint64_t chunk = (group->padded[sequence + 1] - group->padded[sequence]) / (2 * ranks);
    const uint64_t number = offset / chunk;
    const uint64_t within = offset - number * chunk;
    *local = begin + (number < ranks ? within : chunk + within);
    return number < ranks ? number : 2 * ranks - 1 - number;
}

/* Position of a padded batch's token in an order, or BP_NOWHERE. */
BP_DEVICE uint64_t bp_position_in(const bp_sequence_group *group, bp_cp_order order, uint32_t sequence, uint64_t offset)
{
    uint64_t local;
    if (order == BP_CP_PACKED)
        return offset < bp_sequence_length(group, sequence) ? group->packed[sequence] + offset : BP_NOWHERE;
    if (order == BP_CP_PADDED)
        return group->padded[sequence] + offset;
    const uint64_t rank = bp_rank_of(group, sequence, offset, &local);
    if (order == BP_CP_LOCAL)
        return rank == group->rank ? local : BP_NOWHERE;
    return rank * (group->padded_tokens / group->ranks) + local;
}

/* Position in order `from` of the token at a place. */
BP_DEVICE uint64_t bp_source_of(const bp_sequence_group *group, bp_cp_order from, bp_cp_shift shift,
                                const bp_token_place *place)
{
    const uint64_t length = bp_sequence_length(group, place->sequence);
    uint64_t offset = place->offset;
    if (shift != BP_CP_KEEP) {
        if (offset >= length || (offset + 1 == length && shift == BP_CP_NEXT))
            return BP_NOWHERE;
        offset = offset + 1 == length ? 0 : offset + 1;
    }
    return bp_position_in(group, from, place->sequence, offset);
}

BP_DEVICE uint64_t bp_lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

BP_DEVICE int bp_is_in_chunks(const bp_sequence_group *group, bp_cp_order order)
{
    return group->ranks > 1 && (order == BP_CP_LOCAL || order == BP_CP_GATHERED);
}

/* Length of the run from `place` on in order `to` whose tokens are consecutive in order `from`, or all absent from it. */
BP_DEVICE uint64_t bp_run_at(const bp_sequence_group *group, bp_cp_order from, bp_cp_order to, bp_cp_shift shift,
                             const bp_token_place *place)
{
    const uint64_t length = bp_sequence_length(group, place->sequence), offset = place->offset;
    const uint64_t padded = group->padded[place->sequence + 1] - group->padded[place->sequence];
    const uint64_t chunk = padded / (2 * (uint64_t)group->ranks), ahead = shift != BP_CP_KEEP ? 1 : 0;
    uint64_t end = to == BP_CP_PACKED ? length : padded;
    if (bp_is_in_chunks(group, to))
        end = bp_lesser(end, (offset / chunk + 1) * chunk);
    if (bp_is_in_chunks(group, from))
        end = bp_lesser(end, ((offset + ahead) / chunk + 1) * chunk - ahead);
    if (offset < length) /* shifted: the last token has no next, or the first no previous one */
        end = bp_lesser(end, offset + ahead == length ? length : length - ahead);
    return end - offset;
}

/* 1 if the place holds a token of the data, neither padding nor a dummy. */
BP_DEVICE int bp_is_data(const bp_sequence_group *group, const bp_token_place *place)
{
    return place->sequence < group->data && place->offset < bp_sequence_length(group, place->sequence);
}

/* Length of the run's prefix of data tokens. */
BP_DEVICE uint64_t bp_data_of_run(const bp_sequence_group *group, const bp_token_place *place, uint64_t run)
{
    const uint64_t length = bp_sequence_length(group, place->sequence);
    return bp_is_data(group, place) != 0 ? bp_lesser(run, length - place->offset) : 0;
}

#endif
