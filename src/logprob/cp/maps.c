/* What a split says of places: groups for kernels, cu_seqlens and index maps for callers. */
#include <string.h>

#include "core/fail.h"
#include "logprob/cp/split.h"

const char *bp_cp_order_name(bp_cp_order order)
{
    static const char *const names[] = {"packed", "padded", "local", "gathered"};
    return (uint32_t)order < sizeof names / sizeof *names ? names[order] : "invalid";
}

bp_status bp_check_order(const char *call, bp_cp_order order)
{
    if ((uint32_t)order > BP_CP_GATHERED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %d is no order of tokens", call, (int)order);
    return BP_OK;
}

bp_status bp_check_shift(const char *call, const bp_cp_split *split, bp_cp_order from, bp_cp_shift shift)
{
    if ((uint32_t)shift > BP_CP_NEXT_WRAPPED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %d is no shift", call, (int)shift);
    if (shift != BP_CP_KEEP && from == BP_CP_LOCAL && split->info.ranks > 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the next token of a local one may be on another of %u CP ranks: shift before the split",
                       call, split->info.ranks);
    return BP_OK;
}

uint64_t bp_split_tokens(const bp_cp_split *split, bp_cp_order order)
{
    if (order == BP_CP_PACKED)
        return split->info.packed_tokens;
    return order == BP_CP_LOCAL ? split->info.local_tokens : split->info.padded_tokens;
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

uint64_t bp_split_group_count(const bp_cp_split *split)
{
    return (split->info.sequences + BP_GROUP_SEQUENCES - 1) / BP_GROUP_SEQUENCES;
}

void bp_split_group(const bp_cp_split *split, uint64_t index, bp_sequence_group *group)
{
    const bp_cp_split_info *info = &split->info;
    const uint64_t first = index * BP_GROUP_SEQUENCES, left = info->sequences - first;
    const uint64_t count = left < BP_GROUP_SEQUENCES ? left : BP_GROUP_SEQUENCES;
    const uint64_t data = info->data_sequences > first ? info->data_sequences - first : 0;
    *group = (bp_sequence_group){.padded_tokens = info->padded_tokens,
                                 .count = (uint32_t)count,
                                 .data = (uint32_t)(data < count ? data : count),
                                 .ranks = info->ranks,
                                 .rank = info->rank};
    memcpy(group->packed, split->packed + first, (count + 1) * sizeof *group->packed);
    memcpy(group->padded, split->padded + first, (count + 1) * sizeof *group->padded);
}

/* ---- cu_seqlens ----------------------------------------------------------------------------------------------------- */

static uint64_t start_of(const bp_cp_split *split, bp_cp_order order, uint64_t sequence)
{
    if (order == BP_CP_PACKED)
        return split->packed[sequence];
    return order == BP_CP_LOCAL ? split->padded[sequence] / split->info.ranks : split->padded[sequence];
}

bp_status bp_cp_split_cu_seqlens(const bp_cp_split *split, bp_cp_order order, bp_dtype dtype, uint64_t count, void *cu)
{
    const char *call = "bp_cp_split_cu_seqlens";
    if (split == NULL || cu == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split and an output", call);
    BP_TRY(bp_check_order(call, order));
    if (order == BP_CP_GATHERED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: sequences do not lie together in gathered order", call);
    if (dtype != BP_DTYPE_INT32 && dtype != BP_DTYPE_INT64)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s: int32 and int64 are possible", call, bp_dtype_name(dtype));
    if (count != split->info.sequences + 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: room for %llu values, %llu sequences have %llu", call,
                       (unsigned long long)count, (unsigned long long)split->info.sequences,
                       (unsigned long long)(split->info.sequences + 1));
    if (dtype == BP_DTYPE_INT32 && bp_split_tokens(split, order) > INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu tokens do not fit int32", call,
                       (unsigned long long)bp_split_tokens(split, order));
    for (uint64_t i = 0; i < count; i++) {
        const int64_t wide = (int64_t)start_of(split, order, i);
        const int32_t narrow = (int32_t)wide;
        if (dtype == BP_DTYPE_INT32) /* at any address, as cu_seqlens are read */
            memcpy((char *)cu + i * sizeof narrow, &narrow, sizeof narrow);
        else
            memcpy((char *)cu + i * sizeof wide, &wide, sizeof wide);
    }
    return BP_OK;
}

/* ---- index maps ----------------------------------------------------------------------------------------------------- */

static void map_group(const bp_sequence_group *group, bp_cp_order from, bp_cp_order to, bp_cp_shift shift, int64_t *map)
{
    const uint64_t places = bp_group_places(group, to);
    for (uint64_t i = 0; i < places; i++) {
        const bp_token_place place = bp_place_at(group, to, i);
        const uint64_t source = bp_source_of(group, from, shift, &place);
        map[place.position] = source == BP_NOWHERE ? -1 : (int64_t)source;
    }
}

bp_status bp_cp_split_map(const bp_cp_split *split, bp_cp_order from, bp_cp_order to, bp_cp_shift shift, uint64_t count,
                          int64_t *map)
{
    const char *call = "bp_cp_split_map";
    bp_sequence_group group;
    if (split == NULL || (map == NULL && count != 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split and an output", call);
    BP_TRY(bp_check_order(call, from));
    BP_TRY(bp_check_order(call, to));
    BP_TRY(bp_check_shift(call, split, from, shift));
    if (count != bp_split_tokens(split, to))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: room for %llu tokens, the batch has %llu in %s order", call,
                       (unsigned long long)count, (unsigned long long)bp_split_tokens(split, to), bp_cp_order_name(to));
    for (uint64_t g = 0; g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &group);
        map_group(&group, from, to, shift, map);
    }
    return BP_OK;
}
