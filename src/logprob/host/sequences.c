/* Host kernels of packed sequences: rearranging tokens, sums and seeds of losses. */
#include <math.h>
#include <string.h>

#include "core/arith.h"
#include "logprob/cp/sequences.h"
#include "logprob/host/jobs.h"

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

/* ---- rearranging ------------------------------------------------------------------------------------------------- */

#define PIECE_BYTES (UINT64_C(1) << 16) /* of what a thread takes at once */

static void fill_token(const bp_rearrange_work *work, char *to)
{
    uint64_t written = 0;
    for (; written + BP_FILL_BYTES <= work->token_bytes; written += BP_FILL_BYTES)
        memcpy(to + written, work->fill, BP_FILL_BYTES);
    memcpy(to + written, work->fill, work->token_bytes - written);
}

static bool has_gaps(const bp_rearrange_work *work)
{
    return work->from_stride != (int64_t)work->token_bytes || work->to_stride != (int64_t)work->token_bytes;
}

static void fill_run(const bp_rearrange_work *work, char *to, uint64_t run)
{
    for (uint64_t i = 0; i < run; i++)
        fill_token(work, to + (int64_t)i * work->to_stride);
}

static void copy_run(const bp_rearrange_work *work, uint64_t source, uint64_t position, uint64_t run)
{
    char *to = (char *)work->to + (int64_t)position * work->to_stride;
    if (source == BP_NOWHERE) { /* there may be no memory to take from */
        fill_run(work, to, run);
        return;
    }
    const char *from = (const char *)work->from + (int64_t)source * work->from_stride;
    if (!has_gaps(work))
        memcpy(to, from, run * work->token_bytes);
    else
        for (uint64_t i = 0; i < run; i++)
            memcpy(to + (int64_t)i * work->to_stride, from + (int64_t)i * work->from_stride, work->token_bytes);
}

static void copy_places(const void *context, uint64_t begin, uint64_t end)
{
    const bp_rearrange_work *work = context;
    const bp_cp_order from = (bp_cp_order)work->from_order, to = (bp_cp_order)work->to_order;
    const bp_cp_shift shift = (bp_cp_shift)work->shift;
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(&work->group, to, i);
        run = bp_least_u64(bp_run_at(&work->group, from, to, shift, &place), end - i);
        copy_run(work, bp_source_of(&work->group, from, shift, &place), place.position, run);
    }
}

void bp_host_rearrange(bp_host_team *team, const bp_rearrange_work *work)
{
    const uint64_t piece = work->token_bytes < PIECE_BYTES ? PIECE_BYTES / work->token_bytes : 1;
    bp_host_deal(team, bp_group_places(&work->group, (bp_cp_order)work->to_order), piece, copy_places, work);
}

/* ---- sums and seeds ---------------------------------------------------------------------------------------------- */

/* Sums over the local tokens of each sequence, and seeds of gradients. */

#define PIECE_TOKENS 4096u

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

static double host_loss_value_at(const float *values, int64_t stride, uint64_t position)
{
    return values != NULL ? (double)values[(int64_t)position * stride] : 0;
}

/* A NaN stays. */
static float lesser(float a, float b)
{
    return isnan(a) || a < b ? a : b;
}

static void host_loss_add_range(const bp_sums_work *work, uint64_t position, bp_loss_record *record)
{
    const int64_t at = (int64_t)position;
    if (work->logit_min != NULL)
        record->logit_min = lesser(record->logit_min, work->logit_min[at * work->logit_min_stride]);
    if (work->logit_max != NULL)
        record->logit_max = -lesser(-record->logit_max, -work->logit_max[at * work->logit_max_stride]);
}

static void add_tokens(const bp_sums_work *work, uint64_t first, uint64_t count, bp_loss_record *record)
{
    for (uint64_t position = first; position < first + count; position++) {
        if (work->mask[(int64_t)position * work->mask_stride] == 0)
            continue;
        record->valid++;
        record->logprob += host_loss_value_at(work->logprob, work->logprob_stride, position);
        record->entropy += host_loss_value_at(work->entropy, work->entropy_stride, position);
        host_loss_add_range(work, position, record);
    }
}

static bp_loss_record host_loss_sum_sequence(const bp_sums_work *work, uint32_t sequence)
{
    const bp_sequence_group *group = &work->group;
    const uint64_t begin = (group->padded[sequence] - group->padded[0]) / group->ranks;
    const uint64_t end = (group->padded[sequence + 1] - group->padded[0]) / group->ranks;
    bp_loss_record record = {.logit_min = INFINITY, .logit_max = -INFINITY};
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(group, BP_CP_LOCAL, i);
        run = bp_run_at(group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place);
        add_tokens(work, place.position, bp_data_of_run(group, &place, run), &record);
    }
    return record;
}

static void sum_sequences(const void *context, uint64_t begin, uint64_t end)
{
    const bp_sums_work *work = context;
    for (uint64_t s = begin; s < end; s++)
        work->records[s] = host_loss_sum_sequence(work, (uint32_t)s);
}

void bp_host_sums(bp_host_team *team, const bp_sums_work *work)
{
    bp_host_deal(team, work->group.count, 1, sum_sequences, work);
}

/* ---- seeds ---------------------------------------------------------------------------------------------------------- */

static void seed_run(const bp_seed_work *work, uint64_t first, uint64_t run, uint64_t data)
{
    for (uint64_t i = 0; i < run; i++) {
        const int64_t at = (int64_t)(first + i);
        const bool valid = i < data && work->mask[at * work->mask_stride] != 0;
        work->seed[at * work->seed_stride] = valid ? work->value : 0;
    }
}

static void seed_places(const void *context, uint64_t begin, uint64_t end)
{
    const bp_seed_work *work = context;
    const bp_sequence_group *group = &work->group;
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(group, BP_CP_LOCAL, i);
        run = bp_least_u64(bp_run_at(group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place), end - i);
        seed_run(work, place.position, run, bp_data_of_run(group, &place, run));
    }
}

void bp_host_seed(bp_host_team *team, const bp_seed_work *work)
{
    bp_host_deal(team, bp_group_places(&work->group, BP_CP_LOCAL), PIECE_TOKENS, seed_places, work);
}
