/* SPDX-License-Identifier: Apache-2.0 */
/* Padding and splitting of a packed batch, once per batch, from its cu_seqlens. */
#include "cp/cp.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

/* ---- orders ------------------------------------------------------------------------------------------------------ */

const char *bp_cp_order_name(bp_cp_order order)
{
    static const char *const names[] = {"packed", "padded", "local", "gathered"};
    return (uint32_t)order < sizeof names / sizeof *names ? names[order] : "invalid";
}

bp_status bp_check_order(const char *call, bp_cp_order order)
{
    if ((uint32_t)order > BP_CP_GATHERED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: unknown token order %d", call, (int)order);
    return BP_OK;
}

bp_status bp_check_shift(const char *call, const bp_cp_split *split, bp_cp_order from, bp_cp_shift shift)
{
    if ((uint32_t)shift > BP_CP_NEXT_WRAPPED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: unknown shift %d", call, (int)shift);
    if (shift != BP_CP_KEEP && from == BP_CP_LOCAL && split->info.ranks > 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: in local order the next token may be on another of %u CP ranks; shift before the split",
                       call, split->info.ranks);
    return BP_OK;
}

uint64_t bp_split_tokens(const bp_cp_split *split, bp_cp_order order)
{
    if (order == BP_CP_PACKED)
        return split->info.packed_tokens;
    return order == BP_CP_LOCAL ? split->info.local_tokens : split->info.padded_tokens;
}

/* ---- the split --------------------------------------------------------------------------------------------------- */

static const char *const call_split = "bp_cp_split_create";

bp_status bp_cp_multiple(uint32_t ranks, uint32_t tp, int fp8, uint64_t *multiple)
{
    if (ranks == 0 || tp == 0 || multiple == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_cp_multiple: needs an output and at least 1 CP and 1 TP rank, got %u and %u", ranks, tp);
    const uint64_t fp8_tokens = UINT64_C(16) * ranks;
    uint64_t found = 0;
    bool fits = bp_mul_u64(tp, ranks == 1 ? 1 : UINT64_C(2) * ranks, &found);
    if (fits && fp8)
        fits = bp_lcm_u64(found, fp8_tokens, &found);
    if (!fits)
        return bp_fail(BP_ERR_OVERFLOW,
                       "bp_cp_multiple: the multiple of %u CP ranks and %u TP ranks does not fit 64 bits", ranks, tp);
    *multiple = found;
    return BP_OK;
}

static const bp_cp_split_config cp_split_config_defaults = {
    .size = sizeof cp_split_config_defaults, .cu_dtype = BP_DTYPE_INT64, .ranks = 1};

bp_status bp_cp_split_config_init(bp_cp_split_config *config, size_t size)
{
    return bp_struct_init("bp_cp_split_config_init", config, size, &cp_split_config_defaults,
                          sizeof cp_split_config_defaults);
}

static uint64_t min_multiple(const bp_cp_split_config *config)
{
    return config->ranks == 1 ? 1 : UINT64_C(2) * config->ranks;
}

static bp_status check_multiples(const bp_cp_split_config *config)
{
    const uint64_t min = min_multiple(config), multiple = config->multiple != 0 ? config->multiple : min;
    if (config->cu_padded != NULL && config->multiple != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: both cu_padded and multiple %llu are set; cu_padded alone says how sequences are padded",
                       call_split, (unsigned long long)config->multiple);
    if (multiple % min != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: lengths padded to multiples of %llu cannot be cut into 2 x %u chunks; use a "
                       "multiple of %llu",
                       call_split, (unsigned long long)multiple, config->ranks, (unsigned long long)min);
    if (config->total_multiple % multiple != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: total_multiple %llu is not a multiple of %llu", call_split,
                       (unsigned long long)config->total_multiple, (unsigned long long)multiple);
    return BP_OK;
}

static bp_status cp_split_check_config(const bp_cp_split_config *config)
{
    const bp_comm_info *comm = config->comm != NULL ? bp_comm_get_info(config->comm) : NULL;
    if (config->ranks == 0 || config->rank >= config->ranks)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: rank %u of %u CP ranks", call_split, config->rank, config->ranks);
    if (comm != NULL && (comm->ranks != config->ranks || comm->rank != config->rank))
        return bp_fail(BP_ERR_MISMATCH,
                       "%s: rank %u of %u CP ranks, but the communicator has %u ranks and this is rank %u", call_split,
                       config->rank, config->ranks, comm->ranks, comm->rank);
    if (config->cu_dtype != BP_DTYPE_INT32 && config->cu_dtype != BP_DTYPE_INT64)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: cu_seqlens are %s; use int32 or int64", call_split,
                       bp_dtype_name(config->cu_dtype));
    if (config->cu_seqlens == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: cu_seqlens are missing", call_split);
    if (config->last_is_dummy && config->sequences == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: last_is_dummy is set, but there are 0 sequences", call_split);
    return check_multiples(config);
}

static int64_t cp_split_value_at(const void *cu, bp_dtype dtype, uint64_t index)
{
    int64_t wide;
    int32_t narrow;
    if (dtype == BP_DTYPE_INT64) {
        memcpy(&wide, (const char *)cu + index * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)cu + index * sizeof narrow, sizeof narrow);
    return narrow;
}

static bp_status read_cu(const char *name, const void *cu, const bp_cp_split_config *config, uint64_t *starts)
{
    int64_t before = cp_split_value_at(cu, config->cu_dtype, 0);
    if (before != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s begin with %lld instead of 0", call_split, name,
                       (long long)before);
    starts[0] = 0;
    for (uint64_t i = 0; i < config->sequences; i++) {
        const int64_t end = cp_split_value_at(cu, config->cu_dtype, i + 1);
        if (end < before)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s decrease at sequence %llu, from %lld to %lld", call_split,
                           name, (unsigned long long)i, (long long)before, (long long)end);
        starts[i + 1] = (uint64_t)end;
        before = end;
    }
    return BP_OK;
}

static bp_status check_padded(const bp_cp_split_config *config, const bp_cp_split *split)
{
    const uint64_t multiple = min_multiple(config);
    for (uint64_t i = 0; i < config->sequences; i++) {
        const uint64_t length = split->packed[i + 1] - split->packed[i];
        const uint64_t padded = split->padded[i + 1] - split->padded[i];
        if (padded < length)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: sequence %llu has %llu tokens but is padded to %llu",
                           call_split, (unsigned long long)i, (unsigned long long)length, (unsigned long long)padded);
        if (padded % multiple != 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "%s: sequence %llu is padded to %llu tokens, which is not a multiple of %llu (2 x %u CP "
                           "ranks)",
                           call_split, (unsigned long long)i, (unsigned long long)padded, (unsigned long long)multiple,
                           config->ranks);
    }
    return BP_OK;
}

/* Sets the ends of the padded sequences, and appends a dummy sequence without data where the total is below its multiple. */
static bp_status place_sequences(const bp_cp_split_config *config, bp_cp_split *split)
{
    const uint64_t sequences = config->sequences, total = config->total_multiple;
    uint64_t multiple = config->multiple != 0 ? config->multiple : min_multiple(config);
    bool fits = true;
    BP_TRY(read_cu("cu_seqlens", config->cu_seqlens, config, split->packed));
    if (config->cu_padded != NULL) {
        BP_TRY(read_cu("cu_padded", config->cu_padded, config, split->padded));
        BP_TRY(check_padded(config, split));
    }
    for (uint64_t i = 0; fits && config->cu_padded == NULL && i < sequences; i++) {
        uint64_t padded;
        fits = bp_round_up_u64(split->packed[i + 1] - split->packed[i], multiple, &padded) &&
               bp_add_u64(split->padded[i], padded, &split->padded[i + 1]) && split->padded[i + 1] <= INT64_MAX;
    }
    uint64_t wanted = split->padded[sequences];
    if (fits && total != 0) {
        multiple = total;
        fits = bp_round_up_u64(split->padded[sequences], total, &wanted) && wanted <= INT64_MAX;
    }
    if (!fits)
        return bp_fail(BP_ERR_OVERFLOW, "%s: sequences padded to multiples of %llu do not fit 63 bits", call_split,
                       (unsigned long long)multiple);
    split->info.sequences = sequences;
    if (wanted != split->padded[sequences]) {
        split->packed[sequences + 1] = split->packed[sequences];
        split->padded[sequences + 1] = wanted;
        split->info.sequences = sequences + 1;
    }
    return BP_OK;
}

/* FNV-1a over 64-bit words, with the high half folded into the low one. */
static uint64_t cp_split_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 32;
}

static void cp_split_describe(const bp_cp_split_config *config, bp_cp_split *split)
{
    bp_cp_split_info *info = &split->info;
    const uint64_t n = info->sequences;
    info->ranks = config->ranks;
    info->rank = config->rank;
    info->data_sequences = config->sequences - (config->last_is_dummy != 0);
    info->data_tokens = split->packed[info->data_sequences];
    info->packed_tokens = split->packed[n];
    info->padded_tokens = split->padded[n];
    info->local_tokens = split->padded[n] / config->ranks;
    uint64_t hash =
        cp_split_mix(cp_split_mix(cp_split_mix(UINT64_C(0xcbf29ce484222325), config->ranks), n), info->data_sequences);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t padded = split->padded[i + 1] - split->padded[i];
        info->longest = padded > info->longest ? padded : info->longest;
        hash = cp_split_mix(cp_split_mix(hash, split->packed[i + 1]), split->padded[i + 1]);
    }
    info->fingerprint = hash;
}

