/* The lower bound of a role: its peak live bytes. */
#include "plan/bound.h"

#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"

/* Bytes that come into being and go at the beginning of a step. */
typedef struct change {
    uint64_t begins, ends;
} change;

static bp_status bound_add_span(const bp_buckets *buckets, const bp_schedule *schedule, const bp_span *span,
                                uint64_t bytes, change *changes)
{
    for (uint32_t k = 0; k < span->interval_count; k++) {
        const bp_interval *interval = &schedule->intervals[span->first_interval + k];
        if (!bp_add_u64(changes[interval->begin].begins, bytes, &changes[interval->begin].begins) ||
            !bp_add_u64(changes[interval->end].ends, bytes, &changes[interval->end].ends))
            return bp_fail(BP_ERR_OVERFLOW, "the requests of step %u of model \"%s\" do not fit 64 bits",
                           interval->begin, buckets->model);
    }
    return BP_OK;
}

static bp_status sum_changes(const bp_buckets *buckets, const change *changes, size_t steps, bp_bound *bound)
{
    uint64_t live = 0;
    *bound = (bp_bound){0};
    for (size_t step = 0; step < steps; step++) {
        live -= changes[step].ends;
        if (!bp_add_u64(live, changes[step].begins, &live))
            return bp_fail(BP_ERR_OVERFLOW, "what is live in step %zu of model \"%s\" does not fit 64 bits", step,
                           buckets->model);
        if (live > bound->bytes)
            *bound = (bp_bound){live, (uint32_t)step};
    }
    return BP_OK;
}

bp_status bp_bound_of(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t roles, uint64_t alignment,
                      bp_request_filter *filter, const void *context, bp_bound *bound)
{
    change *changes;
    BP_TRY(bp_new_array(schedule->step_count + 1, sizeof(change), (void **)&changes));
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < schedule->span_count; i++) {
        const bp_span *span = &schedule->spans[i];
        if (!(roles & BP_ROLE_BIT(buckets->requests[span->first_request].role)))
            continue;
        uint64_t sum = 0, aligned;
        for (uint32_t r = span->first_request; status == BP_OK && r < span->first_request + span->request_count; r++) {
            if (filter != NULL && !filter(context, r))
                continue;
            if (!bp_round_up_u64(buckets->requests[r].bytes, alignment, &aligned) || !bp_add_u64(sum, aligned, &sum))
                status = bp_fail(BP_ERR_OVERFLOW, "a unit of model \"%s\" does not fit 64 bits", buckets->model);
        }
        if (status == BP_OK)
            status = bound_add_span(buckets, schedule, span, sum, changes);
    }
    if (status == BP_OK)
        status = sum_changes(buckets, changes, schedule->step_count, bound);
    free(changes);
    return status;
}

bool bp_span_is_live(const bp_schedule *schedule, const bp_span *span, uint32_t step)
{
    for (uint32_t k = 0; k < span->interval_count; k++) {
        const bp_interval *interval = &schedule->intervals[span->first_interval + k];
        if (interval->begin <= step && step < interval->end)
            return true;
    }
    return false;
}
