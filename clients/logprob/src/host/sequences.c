/* SPDX-License-Identifier: Apache-2.0 */
/* Host kernels of packed sequences: rearranging tokens, sums and seeds of losses. */
#include <bucketpool/core/arith.h>

#include <math.h>
#include <string.h>

#include "host/jobs.h"

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
        run = bp_min_u64(bp_run_at(&work->group, from, to, shift, &place), end - i);
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

/* Tokens [begin, end) of the sequence's local ones. */
static bp_loss_record sum_tokens(const bp_sums_work *work, uint32_t sequence, uint64_t begin, uint64_t end)
{
    const bp_sequence_group *group = &work->group;
    const uint64_t first = (group->padded[sequence] - group->padded[0]) / group->ranks;
    bp_loss_record record = {.logit_min = INFINITY, .logit_max = -INFINITY};
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(group, BP_CP_LOCAL, first + i);
        run = bp_min_u64(bp_run_at(group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place), end - i);
        const uint64_t behind = place.position + bp_data_of_run(group, &place, run);
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

static void sum_pieces(const void *context, uint64_t begin, uint64_t end)
{
    const bp_sums_work *work = context;
    for (uint64_t number = begin; number < end; number++) {
        const bp_sums_piece piece = bp_sums_piece_at(work, (uint32_t)number);
        *piece.record = sum_tokens(work, piece.sequence, piece.begin, piece.end);
    }
}

static void merge_pieces(const bp_sums_work *work, uint32_t sequence)
{
    const uint32_t first = work->first_piece[sequence], end = work->first_piece[sequence + 1];
    bp_loss_record all = work->pieces[first];
    for (uint32_t i = first + 1; i < end; i++) {
        const bp_loss_record *one = &work->pieces[i];
        all = (bp_loss_record){all.logprob + one->logprob, all.entropy + one->entropy, all.valid + one->valid,
                               lesser(all.logit_min, one->logit_min), -lesser(-all.logit_max, -one->logit_max)};
    }
    work->records[sequence] = all;
}

void bp_host_sums(bp_host_team *team, const bp_sums_work *work)
{
    bp_host_distribute(team, work->first_piece[work->group.count], 1, sum_pieces, work);
    for (uint32_t s = 0; s < work->group.count; s++)
        if (work->first_piece[s + 1] - work->first_piece[s] > 1)
            merge_pieces(work, s);
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
        run = bp_min_u64(bp_run_at(group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place), end - i);
        const uint64_t data = bp_data_of_run(group, &place, run);
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