/* One allocation for the split and both offset lists, with room for an appended dummy. */
static bp_status cp_split_make(const bp_cp_split_config *config, bp_cp_split **split)
{
    uint64_t places, bytes;
    BP_TRY(cp_split_check_config(config));
    if (!bp_add_u64(config->sequences, 2, &places) || !bp_mul_u64(places, 2 * sizeof(uint64_t), &bytes) ||
        !bp_add_u64(bytes, sizeof(bp_cp_split), &bytes) || bytes > PTRDIFF_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu sequences", call_split, (unsigned long long)config->sequences);
    bp_cp_split *made = calloc(1, bytes);
    if (made == NULL)
        return bp_fail_memory(bytes);
    made->packed = (uint64_t *)(made + 1);
    made->padded = made->packed + places;
    bp_status status = place_sequences(config, made);
    if (status != BP_OK) {
        free(made);
        return status;
    }
    cp_split_describe(config, made);
    *split = made;
    return BP_OK;
}

bp_status bp_cp_split_create(const bp_cp_split_config *config, bp_cp_split **split)
{
    static const char *const same[] = {"a batch with the fingerprint", NULL};
    bp_cp_split_config own = cp_split_config_defaults;
    BP_TRY(bp_struct_read(call_split, config, false, &own, sizeof own));
    config = &own;
    bp_cp_split *made = NULL;
    bp_status status = split != NULL ? cp_split_make(config, &made)
                                     : bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs an output", call_split);
    const bp_rank_words mine = {.status = status, .values = {status == BP_OK ? made->info.fingerprint : 0}};
    status = bp_ranks_compare(call_split, config->comm, &mine, same);
    if (status != BP_OK || split == NULL) { /* without `split` the status cannot be BP_OK */
        bp_cp_split_destroy(&made);
        return status;
    }
    *split = made;
    return BP_OK;
}

void bp_cp_split_destroy(bp_cp_split **split)
{
    if (split == NULL)
        return;
    free(*split);
    *split = NULL;
}

const bp_cp_split_info *bp_cp_split_get_info(const bp_cp_split *split)
{
    return split != NULL ? &split->info : NULL;
}

/* ---- queries and kernel arguments -------------------------------------------------------------------------------------- */

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

bp_status bp_cp_split_cu_seqlens(const bp_cp_split *split, bp_cp_order order, bp_dtype dtype, uint64_t count, void *cu)
{
    const char *call = "bp_cp_split_cu_seqlens";
    if (split == NULL || cu == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split and an output", call);
    BP_TRY(bp_check_order(call, order));
    if (order == BP_CP_GATHERED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: sequences are not contiguous in gathered order", call);
    if (dtype != BP_DTYPE_INT32 && dtype != BP_DTYPE_INT64)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s is not possible; use int32 or int64", call,
                       bp_dtype_name(dtype));
    if (count != split->info.sequences + 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: room for %llu values, but %llu sequences have %llu", call,
                       (unsigned long long)count, (unsigned long long)split->info.sequences,
                       (unsigned long long)(split->info.sequences + 1));
    if (dtype == BP_DTYPE_INT32 && bp_split_tokens(split, order) > INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu tokens do not fit int32", call,
                       (unsigned long long)bp_split_tokens(split, order));
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t start = order == BP_CP_PACKED ? split->packed[i] : split->padded[i];
        const int64_t wide = (int64_t)(order == BP_CP_LOCAL ? start / split->info.ranks : start);
        const int32_t narrow = (int32_t)wide;
        if (dtype == BP_DTYPE_INT32) /* unaligned addresses are allowed, as for cu_seqlens */
            memcpy((char *)cu + i * sizeof narrow, &narrow, sizeof narrow);
        else
            memcpy((char *)cu + i * sizeof wide, &wide, sizeof wide);
    }
    return BP_OK;
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
        const uint64_t places = bp_group_places(&group, to);
        for (uint64_t i = 0; i < places; i++) {
            const bp_token_place place = bp_place_at(&group, to, i);
            const uint64_t source = bp_source_of(&group, from, shift, &place);
            map[place.position] = source == BP_NOWHERE ? -1 : (int64_t)source;
        }
    }
    return BP_OK;
}
