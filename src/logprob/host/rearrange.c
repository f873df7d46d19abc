/* Tokens brought from one order to another. */
#include <string.h>

#include "logprob/host/jobs.h"
#include "logprob/host/runs.h"

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
