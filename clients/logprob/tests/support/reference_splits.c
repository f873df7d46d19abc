/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of context-parallel splits. */
#include "reference_splits.h"

#include <stdlib.h>

#include "support/scenarios.h"

static void *new_array(uint64_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    if (memory == NULL)
        abort();
    return memory;
}

/* ---- lengths ------------------------------------------------------------------------------------------------------- */

static uint64_t multiple_of(const split_options *o)
{
    return o->multiple != 0 ? o->multiple : o->ranks == 1 ? 1 : 2 * (uint64_t)o->ranks;
}

static void pad_sequences(reference_split *d, const split_options *o)
{
    uint64_t total = 0, missing = 0;
    for (uint64_t i = 0; i < o->sequences; i++) {
        d->lengths[i] = d->padded[i] = o->lengths[i];
        if (o->padded != NULL)
            d->padded[i] = o->padded[i];
        while (o->padded == NULL && d->padded[i] % multiple_of(o) != 0)
            d->padded[i]++;
        total += d->padded[i];
    }
    while (o->total_multiple != 0 && (total + missing) % o->total_multiple != 0)
        missing++;
    d->sequences = o->sequences;
    if (missing > 0)
        d->padded[d->sequences++] = missing;
}

/* ---- orders -------------------------------------------------------------------------------------------------------- */

static void append(reference_split *d, bp_cp_order order, uint64_t sequence, uint64_t offset)
{
    d->places[order][d->count[order]++] = (place){sequence, offset};
}

/* The chunks of a sequence go to ranks 0 to R - 1 and then R - 1 to 0; appends those of one rank. */
static void split_sequence(reference_split *d, bp_cp_order order, uint64_t sequence, uint32_t rank)
{
    uint64_t offset = 0, chunk = d->padded[sequence] / (2 * (uint64_t)d->ranks);
    for (uint32_t round = 0; round < 2 && d->ranks > 1; round++) {
        for (uint32_t turn = 0; turn < d->ranks; turn++) {
            const uint32_t player = round == 0 ? turn : d->ranks - 1 - turn;
            for (uint64_t card = 0; card < chunk; card++, offset++)
                if (player == rank)
                    append(d, order, sequence, offset);
        }
    }
    for (; d->ranks == 1 && offset < d->padded[sequence]; offset++) /* one rank takes odd lengths, too */
        append(d, order, sequence, offset);
}

reference_split new_reference_split(const split_options *options)
{
    reference_split d = {.ranks = options->ranks, .rank = options->rank};
    uint64_t total = 0;
    d.lengths = new_array(options->sequences + 1, sizeof *d.lengths);
    d.padded = new_array(options->sequences + 1, sizeof *d.padded);
    pad_sequences(&d, options);
    for (uint64_t i = 0; i < d.sequences; i++)
        total += d.padded[i];
    for (int order = 0; order < ORDERS; order++)
        d.places[order] = new_array(total, sizeof(place));
    for (uint64_t i = 0; i < d.sequences; i++) {
        for (uint64_t offset = 0; offset < d.lengths[i]; offset++)
            append(&d, BP_CP_PACKED, i, offset);
        for (uint64_t offset = 0; offset < d.padded[i]; offset++)
            append(&d, BP_CP_PADDED, i, offset);
        split_sequence(&d, BP_CP_LOCAL, i, d.rank);
    }
    for (uint32_t rank = 0; rank < d.ranks; rank++)
        for (uint64_t i = 0; i < d.sequences; i++)
            split_sequence(&d, BP_CP_GATHERED, i, rank);
    return d;
}

void free_reference_split(reference_split *d)
{
    free(d->lengths);
    free(d->padded);
    for (int order = 0; order < ORDERS; order++)
        free(d->places[order]);
    *d = (reference_split){0};
}

/* ---- maps ---------------------------------------------------------------------------------------------------------- */

bool can_shift(const reference_split *d, bp_cp_order from, bp_cp_shift shift)
{
    return shift == BP_CP_KEEP || from != BP_CP_LOCAL || d->ranks == 1;
}

/* False: the token does not exist. */
static bool wanted(const reference_split *d, place here, bp_cp_shift shift, place *there)
{
    const uint64_t length = d->lengths[here.sequence];
    *there = here;
    if (shift == BP_CP_KEEP)
        return true;
    if (here.offset >= length)
        return false;
    there->offset++;
    if (there->offset == length && shift == BP_CP_NEXT_WRAPPED)
        there->offset = 0;
    return there->offset < length;
}

int64_t *reference_map(const reference_split *d, bp_cp_order from, bp_cp_order to, bp_cp_shift shift)
{
    uint64_t *begins = new_array(d->sequences + 1, sizeof *begins);
    for (uint64_t i = 0; i < d->sequences; i++)
        begins[i + 1] = begins[i] + d->padded[i];
    int64_t *where = new_array(begins[d->sequences], sizeof *where); /* position in `from`, [sequence, offset] */
    for (uint64_t i = 0; i < begins[d->sequences]; i++)
        where[i] = -1;
    for (uint64_t i = 0; i < d->count[from]; i++)
        where[begins[d->places[from][i].sequence] + d->places[from][i].offset] = (int64_t)i;
    int64_t *map = new_array(d->count[to], sizeof *map);
    for (uint64_t i = 0; i < d->count[to]; i++) {
        place there;
        map[i] = -1;
        if (wanted(d, d->places[to][i], shift, &there))
            map[i] = where[begins[there.sequence] + there.offset];
    }
    free(begins);
    free(where);
    return map;
}

/* ---- the library's split ----------------------------------------------------------------------------------------------- */

/* Cumulative lengths as int32 or int64. */
static void *cumulative(const uint64_t *lengths, uint64_t sequences, bp_dtype dtype)
{
    int64_t *wide = new_array(sequences + 1, sizeof *wide);
    int32_t *narrow = new_array(sequences + 1, sizeof *narrow);
    for (uint64_t i = 0; i < sequences; i++) {
        wide[i + 1] = wide[i] + (int64_t)lengths[i];
        narrow[i + 1] = (int32_t)wide[i + 1];
    }
    free(dtype == BP_DTYPE_INT32 ? (void *)wide : narrow);
    return dtype == BP_DTYPE_INT32 ? (void *)narrow : wide;
}

bp_status split_of(const split_options *options, bp_cp_split **split)
{
    bp_cp_split_config config;
    bp_status status = bp_cp_split_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.cu_dtype = options->cu_dtype == BP_DTYPE_NONE ? BP_DTYPE_INT64 : options->cu_dtype;
    void *cu = cumulative(options->lengths, options->sequences, config.cu_dtype);
    void *cu_padded = options->padded == NULL ? NULL : cumulative(options->padded, options->sequences, config.cu_dtype);
    config.cu_seqlens = cu;
    config.cu_padded = cu_padded;
    config.sequences = options->sequences;
    config.ranks = options->ranks;
    config.rank = options->rank;
    config.multiple = options->multiple;
    config.total_multiple = options->total_multiple;
    config.last_is_dummy = options->last_is_dummy;
    config.comm = options->comm;
    status = bp_cp_split_create(&config, split);
    free(cu);
    free(cu_padded);
    return status;
}

uint64_t *random_lengths(uint64_t count, uint32_t max)
{
    uint64_t *lengths = new_array(count, sizeof *lengths);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t kind = random_below(4);
        lengths[i] = kind == 0 ? random_below(2) : random_below(max + 1);
    }
    return lengths;
}
