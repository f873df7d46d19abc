/* Sums over the local tokens of each sequence, and seeds of gradients. */
#include <math.h>

#include "logprob/host/jobs.h"

#define PIECE_TOKENS 4096u

static bool is_valid(const bp_sequence_group *group, const uint8_t *mask, int64_t stride, const bp_place *place)
{
    return bp_is_data(group, place) && mask[(int64_t)place->position * stride] != 0;
}

static double value_at(const float *values, int64_t stride, uint64_t position)
{
    return values != NULL ? (double)values[(int64_t)position * stride] : 0;
}

/* A NaN stays. */
static float lesser(float a, float b)
{
    return isnan(a) || a < b ? a : b;
}

static void add_token(const bp_sums_work *work, uint64_t position, bp_loss_record *record)
{
    record->valid++;
    record->logprob += value_at(work->logprob, work->logprob_stride, position);
    record->entropy += value_at(work->entropy, work->entropy_stride, position);
    if (work->logit_min != NULL)
        record->logit_min = lesser(record->logit_min, work->logit_min[(int64_t)position * work->logit_min_stride]);
    if (work->logit_max != NULL)
        record->logit_max = -lesser(-record->logit_max, -work->logit_max[(int64_t)position * work->logit_max_stride]);
}

static void add_sequences(const void *context, uint64_t begin, uint64_t end)
{
    const bp_sums_work *work = context;
    const bp_sequence_group *group = &work->group;
    for (uint64_t s = begin; s < end; s++) {
        const uint64_t before = (group->padded[s] - group->padded[0]) / group->ranks;
        const uint64_t tokens = (group->padded[s + 1] - group->padded[s]) / group->ranks;
        bp_loss_record record = {.logit_min = INFINITY, .logit_max = -INFINITY};
        for (uint64_t i = 0; i < tokens; i++) {
            const bp_place place = bp_place_at(group, BP_CP_LOCAL, before + i);
            if (is_valid(group, work->mask, work->mask_stride, &place))
                add_token(work, place.position, &record);
        }
        work->records[s] = record;
    }
}

void bp_host_sums(bp_host_team *team, const bp_sums_work *work)
{
    bp_host_deal(team, work->group.count, 1, add_sequences, work);
}

static void seed_places(const void *context, uint64_t begin, uint64_t end)
{
    const bp_seed_work *work = context;
    for (uint64_t i = begin; i < end; i++) {
        const bp_place place = bp_place_at(&work->group, BP_CP_LOCAL, i);
        const bool valid = is_valid(&work->group, work->mask, work->mask_stride, &place);
        work->seed[(int64_t)place.position * work->seed_stride] = valid ? work->value : 0;
    }
}

void bp_host_seed(bp_host_team *team, const bp_seed_work *work)
{
    bp_host_deal(team, bp_group_places(&work->group, BP_CP_LOCAL), PIECE_TOKENS, seed_places, work);
}
