/* Sums over the local tokens of each sequence, and seeds of gradients. */
#include <math.h>

#include "logprob/host/jobs.h"
#include "logprob/host/runs.h"

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
