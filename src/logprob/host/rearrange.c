/* Tokens brought from one order to another. */
#include <string.h>

#include "logprob/host/jobs.h"

#define PIECE_BYTES (UINT64_C(1) << 16) /* of what a thread takes at once */

static void fill(const bp_rearrange_work *work, char *to)
{
    uint64_t written = 0;
    for (; written + BP_FILL_BYTES <= work->token_bytes; written += BP_FILL_BYTES)
        memcpy(to + written, work->fill, BP_FILL_BYTES);
    memcpy(to + written, work->fill, work->token_bytes - written);
}

static void copy_places(const void *context, uint64_t begin, uint64_t end)
{
    const bp_rearrange_work *work = context;
    const bp_cp_order from = (bp_cp_order)work->from_order, to = (bp_cp_order)work->to_order;
    for (uint64_t i = begin; i < end; i++) {
        const bp_place place = bp_place_at(&work->group, to, i);
        const uint64_t source = bp_source_of(&work->group, from, (bp_cp_shift)work->shift, &place);
        char *target = (char *)work->to + (int64_t)place.position * work->to_stride;
        if (source == BP_NOWHERE)
            fill(work, target);
        else
            memcpy(target, (const char *)work->from + (int64_t)source * work->from_stride, work->token_bytes);
    }
}

void bp_host_rearrange(bp_host_team *team, const bp_rearrange_work *work)
{
    const uint64_t piece = work->token_bytes < PIECE_BYTES ? PIECE_BYTES / work->token_bytes : 1;
    bp_host_deal(team, bp_group_places(&work->group, (bp_cp_order)work->to_order), piece, copy_places, work);
}
