/* SPDX-License-Identifier: Apache-2.0 */
/* Host kernels of packed sequences: rearranging tokens, sums and seeds of losses. */
#include <bucketpool/core/arith.h>

#include <math.h>
#include <string.h>

#include "host/jobs.h"

static bool is_in_chunks(const bp_sequence_group *group, bp_cp_order order)
{
    return group->ranks > 1 && (order == BP_CP_LOCAL || order == BP_CP_GATHERED);
}

/* Length of the run from `place` on in order `to` whose tokens are consecutive in order `from`, or all absent from it. */
static uint64_t run_at(const bp_sequence_group *group, bp_cp_order from, bp_cp_order to, bp_cp_shift shift,
                       const bp_token_place *place)
{
    const uint64_t length = bp_sequence_length(group, place->sequence), offset = place->offset;
    const uint64_t padded = group->padded[place->sequence + 1] - group->padded[place->sequence];
    const uint64_t chunk = padded / (2 * (uint64_t)group->ranks), ahead = shift != BP_CP_KEEP;
    uint64_t end = to == BP_CP_PACKED ? length : padded;
    if (is_in_chunks(group, to))
        end = bp_min_u64(end, (offset / chunk + 1) * chunk);
    if (is_in_chunks(group, from))
        end = bp_min_u64(end, ((offset + ahead) / chunk + 1) * chunk - ahead);
    if (offset < length) /* shifted: the last token has no next, or the first no previous one */
        end = bp_min_u64(end, offset + ahead == length ? length : length - ahead);
    return end - offset;
}

/* Length of the run's prefix of data tokens. */
static uint64_t data_of_run(const bp_sequence_group *group, const bp_token_place *place, uint64_t run)
{
    const uint64_t length = bp_sequence_length(group, place->sequence);
    return bp_is_data(group, place) ? bp_min_u64(run, length - place->offset) : 0;
}

/* ---- rearranging ------------------------------------------------------------------------------------------------- */

#define PIECE_BYTES (UINT64_C(1) << 16) /* per thread and piece */

static void fill_run(const bp_rearrange_work *work, char *to, uint64_t run)
{
    for (uint64_t i = 0; i < run; i++) {
        char *token = to + (int64_t)i * work->to_stride;
        uint64_t written = 0;
        for (; written + BP_FILL_BYTES <= work->token_bytes; written += BP_FILL_BYTES)
            memcpy(token + written, work->fill, BP_FILL_BYTES);
        memcpy(token + written, work->fill, work->token_bytes - written);
    }
}

static void copy_run(const bp_rearrange_work *work, const char *from, char *to, uint64_t run)
{
    const int64_t bytes = (int64_t)work->token_bytes;
    if (work->from_stride == bytes && work->to_stride == bytes) {
        memcpy(to, from, run * work->token_bytes);
        return;
    }
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
        run = bp_min_u64(run_at(&work->group, from, to, shift, &place), end - i);
        const uint64_t source = bp_source_of(&work->group, from, shift, &place);
        char *to_run = (char *)work->to + (int64_t)place.position * work->to_stride;
        if (source == BP_NOWHERE) /* there may be no source memory */
            fill_run(work, to_run, run);
        else
            copy_run(work, (const char *)work->from + (int64_t)source * work->from_stride, to_run, run);
    }
}

void bp_host_rearrange(bp_host_team *team, const bp_rearrange_work *work)
{
    const uint64_t piece = work->token_bytes < PIECE_BYTES ? PIECE_BYTES / work->token_bytes : 1;
    bp_host_distribute(team, bp_group_places(&work->group, (bp_cp_order)work->to_order), piece, copy_places, work);
}

/* ---- sums over the local tokens of each sequence ------------------------------------------------------------------ */

/* NaN propagates. */
static float lesser(float a, float b)
{
    return isnan(a) || a < b ? a : b;
}

static bp_loss_record sum_sequence(const bp_sums_work *work, uint32_t sequence)
{
    const bp_sequence_group *group = &work->group;
    const uint64_t begin = (group->padded[sequence] - group->padded[0]) / group->ranks;
    const uint64_t end = (group->padded[sequence + 1] - group->padded[0]) / group->ranks;
    bp_loss_record record = {.logit_min = INFINITY, .logit_max = -INFINITY};
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(group, BP_CP_LOCAL, i);
        run = run_at(group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place);
        const uint64_t behind = place.position + data_of_run(group, &place, run);
        for (uint64_t position = place.position; position < behind; position++) {
            const int64_t at = (int64_t)position;
            if (work->mask[at * work->mask_stride] == 0)
                continue;
            record.valid++;
            record.logprob += work->logprob != NULL ? (double)work->logprob[at * work->logprob_stride] : 0;
            record.entropy += work->entropy != NULL ? (double)work->entropy[at * work->entropy_stride] : 0;
            if (work->logit_min != NULL)
                record.logit_min = lesser(record.logit_min, work->logit_min[at * work->logit_min_stride]);
            if (work->logit_max != NULL)
                record.logit_max = -lesser(-record.logit_max, -work->logit_max[at * work->logit_max_stride]);
        }
    }
    return record;
}

static void sum_sequences(const void *context, uint64_t begin, uint64_t end)
{
    const bp_sums_work *work = context;
    for (uint64_t s = begin; s < end; s++)
        work->records[s] = sum_sequence(work, (uint32_t)s);
}

void bp_host_sums(bp_host_team *team, const bp_sums_work *work)
{
    bp_host_distribute(team, work->group.count, 1, sum_sequences, work);
}

/* ---- seeds of gradients ------------------------------------------------------------------------------------------- */

#define SEED_TOKENS 4096u /* per thread and piece */

static void seed_places(const void *context, uint64_t begin, uint64_t end)
{
    const bp_seed_work *work = context;
    const bp_sequence_group *group = &work->group;
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(group, BP_CP_LOCAL, i);
        run = bp_min_u64(run_at(group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place), end - i);
        const uint64_t data = data_of_run(group, &place, run);
        for (uint64_t k = 0; k < run; k++) {
            const int64_t at = (int64_t)(place.position + k);
            const bool valid = k < data && work->mask[at * work->mask_stride] != 0;
            work->seed[at * work->seed_stride] = valid ? work->value : 0;
        }
    }
}

void bp_host_seed(bp_host_team *team, const bp_seed_work *work)
{
    bp_host_distribute(team, bp_group_places(&work->group, BP_CP_LOCAL), SEED_TOKENS, seed_places, work);
}
