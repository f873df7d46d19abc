/* Where a token is in each order of a split batch. The same source for the host and, in C++, for CUDA kernels. */
#ifndef BP_LOGPROB_CP_SEQUENCES_H
#define BP_LOGPROB_CP_SEQUENCES_H

#include <bucketpool/cp.h>

#ifndef BP_DEVICE
#define BP_DEVICE static inline
#endif

/* Kernels get so many sequences at once, by value: nothing has to be on the device before. */
#define BP_GROUP_SEQUENCES 120
#define BP_NOWHERE UINT64_MAX

/* Sequences that follow each other in a batch. */
typedef struct bp_sequence_group {
    uint64_t packed[BP_GROUP_SEQUENCES + 1]; /* where each begins in the batch, and where the last ends */
    uint64_t padded[BP_GROUP_SEQUENCES + 1];
    uint64_t padded_tokens; /* of the whole batch */
    uint32_t count, data;   /* sequences; the first `data` of them are no dummies */
    uint32_t ranks, rank;
} bp_sequence_group;

/* A place in some order: its number in the whole batch, and the token that belongs there. */
typedef struct bp_token_place {
    uint64_t position;
    uint64_t offset; /* in the sequence; from its length on it is padding */
    uint32_t sequence;
} bp_token_place;

/* How many places of an order belong to the group. */
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

/* The sequence that `position` is in: the last that begins there or before, as empty ones before it begin there, too. */
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

/* Place `index` of those of the group in a rank's local order. */
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

/* Place `index` of those of the group in an order. */
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

/* Where a token of the padded batch is in the slices: the rank and the position there. */
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

/* The position of a token of the padded batch in an order; BP_NOWHERE: it is not in it. */
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

/* Where in order `from` a place finds its token. */
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

/* Whether a place holds a token of the data: no padding, no dummy. */
BP_DEVICE int bp_is_data(const bp_sequence_group *group, const bp_token_place *place)
{
    return place->sequence < group->data && place->offset < bp_sequence_length(group, place->sequence);
}

#endif
